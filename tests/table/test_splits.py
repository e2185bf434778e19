"""Splits within segments, even if bodies look like records."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from reput.store.log.segments import SegmentFile, Segments
from reput.store.record.record import encode_record
from reput.store.recovery.log_walk import FIRST_CHUNK_SIZE
from reput.table import LogTable, Split, table_options
from reput.table.splits import next_record, plan_splits
from written_log import HOST, WrittenLog

MAGIC = bytes.fromhex("DAA320A7")


def copy_of_a_record(own_offset: int) -> bytes:
    """Return a whole record whose own offset is *own_offset*."""
    return encode_record(
        topic=b"false",
        queue_id=0,
        body=b"body",
        properties=b"",
        flag=0,
        queue_offset=0,
        commit_log_offset=own_offset,
        sys_flag=0,
        born_timestamp=0,
        born_host=HOST,
        store_timestamp=0,
        store_host=HOST,
    )


@pytest.mark.slow
@pytest.mark.newest_python
def test_bodies_full_of_magic_and_of_records_do_not_mislead_a_cut(tmp_path: Path):
    """A magic code within a body, or a copy of a record, is not a beginning: its own offset differs."""
    log = WrittenLog(tmp_path)
    for number in range(40):
        log.append((MAGIC * 40, copy_of_a_record(0), copy_of_a_record(77 + number), b"plain")[number % 4])
    table = LogTable(log.save(), table_options(columns=("commitLogOffset",)))
    for split_bytes in range(1, 700, 23):
        splits = table.splits(split_bytes=split_bytes)
        assert {split.begin for split in splits} <= set(log.offsets)
        batches = [batch for split in splits for batch in table.batches(split.begin, split.until)]
        found = pa.Table.from_batches(batches, table.schema)
        assert found["commitLogOffset"].to_pylist() == log.offsets


def test_an_empty_range_has_no_splits(tmp_path: Path):
    """If there is nothing to read, there is no split, instead of an empty one."""
    store = WrittenLog(tmp_path).save()
    assert LogTable(store).splits() == []
    assert plan_splits(Segments(store / "commitlog"), 5, 5, 1) == []


@pytest.mark.parametrize("count", [1, 2, 7])
def test_at_least_as_many_splits_as_asked(tmp_path: Path, count: int):
    """A minimum number of parts makes them smaller than their size in bytes would."""
    log = WrittenLog(tmp_path)
    for _ in range(100):
        log.append()
    splits = LogTable(log.save()).splits(split_count_min=count)
    assert len(splits) >= count


def test_a_cut_behind_the_last_record_makes_no_further_split(tmp_path: Path):
    """The last records may be longer than a split."""
    log = WrittenLog(tmp_path)
    log.append(b"")
    log.append(b"x" * 3000)
    assert LogTable(log.save()).splits(split_bytes=1000) == [Split(0, log.end)]


@pytest.mark.parametrize("place", range(FIRST_CHUNK_SIZE - 12, FIRST_CHUNK_SIZE + 3))
def test_a_record_is_found_across_the_parts_that_are_searched(tmp_path: Path, place: int):
    """Whichever of its bytes is the last of the first part."""
    log = WrittenLog(tmp_path, 1 << 20)
    empty = log.append(b"", properties=b"")
    first = log.append(b"x" * (place - (log.end - empty)), properties=b"")
    second = log.append()
    segments = Segments(log.save() / "commitlog")
    assert second - first == place
    assert next_record(segments, first + 1, log.end) == second


def test_cuts_read_little_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A long log is planned without reading a good part of it."""
    log = WrittenLog(tmp_path, 16 << 20)
    for _ in range(200):
        log.append(bytes(40 << 10))
    table = LogTable(log.save())
    begin, until = table.bounds()
    sizes = []
    read = SegmentFile.read

    def counted(self: SegmentFile, commit_log_offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(self, commit_log_offset, size)

    monkeypatch.setattr(SegmentFile, "read", counted)
    splits = table.splits(begin, until, split_bytes=1 << 20)
    assert len(splits) == 8
    assert sum(sizes) < (until - begin) // 4
