"""Threads that are woken one after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from delivering import wait_until
from reput.store.log import wakeup_chain as wait_group
from reput.store.log.wakeup_chain import WakeupChain

LIMIT_S = 60.0


class WatchedLock:
    """A lock that knows whether a thread waits for it: only waiting calls have a limit."""

    def __init__(self):
        self.lock = threading.Lock()
        self.is_waited_for = False

    def acquire(self, timeout=-1):
        self.is_waited_for = timeout >= 0
        return self.lock.acquire(timeout=timeout)

    def release(self):
        self.lock.release()


@pytest.fixture(autouse=True)
def _watched_locks(monkeypatch):
    """Watch every lock of a group."""
    monkeypatch.setattr(wait_group, "threading", SimpleNamespace(Lock=WatchedLock))


@pytest.fixture
def rung():
    """The number of requested forces."""
    return []


@pytest.fixture
def ring(rung):
    """A function that requests a force."""
    return lambda: rung.append(None)


def waiters(pool, group, count):
    """Start *count* threads that wait for *group*, after each has made its request and found the group closed."""
    before = len(group.waiting)
    waits = [pool.submit(group.wait, LIMIT_S) for _ in range(count)]
    wait_until(lambda: len(group.waiting) == before + count)
    locks = list(group.waiting)[before:]
    wait_until(lambda: all(lock.is_waited_for for lock in locks))
    return waits


def test_all_who_wait_are_let_go(ring):
    """Later threads do not wait at all."""
    group = WakeupChain(ring)
    begun = threading.Barrier(9)

    def wait():
        begun.wait(LIMIT_S)
        return group.wait(LIMIT_S)

    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(wait) for _ in range(8)]
        begun.wait(LIMIT_S)
        group.open()
        assert [wait.result(LIMIT_S) for wait in waits] == [True] * 8
    assert group.wait(LIMIT_S)


def test_who_waits_too_long_is_told(ring):
    """The group is still closed, and the others continue to wait."""
    group = WakeupChain(ring)
    with ThreadPoolExecutor(2) as pool:
        assert not group.wait(0.01)
        others = waiters(pool, group, 2)
        assert not group.wait(0.01)
        group.open()
        assert [wait.result(LIMIT_S) for wait in others] == [True] * 2


def test_who_is_let_go_as_its_time_ends_lets_the_next_go(ring):
    """It left without waking the next one."""
    group = WakeupChain(ring)
    with ThreadPoolExecutor(1) as pool:
        late = threading.Lock()
        late.acquire()
        group.waiting.append(late)
        (wait,) = waiters(pool, group, 1)
        group.open()
        group.leave(late)
        assert wait.result(LIMIT_S)


def test_who_comes_too_late_to_wait_has_the_next_force_begin(ring, rung):
    """Another thread saw it as still to be woken, and relies on it."""
    group = WakeupChain(ring)
    group.open()
    following = WakeupChain(ring, group)
    late = threading.Lock()
    group.waiting.append(late)
    with ThreadPoolExecutor(1) as pool:
        (wait,) = waiters(pool, following, 1)
        assert not rung
        group.leave(late)
        assert rung == [None]
        following.open()
        assert wait.result(LIMIT_S)


def test_a_group_may_be_opened_again(ring):
    """After a failed force all groups are opened."""
    group = WakeupChain(ring)
    group.open()
    group.open()
    assert group.wait(LIMIT_S)


def test_a_force_is_asked_for_once(ring, rung):
    """By the first waiting thread; a started force covers all that came meanwhile."""
    group = WakeupChain(ring)
    with ThreadPoolExecutor(3) as pool:
        waits = waiters(pool, group, 3)
        assert len(rung) == 1
        group.open()
        assert [wait.result(LIMIT_S) for wait in waits] == [True] * 3


def test_the_next_force_waits_for_all_who_were_let_go(ring, rung):
    """An immediate next put is included in it, instead of the one after it."""
    group = WakeupChain(ring)
    sleeper = threading.Lock()
    sleeper.acquire()
    group.waiting.append(sleeper)
    with ThreadPoolExecutor(3) as pool:
        waits = waiters(pool, group, 1)
        later = WakeupChain(ring, group)
        waits += waiters(pool, later, 2)
        group.open()
        assert rung == [None]
        # The first one wakes.
        group.wake_next()
        wait_until(lambda: len(rung) == 2)
        later.open()
        assert [wait.result(LIMIT_S) for wait in waits] == [True] * 3


def test_who_is_interrupted_as_it_wakes_holds_nobody_up(ring):
    """It did not wake the next thread, so the following force does."""
    group = WakeupChain(ring)
    interrupted = threading.Lock()
    interrupted.acquire()
    group.waiting.append(interrupted)
    with ThreadPoolExecutor(2) as pool:
        waits = waiters(pool, group, 2)
        group.open()
        later = WakeupChain(ring, group)
        assert not any(wait.done() for wait in waits)
        later.open()
        assert [wait.result(LIMIT_S) for wait in waits] == [True] * 2


def test_who_is_let_go_by_the_next_group_is_told_that_nothing_follows(ring):
    """For example after a failed force: the next group opens first, and the thread must not report a time-out."""
    group = WakeupChain(ring)
    following = WakeupChain(ring, group)
    with ThreadPoolExecutor(3) as pool:
        waits = waiters(pool, group, 3)
        following.open()
        assert [wait.result(LIMIT_S) for wait in waits] == [True] * 3


def test_all_who_wait_for_the_begin_of_a_force_return_with_it(ring):
    """They do not take the wake-up from each other."""
    group = WakeupChain(ring)
    assert not group.wait_begin(0.01)
    group.begun.release()
    assert [group.wait_begin(LIMIT_S) for _ in range(3)] == [True] * 3
