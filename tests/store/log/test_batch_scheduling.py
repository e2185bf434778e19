"""Threads that wait for one force, and their scheduling."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from reput.store.log.batch_scheduling import WAITING_LEFT, WAITING_MIN, BatchScheduling
from reput.store.log.wakeup_chain import WakeupChain

LIMIT_S = 60.0


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Call functions in a thread that ends with the test."""
    with ThreadPoolExecutor(1) as threads:
        yield lambda work: threads.submit(work).result(LIMIT_S)


@pytest.fixture
def policies_may_change(in_thread) -> None:
    """Only if the system lets a thread change its scheduling policy; a container may forbid that."""

    def change() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    try:
        in_thread(change)
    except OSError as error:
        pytest.skip(f"the system lets no thread change its scheduling policy: {error}")


@pytest.mark.usefixtures("policies_may_change")
def test_a_thread_is_one_of_a_batch_while_it_waits_with_many(in_thread):
    """With slightly fewer waiting threads nothing changes, and once it waits almost alone, it is reset."""
    scheduling = BatchScheduling()

    def policies() -> list[int]:
        found = []
        for count in (WAITING_MIN - 1, WAITING_MIN, WAITING_LEFT, WAITING_LEFT - 1, WAITING_MIN):
            scheduling.join(count)
            found.append(os.sched_getscheduler(0))
        return found

    batch, other = os.SCHED_BATCH, os.SCHED_OTHER
    assert in_thread(policies) == [other, batch, batch, other, batch]
    assert os.sched_getscheduler(0) == other


@pytest.mark.usefixtures("policies_may_change")
def test_a_policy_that_somebody_has_set_is_left_alone(in_thread):
    """Whether it was set before the waits or during them."""

    def policies(own: int, before: int) -> list[int]:
        scheduling = BatchScheduling()
        scheduling.join(before)
        os.sched_setscheduler(0, own, os.sched_param(0))
        found = []
        for count in (WAITING_MIN, 0, WAITING_MIN, 0):
            scheduling.join(count)
            found.append(os.sched_getscheduler(0))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return found

    for own, before in ((os.SCHED_IDLE, 0), (os.SCHED_IDLE, WAITING_MIN), (os.SCHED_BATCH, 0)):
        assert in_thread(partial(policies, own, before)) == [own] * 4


def test_a_system_that_refuses_is_asked_once(in_thread, monkeypatch):
    """In a container that forbids it, threads keep their policy."""
    asked = []

    def refuse(*arguments: object) -> None:
        asked.append(arguments)
        raise PermissionError(1, "not permitted")

    def policies() -> list[int]:
        scheduling = BatchScheduling()
        found = []
        for count in (WAITING_MIN, WAITING_MIN, 0, WAITING_MIN):
            scheduling.join(count)
            found.append(os.sched_getscheduler(0))
        return found

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert in_thread(policies) == [os.SCHED_OTHER] * 4
    assert len(asked) == 1


@pytest.mark.usefixtures("policies_may_change")
def test_those_who_wait_for_a_force_are_a_crowd():
    """A later thread counts the waiting ones."""
    group = WakeupChain(lambda: None)

    def wait() -> int:
        assert group.wait(LIMIT_S)
        return os.sched_getscheduler(0)

    with ThreadPoolExecutor(2 * WAITING_MIN) as threads:
        waits = []
        for number in range(2 * WAITING_MIN):
            waits.append(threads.submit(wait))
            while len(group.waiting) <= number:
                os.sched_yield()
        group.open()
        policies = [wait.result(LIMIT_S) for wait in waits]
    assert policies == [os.SCHED_OTHER] * WAITING_MIN + [os.SCHED_BATCH] * WAITING_MIN
