"""Ranges of the log: boundaries of segments, damage, and records deleted by retention."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import reput.table
from reput.errors import DamagedStore, NotAStore, OffsetOutOfRange
from reput.store.disk.sealed_file import seal
from reput.store.recovery.damage_list import DamagedRange as Accepted
from reput.store.recovery.damage_list import DamageList
from reput.table import LogTable, table_options
from written_log import START_MS, WrittenLog

EMPTY_RECORD_SIZE = 91 + len("orders")


def offsets_of(store: Path, **options: object) -> list[int]:
    """Return the commit-log offset of every row."""
    offsets: list[int] = reput.table.read(store, columns=["commitLogOffset"], **options)["commitLogOffset"].to_pylist()
    return offsets


def overwrite(store: Path, at: int, data: bytes, segment_size: int = 4096) -> None:
    """Overwrite the log's bytes at a commit-log offset with *data*."""
    with (store / "commitlog" / f"{at // segment_size * segment_size:020d}").open("r+b") as file:
        file.seek(at % segment_size)
        file.write(data)


def filled_log(directory: Path, count: int = 60) -> WrittenLog:
    """Return a log of several segments."""
    log = WrittenLog(directory)
    for number in range(count):
        log.append(b"%d" % number * 50)
    log.save()
    return log


def test_blanks_of_every_size_end_a_segment(tmp_path: Path):
    """A segment ends with a blank of at least eight bytes, which is not a row; the next one continues."""
    for blank_size in (8, 9, 96):
        log = WrittenLog(tmp_path / str(blank_size))
        log.append(b"x" * (4096 - EMPTY_RECORD_SIZE - blank_size), properties=b"")
        log.append(b"next")
        assert log.offsets == [0, 4096]
        assert offsets_of(log.save()) == [0, 4096]


def test_a_record_that_fills_its_segment_is_followed_by_the_next(tmp_path: Path):
    """RocketMQ leaves eight bytes; a segment without a blank is still read."""
    log = WrittenLog(tmp_path)
    log.append(b"x" * (4096 - EMPTY_RECORD_SIZE - 8), properties=b"")
    whole = WrittenLog(tmp_path)
    whole.data = bytearray(log.data)
    whole.data[:4] = (4096).to_bytes(4, "big")
    whole.data[84:88] = (4096 - EMPTY_RECORD_SIZE).to_bytes(4, "big")
    whole.data[88 : 88 + 4096 - EMPTY_RECORD_SIZE] = b"y" * (4096 - EMPTY_RECORD_SIZE)
    whole.data[88 + 4096 - EMPTY_RECORD_SIZE :] = b"\x06orders\x00\x00"
    whole.offsets = [0]
    whole.append(b"next")
    assert offsets_of(whole.save(), verify_crc="none", until=whole.end) == [0, 4096]


def test_a_segment_made_ahead_holds_nothing_yet(tmp_path: Path):
    """An all-zero last segment, or an empty one, adds no rows."""
    log = filled_log(tmp_path)
    following = (log.end // 4096 + 1) * 4096
    (log.store / "commitlog" / f"{following:020d}").write_bytes(bytes(4096))
    assert offsets_of(log.store) == log.offsets
    (log.store / "commitlog" / f"{following:020d}").write_bytes(b"")
    assert offsets_of(log.store) == log.offsets


def test_a_store_with_an_empty_segment_has_no_rows(tmp_path: Path):
    """A store without messages gives an empty table with the full schema."""
    store = WrittenLog(tmp_path).save()
    table = reput.table.read(store)
    assert table.num_rows == 0
    assert table.schema == LogTable(store).schema


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path):
    """Neither an absent directory nor one without a commit log is a store; nothing is created there."""
    with pytest.raises(NotAStore):
        reput.table.read(tmp_path / "absent")
    with pytest.raises(NotAStore):
        reput.table.read(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damage_in_the_middle_stops_the_read_and_is_named(tmp_path: Path):
    """Bytes that are not a record, in the middle of the log, are never skipped silently."""
    log = filled_log(tmp_path)
    overwrite(log.store, log.offsets[5] + 4, b"\xff\xff\xff\xff")
    with pytest.raises(DamagedStore, match=f"from={log.offsets[5]} until={log.offsets[6]} "):
        reput.table.read(log.store)


def test_reported_damage_is_left_out_and_everything_else_is_there(tmp_path: Path):
    """With ``on_corruption="report"`` the range is kept for the caller, and the read continues after it."""
    log = filled_log(tmp_path)
    for number in (5, 6, 40):
        overwrite(log.store, log.offsets[number] + 4, b"\xff\xff\xff\xff")
    table = LogTable(log.store, table_options(on_corruption="report"))
    rows = [row for batch in table.batches(*table.bounds()) for row in batch["commitLogOffset"].to_pylist()]
    assert rows == [at for number, at in enumerate(log.offsets) if number not in (5, 6, 40)]
    ends = [(damaged.begin, damaged.end) for damaged in table.damage]
    assert ends == [(log.offsets[5], log.offsets[7]), (log.offsets[40], log.offsets[41])]


def test_a_body_that_changed_on_disk_stops_the_read(tmp_path: Path):
    """By default every body is compared with its CRC, so that only the sent bytes are returned."""
    log = filled_log(tmp_path)
    overwrite(log.store, log.offsets[5] + 90, b"changed")
    with pytest.raises(
        DamagedStore, match=f"from={log.offsets[5]} until={log.offsets[6]} reason='a CRC does not match'"
    ):
        reput.table.read(log.store)
    with pytest.raises(DamagedStore):
        reput.table.scan(log.store, columns=["topic"]).read_all()
    rows = offsets_of(log.store, on_corruption="report")
    assert rows == [at for at in log.offsets if at != log.offsets[5]]
    assert offsets_of(log.store, verify_crc="none") == log.offsets


@pytest.mark.slow
@pytest.mark.newest_python
def test_accepted_damage_is_no_row_whatever_the_splits_and_checks(tmp_path: Path):
    """A range that an operator accepted stays out, even if its bytes look like a record or a split begins in it."""
    log = filled_log(tmp_path)
    begin, until = log.offsets[5], log.offsets[8]
    (log.store / "reput").mkdir()
    (log.store / "reput" / "damage").write_bytes(seal(DamageList([Accepted(begin, until, "test", accepted=True)])))
    expected = [at for at in log.offsets if not begin <= at < until]
    overwrite(log.store, begin + 90, b"changed")
    for verify_crc in ("none", "all"):
        assert offsets_of(log.store, verify_crc=verify_crc) == expected
        table = LogTable(log.store, table_options(verify_crc=verify_crc, columns=("commitLogOffset",)))
        for split_bytes in (1, 300):
            splits = table.splits(split_bytes=split_bytes)
            rows = [row for split in splits for batch in table.batches(split.begin, split.until) for row in batch[0]]
            assert [row.as_py() for row in rows] == expected


def test_a_time_is_found_over_damage_that_is_reported(tmp_path: Path):
    """The search for a time skips the damage that the read will report, once."""
    log = filled_log(tmp_path)
    overwrite(log.store, log.offsets[5] + 4, b"\xff\xff\xff\xff")
    begin = START_MS + 10 + 60_000
    with pytest.raises(DamagedStore):
        reput.table.read(log.store, store_timestamp_min=begin)
    table = LogTable(log.store, table_options(on_corruption="report", store_timestamp_min=START_MS + 2))
    assert table.offset_of_time(START_MS + 10, 0, log.end) == log.offsets[10]
    assert table.damage == []
    assert sum(batch.num_rows for batch in table.batches(*table.bounds())) == len(log.offsets) - 3
    assert len(table.damage) == 1


def test_a_disk_that_cannot_read_is_damage_with_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error has the segment and the offset."""
    log = filled_log(tmp_path)

    def refuse(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    table = LogTable(log.store)
    bounds = table.bounds()
    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(DamagedStore, match="the disk cannot read the log: commit_log_offset=0 "):
        list(table.batches(*bounds))


def test_a_missing_segment_is_damage(tmp_path: Path):
    """The error has both ends of the gap between segments."""
    log = filled_log(tmp_path)
    (log.store / "commitlog" / f"{4096:020d}").unlink()
    with pytest.raises(DamagedStore, match="from=4096 until=8192 "):
        reput.table.read(log.store)


def test_a_segment_that_was_cut_short_is_damage(tmp_path: Path):
    """If a file is shorter than its segment, and the log continues, the damage begins after its last whole record."""
    log = filled_log(tmp_path)
    path = log.store / "commitlog" / f"{4096:020d}"
    path.write_bytes(path.read_bytes()[:1000])
    first_lost = next(at for number, at in enumerate(log.offsets) if at >= 4096 and log.offsets[number + 1] > 5096)
    with pytest.raises(DamagedStore, match=f"from={first_lost} until=8192 "):
        reput.table.read(log.store)


def test_an_offset_below_the_log_is_data_loss(tmp_path: Path):
    """If retention deleted the requested records, the read fails, or begins at the log's beginning and says so."""
    log = filled_log(tmp_path)
    (log.store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(OffsetOutOfRange, match="commit_log_offset=0 offset_min=4096"):
        reput.table.read(log.store, begin=0)
    rows = offsets_of(log.store, begin=0, fail_on_data_loss=False)
    assert rows == [at for at in log.offsets if at >= 4096] == offsets_of(log.store)


def test_a_range_begins_at_the_first_record_from_its_offset_on(tmp_path: Path):
    """An offset within a record means the next one; the end is exclusive."""
    log = filled_log(tmp_path)
    assert offsets_of(log.store, begin=log.offsets[7] - 1, until=log.offsets[9]) == log.offsets[7:9]
    assert offsets_of(log.store, begin=log.end) == []
    assert offsets_of(log.store, begin=10 * log.end) == []
