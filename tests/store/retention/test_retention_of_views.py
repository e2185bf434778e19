"""Retention as seen by a program: readers, views and dispatchers follow the log's beginning."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import reput
from delivering import wait_until
from reput.errors import OffsetOutOfRange
from reput.store.check.check import check_store
from reput.store.reader.results import GetMessageStatus

SETTINGS = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 20,
    "delete_when": ";".join(map(str, range(24))),
    "delete_commit_log_files_interval": 1,
    "delete_file_batch_max": 1000,
    "dispatcher_flush_interval": 10,
}
SEGMENT_SIZE = 4096
TIMEOUT = 60.0
VIEWS = ("consume_queue", "index")


def open_store(path: Path, **settings: object) -> reput.Store:
    return reput.open(path, **{**SETTINGS, **settings})


def fill(store: reput.Store, count: int) -> None:
    first = store.appended
    for number in range(count):
        store.put(reput.Message("orders", b"x" * 50, keys=[f"k{first}-{number}"]))
    store.flush()


def let_segments_age(store: reput.Store) -> None:
    for path in (store.directory / "commitlog").iterdir():
        os.utime(path, (0, time.time() - 100 * 3600))


def trim(store: reput.Store) -> int:
    """Remove all removable segments, and return the log's new beginning."""
    let_segments_age(store)
    going = [fate for fate in store.clean() if fate.goes]
    begin = going[-1].segment.end
    wait_until(lambda: store.status().writer.commit_log_offset_min == begin)
    return begin


@pytest.fixture(params=["inline", pytest.param("processes", marks=pytest.mark.processes)])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_readers_and_views_follow_the_log(tmp_path, mode):
    """Removed messages are answered as by RocketMQ, and queue and index files are removed with the log."""
    path = tmp_path / "store"
    with open_store(path, mode=mode) as store:
        fill(store, 300)
        for view in VIEWS:
            store.wait_for(view, store.appended, TIMEOUT)
        assert store.get("orders", 0, 0, 1).status is GetMessageStatus.FOUND
        wait_until(lambda: store._engine.views.durable_cursors() == dict.fromkeys(VIEWS, store.appended))
        begin = trim(store)
        assert begin > store.appended - 2 * SEGMENT_SIZE
        low, high = store.queue_range("orders")
        assert high == 300
        found = store.get("orders", 0, 0, 1)
        assert (found.status, found.next_queue_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, low)
        assert [record.queue_offset for record in store.get("orders", 0, low, 100)] == list(range(low, 300))
        assert next(store.records()).queue_offset == low
        assert store.query("orders", "k0-0") == []
        assert len(store.query("orders", "k0-299")) == 1
        # Ten units in each of 30 queue files, 19 entries in each of 16 index files.
        wait_until(lambda: len(os.listdir(path / "consumequeue" / "orders" / "0")) == 30 - low // 10)
        wait_until(lambda: len(os.listdir(path / "index")) == 16 - low // 19)
        assert [row.gap_bytes for row in store.status().dispatchers] == [0, 0]
    assert check_store(path, store.settings).ok


@pytest.mark.processes
def test_another_process_s_reader_follows_the_log(tmp_path):
    """A read-only store that was opened before the log was trimmed answers like the writer's own."""
    path = tmp_path / "store"
    with open_store(path) as store:
        fill(store, 200)
        store.wait_for("consume_queue", store.appended, TIMEOUT)
        with reput.open(path, read_only=True, **SETTINGS) as reader:
            assert reader.get("orders", 0, 0, 1).status is GetMessageStatus.FOUND
            wait_until(lambda: store._engine.views.durable_cursors() == dict.fromkeys(VIEWS, store.appended))
            trim(store)
            low, _ = reader.queue_range("orders")
            assert low > 0
            assert reader.get("orders", 0, 0, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
            assert reader.get("orders", 0, low, 1).status is GetMessageStatus.FOUND


def test_a_segment_stays_until_every_enabled_dispatcher_has_it(tmp_path):
    """A newly enabled one has nothing yet, so everything waits for it."""
    path = tmp_path / "store"
    with open_store(path, mode="inline", dispatchers=["consume_queue"]) as store:
        fill(store, 200)
    with open_store(path, mode="inline") as store:
        let_segments_age(store)
        wait_until(lambda: store._engine.views.durable_cursors()["index"] == store.appended)
        assert trim(store) > 0
        assert {row.name: row.gap_bytes for row in store.status().dispatchers} == {"consume_queue": 0, "index": 0}


def test_what_a_dispatcher_lost_to_retention_is_a_gap_for_ever(tmp_path):
    """A dispatcher that was disabled while the log was trimmed continues after the gap, and its status shows it."""
    path = tmp_path / "store"
    with open_store(path, mode="inline") as store:
        fill(store, 50)
        had = store.appended
    with open_store(path, mode="inline", dispatchers=["consume_queue"]) as store:
        fill(store, 200)
        wait_until(lambda: store._engine.views.durable_cursors()["consume_queue"] == store.appended)
        begin = trim(store)
    for _ in range(2):
        with open_store(path, mode="inline") as store:
            store.wait_for("index", store.appended, TIMEOUT)
            gaps = {row.name: row.gap_bytes for row in store.status().dispatchers}
            assert gaps == {"consume_queue": 0, "index": begin - had}
            last = store.appended
    assert check_store(path, store.settings).ok
    with reput.open(path, read_only=True, **SETTINGS) as reader:
        row = next(row for row in reader.status().dispatchers if row.name == "index")
        assert (row.gap_bytes, row.durable_cursor) == (begin - had, last)


def test_whoever_walks_the_log_is_told_that_it_was_trimmed(tmp_path):
    """The missing records are out of range; nothing is skipped silently."""
    with open_store(tmp_path / "store", mode="inline") as store:
        fill(store, 300)
        walk = store.records()
        assert next(walk).queue_offset == 0
        wait_until(lambda: store._engine.views.durable_cursors() == dict.fromkeys(VIEWS, store.appended))
        trim(store)
        with pytest.raises(OffsetOutOfRange, match="offset_min"):
            list(walk)


@pytest.mark.parametrize("calls", range(3))
def test_a_query_does_not_stumble_over_an_index_file_that_goes(calls, tmp_path, monkeypatch):
    """The oldest file is removed after the names were listed; the key in the newest is still found."""
    path = tmp_path / "store"
    with open_store(path, mode="inline") as store:
        fill(store, 60)
        store.wait_for("index", store.appended, TIMEOUT)
    look, seen = os.stat, []

    def stat_and_remove(name: object, *more: object, **named: object) -> os.stat_result:
        if str(name).startswith(str(path / "index" / "")) and len(seen) <= calls:
            seen.append(name)
            if len(seen) == calls + 1:
                min((path / "index").iterdir()).unlink()
        return look(name, *more, **named)

    with reput.open(path, read_only=True, **SETTINGS) as reader:
        monkeypatch.setattr(os, "stat", stat_and_remove)
        found = reader.query("orders", "k0-59")
        monkeypatch.undo()
        assert [record.queue_offset for record in found] == [59]
    assert seen
