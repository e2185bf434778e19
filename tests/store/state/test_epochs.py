"""Epochs: which cursors of views are still valid, and how another writer is detected."""

from __future__ import annotations

import msgspec
import pytest

from reput.errors import StoreError
from reput.store.disk.sealed_file import seal
from reput.store.log.segments import Segments
from reput.store.state.epochs import MARK_COUNT_MAX, Epoch, Epochs, Mark, make_mark, mark_holds, read_epochs
from reput_hooks import Cursor
from small_store import overwrite
from written_log import WrittenLog

# The log was cut at 500, grew to 900, was cut at 700 and continues.
HISTORY = Epochs("a" * 32, [Epoch(1, 0, 10), Epoch(2, 500, 20), Epoch(3, 700, 30)])


@pytest.mark.parametrize(
    ("epoch", "offset", "difference"),
    [
        (1, 400, None),
        (1, 500, None),
        (1, 501, 500),
        (1, 800, 500),
        (2, 600, None),
        (2, 700, None),
        (2, 900, 700),
        (3, 10_000, None),
        (4, 300, 0),
        (4, 0, None),
    ],
)
def test_a_cursor_holds_up_to_the_lowest_start_of_the_epochs_since(epoch, offset, difference):
    """All epochs share the bytes before it. A cursor of an unknown epoch is never valid."""
    found = HISTORY.first_difference(Cursor("a" * 32, epoch, offset, 0), 0)
    assert (found.commit_log_offset if found else None) == difference
    if found:
        assert (found.store_id, found.epoch) == ("a" * 32, 3)


@pytest.mark.parametrize(
    ("epoch", "offset", "minimum", "difference"),
    [
        (1, 800, 400, 500),
        (1, 800, 600, 600),
        (1, 800, 800, None),
        (1, 800, 5000, None),
        (3, 10_000, 5000, None),
        (4, 300, 100, 100),
        (4, 300, 300, None),
    ],
)
def test_what_the_log_does_not_hold_any_more_it_cannot_contradict(epoch, offset, minimum, difference):
    """No view is ever truncated below the log's minimum."""
    found = HISTORY.first_difference(Cursor("a" * 32, epoch, offset, 0), minimum)
    assert (found.commit_log_offset if found else None) == difference


def test_a_history_that_cannot_be_located_is_known_nowhere():
    """An older view may hold another log's records, however little of them the log can contradict."""
    epochs = HISTORY.begin(9000, 40, located=False)
    before, since = Cursor("a" * 32, 3, 9000, 0), Cursor("a" * 32, 4, 9500, 0)
    assert HISTORY.holds(before)
    assert not epochs.holds(before)
    assert epochs.first_difference(before, 9000) is None
    assert epochs.holds(since)
    assert not HISTORY.holds(since)


def test_epochs_of_an_older_reput_are_read(tmp_path):
    """It recorded a begin of 0 for unknown positions; nothing is truncated that far any more."""
    (tmp_path / "reput").mkdir()
    older = {"store_id": "a" * 32, "history": [{"number": n, "start_offset": 0, "start_timestamp": 7} for n in (1, 2)]}
    (tmp_path / "reput" / "epochs").write_bytes(seal(older))
    epochs = read_epochs(tmp_path, "a" * 32)
    view = Cursor("a" * 32, 1, 900, 0)
    assert not epochs.holds(view)
    assert epochs.first_difference(view, 900) is None
    found = epochs.first_difference(view, 300)
    assert found is not None
    assert found.commit_log_offset == 300


def test_a_cursor_of_another_store_is_refused():
    """It is unrelated to this store."""
    with pytest.raises(StoreError, match="another store") as caught:
        HISTORY.first_difference(Cursor("b" * 32, 1, 0, 0), 0)
    assert "rebuild" in caught.value.advice


def test_a_new_epoch_forgets_the_marks_behind_its_start():
    """Those bytes are gone."""
    epochs = Epochs("a" * 32, [Epoch(1, 0, 0)], [Mark(100, 10, 1), Mark(300, 10, 2)], clean_end=300)
    begun = epochs.begin(200, 77)
    assert begun.history == [Epoch(1, 0, 0), Epoch(2, 200, 77)]
    assert begun.marks == [Mark(100, 10, 1)]
    assert begun.clean_end is None
    assert begun.epoch == 2


def test_marks_ascend_and_are_not_kept_without_bound():
    """The oldest are dropped first; a new mark at an earlier offset removes later ones."""
    epochs = Epochs("a" * 32, [Epoch(1, 0, 0)])
    for offset in range(100):
        epochs = epochs.with_mark(Mark(offset, 1, offset), clean=False)
    assert [mark.offset for mark in epochs.marks] == list(range(100 - MARK_COUNT_MAX, 100))
    epochs = epochs.with_mark(Mark(80, 1, 0), clean=True)
    assert epochs.marks[-1] == Mark(80, 1, 0)
    assert epochs.clean_end == 80


def test_epochs_are_read_as_they_were_written(tmp_path):
    """A store that reput never wrote is in its first epoch."""
    assert read_epochs(tmp_path, "c" * 32) == Epochs("c" * 32, [Epoch(1, 0, 0)])
    (tmp_path / "reput").mkdir()
    (tmp_path / "reput" / "epochs").write_bytes(HISTORY.seal())
    assert read_epochs(tmp_path, "c" * 32) == msgspec.structs.replace(HISTORY, store_id="c" * 32)


def test_a_mark_holds_as_long_as_the_bytes_before_it_are_the_same(tmp_path):
    """Up to 4 KiB, never across the begin of a segment."""
    log = WrittenLog(tmp_path / "store", 8192)
    for _ in range(20):
        log.append(b"x" * 700)
    segments = Segments(log.save() / "commitlog")
    for offset in (0, 100, 5000, 8192, 8292, log.end):
        mark = make_mark(segments, offset)
        assert mark.size == min(4096, offset if offset <= 8192 else offset - 8192)
        assert mark_holds(segments, mark)
    mark = make_mark(segments, 8192 + 6000)
    overwrite(log.store, 8192 + 1000, b"?")
    assert mark_holds(segments, mark)
    overwrite(log.store, 8192 + 3000, b"?")
    assert not mark_holds(segments, mark)


def test_a_mark_of_what_is_gone_does_not_hold(tmp_path):
    """Whether the log's head was trimmed or its end is missing."""
    log = WrittenLog(tmp_path / "store", 8192)
    for _ in range(20):
        log.append(b"x" * 700)
    segments = Segments(log.save() / "commitlog")
    first, last = make_mark(segments, 5000), make_mark(segments, log.end)
    (log.store / "commitlog" / f"{0:020d}").unlink()
    segments.refresh()
    assert not mark_holds(segments, first)
    assert mark_holds(segments, last)
    (log.store / "commitlog" / f"{8192:020d}").write_bytes(b"x" * 100)
    segments = Segments(log.store / "commitlog", 8192)
    assert not mark_holds(segments, last)
