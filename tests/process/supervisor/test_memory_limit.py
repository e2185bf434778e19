"""Processes that use too much memory, and the intervals of the checks."""

from __future__ import annotations

import os

import pytest

from reput.process.supervisor import memory_limit
from reput.process.supervisor.memory_limit import LOOK_S, MemoryLimit

PID = 4711


@pytest.fixture
def size(monkeypatch):
    """The memory of the process, in a list of one."""
    found = [0]
    monkeypatch.setattr(memory_limit, "anonymous_memory", lambda pid: found[0] if pid == PID else None)
    return found


def test_over_the_limit_the_numbers_are_named(size):
    """At one and a half times the limit it is killed without waiting. An ended process uses no memory."""
    limit = MemoryLimit(1000)
    for size[0], excess, is_hopeless in (
        (0, False, False),
        (1000, False, False),
        (1001, True, False),
        (1501, True, True),
    ):
        assert (limit.excess(PID) is not None) == excess
        assert limit.is_hopeless(PID) == is_hopeless
    assert limit.excess(PID) == "memory exceeds its limit: rss_bytes=1501 dispatcher_memory_max=1000"
    assert limit.excess(PID + 1) is None
    assert not limit.is_hopeless(PID + 1)


def test_a_process_is_looked_at_once_a_second():
    """The waiting time until the next check is known; without a limit there are no checks."""
    now = [5.0]
    limit = MemoryLimit(1000, lambda: now[0])
    assert limit.is_due()
    assert not limit.is_due()
    assert limit.patience == LOOK_S
    now[0] += LOOK_S
    assert limit.patience == 0.0
    assert limit.is_due()
    assert MemoryLimit(0).patience is None
    assert not MemoryLimit(0).is_due()


def test_a_process_takes_memory():
    """As the system counts it."""
    assert MemoryLimit(1).excess(os.getpid()) is not None
