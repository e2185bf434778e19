"""A dispatcher's numbers and texts, as written by it and as read by all."""

from __future__ import annotations

import os

import pytest

from reput.errors import RingError
from reput.ring import Cell, CellView, RingMemory
from reput.ring.layout import COUNTERS_MAX, ERROR_SIZE_MAX


@pytest.fixture
def cell(other: RingMemory) -> Cell:
    cell = other.open_cell(2)
    cell.clear("consume_queue")
    return cell


@pytest.fixture
def view(memory: RingMemory) -> CellView:
    return memory.view(2)


def test_a_free_slot_says_that_nothing_is_known(view: CellView):
    """An unknown number is None; counts begin at 0."""
    assert view.name is None
    for unknown in ("state", "state_since", "pid", "progress", "ordinal_dispatched", "heartbeat_ns", "phase"):
        assert getattr(view, unknown) is None, unknown
    assert view.durable_cursor is None
    assert view.error is None
    assert view.counters == {}
    for counted in ("restart_count", "batch_count", "lapped_count", "backstop_count", "gap_bytes", "rejected_count"):
        assert getattr(view, counted) == 0, counted


def test_what_a_dispatcher_says_is_read_by_others(cell: Cell, view: CellView):
    """Each number is read as it was written, including 0."""
    cell.set_state(2, 1_700_000_000_000)
    cell.set_pid(4711)
    cell.set_restart_count(3)
    cell.set_progress(0, 0)
    cell.set_durable_cursor(10, 2, 1_700_000_000_123)
    cell.set_phase(0)
    cell.add_batch()
    cell.add_lapped()
    cell.add_backstop()
    cell.set_gap_bytes(99)
    cell.set_rejected_count(1)
    assert (view.name, view.state, view.state_since, view.pid) == ("consume_queue", 2, 1_700_000_000_000, 4711)
    assert (view.restart_count, view.progress, view.ordinal_dispatched, view.phase) == (3, 0, 0, 0)
    assert view.durable_cursor == (10, 2, 1_700_000_000_123)
    assert view.durable_cursor.commit_log_offset == 10
    assert (view.batch_count, view.lapped_count, view.backstop_count) == (1, 1, 1)
    assert (view.gap_bytes, view.rejected_count) == (99, 1)
    assert view.heartbeat_ns is not None


def test_a_number_can_become_unknown_again(cell: Cell, view: CellView):
    """A process that has ended has no id, a view that is being rebuilt no progress."""
    cell.set_pid(1)
    cell.set_pid(None)
    cell.set_progress(5, None)
    assert (view.pid, view.progress, view.ordinal_dispatched) == (None, 5, None)
    cell.forget_progress()
    assert view.progress is None


def test_a_heartbeat_moves_on(cell: Cell, view: CellView):
    """Each heartbeat is later than the one before."""
    cell.beat()
    first = view.heartbeat_ns
    cell.beat()
    assert first is not None
    assert view.heartbeat_ns is not None
    assert view.heartbeat_ns > first


def test_numbers_outlive_the_process_that_wrote_them(cell: Cell, view: CellView, other: RingMemory):
    """The last position of an ended dispatcher can still be read."""
    cell.set_progress(1234, 5)
    cell.counter("rows").value = 7
    cell.set_error("killed")
    cell.close()
    assert (view.progress, view.counters, view.error) == (1234, {"rows": 7}, "killed")
    assert other.open_cell(2).counter("rows").value == 7


def test_a_slot_that_is_given_away_forgets_all_but_the_generation(cell: Cell, view: CellView):
    """The next dispatcher of a slot does not begin with the numbers of the previous one."""
    cell.set_progress(1234, 5)
    cell.set_durable_cursor(1, 1, 1)
    cell.counter("rows").value = 7
    cell.set_error("broken")
    cell.set_restart_count(9)
    generation = view.generation
    cell.clear("index")
    assert (view.name, view.progress, view.counters, view.error) == ("index", None, {}, None)
    assert (view.durable_cursor, view.restart_count) == (None, 0)
    assert view.generation == generation + 1
    cell.clear(None)
    assert view.name is None


def test_a_generation_is_raised_one_by_one(cell: Cell, view: CellView):
    """Readers of a view notice that another one has replaced it."""
    before = view.generation
    assert cell.raise_generation() == before + 1 == view.generation


@pytest.mark.parametrize("name", ["", "x" * 65, "ä" * 33])
def test_a_dispatchers_name_has_a_limit(cell: Cell, name: str):
    """A name that does not fit is refused, not cut."""
    with pytest.raises(RingError, match="name="):
        cell.clear(name)


def test_counters_are_signed_and_keep_their_order(cell: Cell, view: CellView):
    """A counter may fall below zero, and the same name is the same number."""
    cell.counter("topics").value = 3
    cell.counter("backlog").value = -5
    cell.counter("topics").value += 1
    assert list(view.counters.items()) == [("topics", 4), ("backlog", -5)]
    cell.counter("topics").value = -(2**63)
    assert view.counters["topics"] == -(2**63)


def test_the_thirty_third_counter_is_refused(cell: Cell, view: CellView):
    """There are 32 names; existing ones can still be used."""
    for number in range(COUNTERS_MAX):
        cell.counter(f"counter {number}").value = number
    with pytest.raises(RingError, match="at most 32 counters: name='one more'"):
        cell.counter("one more")
    assert cell.counter("counter 31").value == 31
    assert len(view.counters) == COUNTERS_MAX


@pytest.mark.parametrize("name", ["", "x" * 25, "ü" * 13, "a\0b"])
def test_a_counters_name_has_a_limit(cell: Cell, name: str):
    """A name that does not fit, or could not be read back, is refused."""
    with pytest.raises(RingError, match="1 to 24 bytes"):
        cell.counter(name)


def test_a_counters_name_may_take_24_bytes_of_any_language(cell: Cell, view: CellView):
    """The limit counts bytes, not letters."""
    cell.counter("ü" * 12).value = 1
    assert view.counters == {"ü" * 12: 1}


def test_a_long_error_keeps_its_beginning(cell: Cell, view: CellView):
    """It says what has happened; no character is cut in two."""
    cell.set_error("OSError: " + "x" + "ä" * ERROR_SIZE_MAX)
    assert view.error is not None
    assert view.error.startswith("OSError: xää")
    assert "\ufffd" not in view.error
    assert ERROR_SIZE_MAX - 1 <= len(view.error.encode()) <= ERROR_SIZE_MAX
    cell.set_error(None)
    assert view.error is None


def test_progress_that_nobody_waits_for_signals_nobody(cell: Cell, memory: RingMemory):
    """Without a waiter, a dispatcher makes no system call for progress."""
    os.eventfd_read(memory.progress_descriptors[2])  # of the slot's change of hands
    cell.set_progress(10, 1)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(memory.progress_descriptors[2])
