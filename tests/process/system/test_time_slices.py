"""TimeSlices of the calling thread, as set in the kernel."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

import pytest

from reput.process.system import time_slices
from reput.process.system.time_slices import SCHED_ATTR, SHORT_NS, TimeSlices

SCHED_GETATTR = 315


def attributes() -> tuple[int, int, int]:
    """Return the policy, the niceness and the slice length (ns) of the calling thread."""
    buffer = ctypes.create_string_buffer(SCHED_ATTR.size)
    assert time_slices.syscall(SCHED_GETATTR, 0, buffer, SCHED_ATTR.size, 0) == 0
    _, policy, _, nice, _, runtime, _, _ = SCHED_ATTR.unpack(buffer.raw)
    return policy, nice, runtime


def in_thread(work: Callable[[], None]) -> None:
    """Run *work* in a new thread, whose time slices end with it."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_turns_become_short_and_usual_again():
    """Nothing else of the thread changes."""

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)
        policy, nice, usual = attributes()
        if usual == 0:
            pytest.skip("this kernel has no turns of a thread's own")
        mine = TimeSlices()
        mine.set_short(True)
        assert attributes() == (policy, nice, SHORT_NS)
        mine.set_short(False)
        assert attributes() == (policy, nice, usual)

    in_thread(work)


def test_a_policy_that_somebody_else_chose_stays():
    """It is the operator's choice."""

    def work() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError as error:
            pytest.skip(f"the system lets no thread change its scheduling policy: {error}")
        before = attributes()
        TimeSlices().set_short(True)
        assert attributes() == before

    in_thread(work)


def test_a_system_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch):
    """A container may forbid the call; everything works without it."""
    asked: list[object] = []

    def refuse(*arguments: object) -> int:
        asked.append(arguments)
        return -1

    monkeypatch.setattr(time_slices, "syscall", refuse)
    mine = TimeSlices()
    mine.set_short(True)
    mine.set_short(False)
    mine.set_short(True)
    assert len(asked) == 1
