"""A process that only reads the ring's numbers sleeps until a dispatcher publishes progress."""

from __future__ import annotations

import threading

import pytest

from reput.ring import RingMemory
from reput.ring.progress_futex import ProgressFutex, SeenProgress

# No wait of these tests may need it.
TIMEOUT = 60.0


@pytest.fixture
def observer(memory):
    """The memory as a process sees it that may write nothing."""
    observer = RingMemory.from_descriptors(memory.open_observer_descriptors())
    yield observer
    observer.close()


@pytest.fixture
def futex(observer):
    futex = ProgressFutex(observer)
    yield futex
    futex.close()


@pytest.fixture
def cell(memory):
    """The cell of a dispatcher that runs in slot 1."""
    cell = memory.open_cell(1)
    cell.clear("one")
    cell.set_pid(1)
    cell.set_progress(100, None)
    yield cell
    cell.close()


def test_an_observer_is_woken_by_progress(futex, cell):
    """It sleeps on memory that it may only read; the dispatcher need not know."""
    seen = futex.look(range(4))
    assert seen == SeenProgress(1, 100)
    thread = threading.Thread(target=futex.wait, args=(seen, TIMEOUT))
    thread.start()
    for offset in range(200, 100_000, 100):
        cell.set_progress(offset, None)
        thread.join(0.01)
        if not thread.is_alive():
            break
    assert not thread.is_alive()


def test_progress_that_was_made_before_the_wait_is_not_missed(futex, cell):
    """The kernel compares the word once more."""
    seen = futex.look(range(4))
    cell.set_progress(200, None)
    futex.wait(seen, TIMEOUT)
    assert futex.look(range(4)) == SeenProgress(1, 200)


def test_a_wait_is_ended_from_this_side(futex, cell):
    """So a reader that is closed keeps no thread waiting."""
    thread = threading.Thread(target=futex.wait, args=(futex.look([1]), TIMEOUT))
    thread.start()
    while thread.is_alive():
        futex.wake([1])
        thread.join(0.01)


def test_the_foremost_running_dispatcher_is_waited_for(memory, futex, cell):
    """One that is behind, or does not run, would not be the first to tell of a message."""
    other = memory.open_cell(2)
    other.clear("two")
    other.set_progress(300, None)
    assert futex.look(range(4)) == SeenProgress(1, 100)
    other.set_pid(2)
    assert futex.look(range(4)) == SeenProgress(2, 300)
    other.close()


def test_no_dispatcher_no_wait(futex):
    """An observer then looks by itself."""
    assert futex.look(range(4)) is None
