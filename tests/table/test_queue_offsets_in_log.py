"""Where queue offsets lie in the log, and which of them retention has deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

import reput
from reput.errors import OffsetOutOfRange
from reput.table import LogTable, table_options
from reput.table.queue_offsets_in_log import QueueNumbers, find_queue_offsets, require_queue_offsets
from table.test_asked_names import filled_log
from written_log import WrittenLog


def find(store: Path, topic: str, *asked: int, **options: object) -> QueueNumbers:
    """Return the numbers of queue 0 of a topic; refuse the first asked offset if its record was deleted."""
    table, queue = LogTable(store, table_options(**options)), (topic, 0)
    found = find_queue_offsets(table, {queue: asked}, table.offset_min, table.find_end())
    require_queue_offsets(table, {queue: asked[0]}, found)
    return found[queue]


def test_a_queue_offset_has_its_record_s_place(tmp_path: Path):
    """One that the queue has not reached has none; a queue without records has no numbers."""
    log = filled_log(tmp_path)
    orders = log.offsets[1::2]
    found = find(log.store, "orders", 0, 17, 29, 30)
    assert (found.first, found.last) == (0, 29)
    assert found.places == {0: orders[0], 17: orders[17], 29: orders[29]}
    assert find(log.store, "orders", 1000).places == {}
    absent = find(log.store, "absent", 0)
    assert (absent.first, absent.last, absent.places) == (None, None, {})


def test_a_queue_offset_is_that_of_the_present_topic(tmp_path: Path):
    """A topic that was created again counts from 0; the deleted topic's records are still in the log."""
    log = WrittenLog(tmp_path)
    for count in (50, 3, 40):
        log.queue_offsets.clear()
        for _ in range(count):
            log.append(b"x" * 90)
            log.append(b"x" * 90, topic=b"others", queue_offset=len(log.offsets) // 2)
    log.save()
    present = log.offsets[2 * 53 :: 2]
    found = find(log.store, "orders", 7, 39, 40, 49)
    assert (found.first, found.last) == (0, 39)
    assert found.places == {7: present[7], 39: present[39]}
    assert find(log.store, "others", 60).places == {60: log.offsets[2 * 60 + 1]}


def test_queue_offsets_that_retention_took_are_an_error(tmp_path: Path):
    """The error has the queue and its first offset; the rest can be read if losses are accepted."""
    log = filled_log(tmp_path)
    (log.store / "commitlog" / f"{0:020d}").unlink()
    first = sum(at < 4096 for at in log.offsets[1::2])
    assert find(log.store, "orders", first).first == first
    with pytest.raises(OffsetOutOfRange, match=f"topic=orders queue_id=0 queue_offset=3 queue_offset_min={first}"):
        find(log.store, "orders", 3)
    find(log.store, "orders", 3, fail_on_data_loss=False)
    with pytest.raises(OffsetOutOfRange, match="topic=refunds queue_id=0 queue_offset=1 commit_log_offset_min=4096"):
        find(log.store, "refunds", 1)


def test_a_queue_that_was_read_to_its_end_may_lose_all_its_records(tmp_path: Path):
    """reput's counts show that nothing after the requested offset was removed."""
    with reput.open(tmp_path, dispatchers=[], mode="inline", mapped_file_size_commit_log=4096) as store:
        store.put_batch([reput.Message("quiet", b"x" * 100) for _ in range(3)])
        store.put_batch([reput.Message("orders", b"x" * 100) for _ in range(60)])
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    find(tmp_path, "quiet", 3)
    with pytest.raises(OffsetOutOfRange, match="topic=quiet queue_id=0 queue_offset=2"):
        find(tmp_path, "quiet", 2)
