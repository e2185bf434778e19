"""Marks, by which a lake or a checkpoint recognises the log that it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store.log.segments import Segments
from reput.store.state.epochs import Epoch, Epochs
from reput.table.log_marks import (
    MARK_COUNT_MAX,
    LogMark,
    MarkComparison,
    compare_marks,
    find_parting,
    joined_marks,
    last_marks,
)
from reput_hooks import Cursor
from small_store import overwrite
from written_log import START_MS, WrittenLog

V6_FLAG = 0x10
V6_HOST = bytes(range(16)) + (10911).to_bytes(4, "big")


def written(store: Path, count: int = 60, **fields: object) -> tuple[WrittenLog, Segments]:
    """Return a log of *count* records of 300 bytes in segments of 4 KiB."""
    log = WrittenLog(store)
    for number in range(count):
        log.append(b"%d" % number * 100, **fields)
    return log, Segments(log.save() / "commitlog")


def marks_of(log: WrittenLog, segments: Segments) -> list[LogMark]:
    return last_marks(segments, log.begin, log.end)


@pytest.mark.parametrize("fields", [{}, {"born_host": V6_HOST, "sys_flag": V6_FLAG}], ids=["IPv4", "IPv6"])
def test_the_last_record_of_each_segment_is_a_mark(tmp_path, fields):
    """All of them are found in the log again."""
    log, segments = written(tmp_path, **fields)
    marks = marks_of(log, segments)
    last = {offset // 4096: offset for offset in log.offsets}
    assert [mark.commit_log_offset for mark in marks] == list(last.values())
    assert marks[-1].end == log.end
    assert [mark.store_timestamp for mark in marks] == [START_MS + log.offsets.index(at) for at in last.values()]
    compared = compare_marks(segments, log.end, marks)
    assert compared.agrees
    assert (compared.held, compared.held_end, compared.held_count) == (marks[-1], log.end, len(marks))


def test_marks_of_a_part_end_with_the_part(tmp_path):
    """A range without a record has none."""
    log, segments = written(tmp_path)
    begin, until = log.offsets[3], log.offsets[5]
    assert [mark.commit_log_offset for mark in last_marks(segments, begin, until)] == [log.offsets[4]]
    assert last_marks(segments, log.end, log.end) == []


def test_a_record_longer_than_what_is_looked_at_first_is_found(tmp_path):
    """The backward search grows until a record begins in it."""
    log = WrittenLog(tmp_path, 1 << 20)
    log.append(b"small")
    log.append(bytes(300_000))
    segments = Segments(log.save() / "commitlog")
    assert [mark.commit_log_offset for mark in marks_of(log, segments)] == [log.offsets[1]]


def test_what_retention_took_speaks_neither_for_nor_against(tmp_path):
    """The remaining marks decide."""
    log, segments = written(tmp_path)
    marks = marks_of(log, segments)
    for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
        path.unlink()
    segments.refresh()
    compared = compare_marks(segments, log.end, marks)
    assert compared.agrees
    assert (compared.gone_count, compared.held_count) == (2, len(marks) - 2)
    assert not compare_marks(segments, log.end, marks[:2]).agrees
    assert compare_marks(segments, log.end, marks[:2]).refuted is None


def test_another_log_refutes_the_marks(tmp_path):
    """There are other records at those places, or none; the result counts them."""
    log, segments = written(tmp_path / "one")
    other, others = written(tmp_path / "other", born_timestamp=1, store_timestamp=START_MS - 5)
    shifted = WrittenLog(tmp_path / "shifted")
    for number in range(60):
        shifted.append(b"%d" % number * 90)
    shifted.save()
    for found in (others, Segments(tmp_path / "shifted" / "commitlog")):
        compared = compare_marks(found, other.end, marks_of(log, segments))
        assert not compared.agrees
        assert compared.refuted == marks_of(log, segments)[0]
        assert f"marks_held=0 marks_refuted={compared.refuted_count}" in str(compared)


def test_a_log_that_was_written_anew_from_a_place_on_is_refuted_there(tmp_path):
    """The histories diverge after the last mark that holds."""
    log, segments = written(tmp_path / "one")
    marks = marks_of(log, segments)
    other = WrittenLog(tmp_path / "other")
    for number in range(70):
        other.append((b"%d" if number < 30 else b"=%d") % number * 100)
    others = Segments(other.save() / "commitlog")
    compared = compare_marks(others, other.end, marks)
    assert not compared.agrees
    assert compared.held is not None
    assert compared.refuted is not None
    assert compared.held.commit_log_offset < other.offsets[30] <= compared.refuted.commit_log_offset


def test_a_refuted_mark_before_a_held_one_is_damage(tmp_path):
    """One record's bytes changed on disk; the log is still the same."""
    log, segments = written(tmp_path)
    marks = marks_of(log, segments)
    path = tmp_path / "commitlog" / f"{0:020d}"
    other = WrittenLog(tmp_path / "other")
    for number in range(60):
        other.append(b"%d" % number * 100, store_timestamp=START_MS - 5)
    path.write_bytes(other.data[:4096])
    compared = compare_marks(segments, log.end, marks)
    assert compared.agrees
    assert (compared.refuted_count, compared.damaged_count) == (1, 0)


@pytest.mark.parametrize("size", [300, 200_000], ids=["short records", "longer than what is looked at first"])
@pytest.mark.parametrize("at", [0, 4, 8, 28], ids=["size", "magic code", "CRC", "place"])
def test_a_damaged_header_is_no_other_history(tmp_path, at, size):
    """The bytes there are unreadable, and the log continues after them, which proves nothing."""
    log = WrittenLog(tmp_path, 1 << 20)
    for number in range(14):
        log.append(b"%d" % (number % 10) * size)
    segments = Segments(log.save() / "commitlog")
    marks = last_marks(segments, 0, log.offsets[3])
    overwrite(tmp_path, marks[-1].commit_log_offset + at, b"\x7f\x01")
    compared = compare_marks(segments, log.end, marks)
    assert (compared.refuted, compared.damaged_count) == (None, 1)
    assert "marks_damaged=1" in str(compared)


@pytest.mark.parametrize("size", [300, 200_000], ids=["short records", "longer than what is looked at first"])
def test_a_record_that_covers_a_mark_refutes_it(tmp_path, size):
    """No record begins at its place, but another history covers it."""
    log = WrittenLog(tmp_path, 1 << 20)
    for number in range(14):
        log.append(b"%d" % (number % 10) * size)
    segments = Segments(log.save() / "commitlog")
    for at in (log.offsets[2] + 50, log.offsets[3] - 50):
        assert compare_marks(segments, log.end, [LogMark(at, 100, START_MS, 1)]).refuted_count == 1


@pytest.mark.parametrize("left", [150, 70])
def test_the_unused_rest_of_a_segment_refutes_a_mark(tmp_path, left):
    """Another history ended its segment there, before the marked record."""
    log = WrittenLog(tmp_path)
    for number in range(20):
        log.append(b"%d" % (number % 10) * 300)
    segments = Segments(log.save() / "commitlog")
    assert max(offset for offset in log.offsets if offset < 4096) + 450 < 4096 - left
    assert compare_marks(segments, log.end, [LogMark(4096 - left, 100, START_MS, 1)]).refuted_count == 1


def test_a_shorter_log_refutes_nothing(tmp_path):
    """Marks beyond its end are ahead of it."""
    log, segments = written(tmp_path)
    marks = marks_of(log, segments)
    compared = compare_marks(segments, marks[-1].commit_log_offset, marks)
    assert compared.agrees
    assert compared.ahead == marks[-1]


@pytest.mark.parametrize(
    ("starts", "held_end", "refuted_at", "parting"),
    [
        ([500], 400, None, 500),
        ([500], 800, None, None),
        ([500], 600, 700, 600),
        ([500, 700], 600, None, 700),
        ([500, 600], 600, None, 600),
        ([500, 900], 800, None, None),
        # An older reput wrote 0 for an unknown offset.
        ([0], 800, None, None),
        ([0], 600, 700, 600),
    ],
)
def test_a_mark_that_is_held_speaks_for_what_lies_below_it(starts, held_end, refuted_at, parting):
    """Whatever epoch began there; a later epoch that began above it still diverges."""
    epochs = Epochs("a" * 32, [Epoch(1, 0, 0), *(Epoch(2 + n, start, 0) for n, start in enumerate(starts))])
    refuted = None if refuted_at is None else LogMark(refuted_at, 100, 0, 0)
    compared = MarkComparison(LogMark(held_end - 100, 100, 0, 0), refuted)
    assert find_parting(epochs, Cursor("a" * 32, 1, 900, 0), compared, 0) == parting


def test_the_newest_marks_are_kept(tmp_path):
    """One per segment, up to a limit: retention removes the oldest first."""
    first = [LogMark(at * 4096, 100, 0, 0) for at in range(40)]
    second = [LogMark(39 * 4096 + 200, 100, 0, 0), LogMark(40 * 4096, 100, 0, 0)]
    found = joined_marks(first, second, 4096)
    assert len(found) == MARK_COUNT_MAX
    assert found[-2:] == second
