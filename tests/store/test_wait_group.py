"""Threads that are let go together."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reput.store.wait_group import WaitGroup

LIMIT_S = 60.0


def refuse(*_: object) -> int:
    """Answer as a system that has no descriptor left."""
    raise OSError("Too many open files")


@pytest.fixture(params=["descriptor", "no descriptor left"])
def group(request, monkeypatch):
    """A group of either kind."""
    if request.param == "no descriptor left":
        monkeypatch.setattr(os, "eventfd", refuse)
    return WaitGroup()


def test_all_who_wait_are_let_go(group):
    """Those who come later do not wait at all."""
    begun = threading.Barrier(9)

    def wait():
        begun.wait(LIMIT_S)
        return group.wait(LIMIT_S)

    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(wait) for _ in range(8)]
        begun.wait(LIMIT_S)
        group.open()
        assert [wait.result(LIMIT_S) for wait in waits] == [True] * 8
    assert group.wait(0)


def test_who_waits_too_long_is_told(group):
    """The group is still closed, and the others wait on."""
    assert not group.wait(0.01)
    group.open()
    assert group.wait(0.01)


def test_a_group_may_be_opened_again(group):
    """After a failed force everything is opened, opened or not."""
    group.open()
    group.open()
    assert group.wait(0)


def test_descriptors_are_given_back():
    """A group that nobody knows any more leaves nothing open."""
    before = len(os.listdir("/proc/self/fd"))
    groups = [WaitGroup() for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    del groups
    assert len(os.listdir("/proc/self/fd")) == before
