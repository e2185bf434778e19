"""The transient pool: puts go to memory first, and are visible only once they are in the file."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import reput
from delivering import wait_until
from reput.errors import DamagedStore, StoreBusy, StoreClosed, StoreFull, StoreReadOnly
from reput.store.disk.files import Buffer, Mapping
from reput.store.record.message import Message
from reput.store.writer.publisher import Publisher
from small_store import (
    SEGMENT_SIZE,
    FailingFiles,
    UnforcedFiles,
    UnforcedMapping,
    drop,
    log_bytes,
    message_of_size,
    records,
)
from small_store import open_store as open_small

# Prevents commits: the flusher commits what it forces, for example a full segment.
NEVER = {
    "commit_interval_commit_log": 3_600_000,
    "commit_commit_log_least_pages": 100,
    "flush_interval_commit_log": 3_600_000,
}


def open_store(directory: Path, **settings: object):
    """Open a store with a pool that commits on request."""
    return open_small(directory, transient_store_pool_enable=True, **{"files": UnforcedFiles(), **NEVER, **settings})


class Told(Publisher):
    """Records notifications of the log's growth and of deletions."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.deleted: list[str] = []

    def publish(self, records):
        self.ends.append(records.end)

    def delete_topic(self, topic, appended, ordinal):
        self.deleted.append(topic)


def test_a_message_is_in_the_file_and_told_of_once_it_is_committed(tmp_path):
    """The put has returned long before."""
    opened = open_store(tmp_path / "store")
    told = Told()
    opened.attach(told, needs_properties=False)
    result = opened.put(Message("orders", b"one"))
    opened.delete_topic("orders")
    assert (opened.appended, opened.committed, told.ends, told.deleted) == (result.next_commit_log_offset, 0, [], [])
    assert not log_bytes(tmp_path / "store").strip(b"\0")
    opened.durability.commit_service.commit()
    assert opened.committed == opened.appended
    assert told.ends == [result.next_commit_log_offset]
    assert told.deleted == ["orders"]
    assert [record.body for record in records(tmp_path / "store")] == [b"one"]
    opened.close(views_complete=True)


def test_the_writer_itself_finds_what_is_in_no_file_yet(tmp_path):
    """By the offset of the put, in any segment; once committed, it is in the file."""
    opened = open_store(tmp_path / "store")
    results = [opened.appender.append(message_of_size(SEGMENT_SIZE // 3)) for _ in range(4)]
    assert results[-1].commit_log_offset > SEGMENT_SIZE
    for result in results:
        record = opened.appender.peek(result.commit_log_offset)
        assert record is not None
        assert (record.commit_log_offset, record.record_size) == (result.commit_log_offset, result.record_size)
    with pytest.raises(DamagedStore):
        opened.appender.peek(results[0].commit_log_offset + 1)
    assert opened.appender.peek(opened.appended) is None
    opened.commit_log.commit()
    assert [opened.appender.peek(result.commit_log_offset) for result in results] == [None] * 4
    opened.close(views_complete=True)


def test_a_flush_commits_what_it_forces(tmp_path):
    """Readers of durable bytes need not wait for the committer first."""
    opened = open_store(tmp_path / "store")
    told = Told()
    opened.attach(told, needs_properties=False)
    end = opened.put(Message("orders", b"one")).next_commit_log_offset
    assert opened.flush() == end
    assert told.ends == [end]
    assert len(records(tmp_path / "store")) == 1
    opened.close(views_complete=True)


def test_enough_pages_or_enough_time_have_it_committed(tmp_path):
    """As set by commit_commit_log_least_pages and commit_commit_log_thorough_interval."""
    opened = open_store(tmp_path / "store", commit_commit_log_least_pages=2, commit_commit_log_thorough_interval=200)
    clock = opened.clock
    clock.monotonic = lambda: seconds
    service = opened.durability.commit_service
    seconds = service.last_commit
    service.interval = 3600
    opened.put(message_of_size(100))
    service.do_round()
    assert opened.committed == 0
    seconds += 0.25
    service.do_round()
    assert opened.committed == 100
    for _ in range(5):
        opened.put(message_of_size(1900))
    deadline = time.monotonic() + 60
    while opened.committed != opened.appended and time.monotonic() < deadline:
        service.do_round()
    assert opened.committed == opened.appended
    opened.close(views_complete=True)


def test_a_killed_writer_loses_what_was_not_committed_and_nothing_else(tmp_path):
    """The log ends where the files do; the next put continues there."""
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"committed"))
    opened.durability.commit_service.commit()
    opened.put(Message("orders", b"lost"))
    drop(opened)
    opened = open_small(tmp_path / "store")
    result = opened.put(Message("orders", b"next"))
    assert result.queue_offset == 1
    opened.close(views_complete=True)
    assert [record.body for record in records(tmp_path / "store")] == [b"committed", b"next"]


def test_a_close_commits_and_loses_nothing(tmp_path):
    """Over more segments than there are buffers. The log has the same bytes as without a pool."""
    for name, pool in (("pooled", True), ("plain", False)):
        opened = open_small(
            tmp_path / name, files=UnforcedFiles(), transient_store_pool_enable=pool, transient_store_pool_size=1
        )
        for number in range(40):
            opened.put(message_of_size(700 + 13 * number))
        opened.close(views_complete=True)
        assert not (tmp_path / name / "abort").exists()
    assert log_bytes(tmp_path / "pooled") == log_bytes(tmp_path / "plain")


def test_whoever_followed_the_log_may_stop_after_its_close(tmp_path):
    """The publisher changes then, for which the records of the previous one are committed; the buffers are gone."""
    opened = open_store(tmp_path)
    opened.put(message_of_size(700))
    opened.close(views_complete=True)
    told = Told()
    opened.attach(told, needs_properties=False)
    assert told.ends == []
    assert opened.committed == opened.appended


def test_a_put_that_finds_no_buffer_commits_to_have_one(tmp_path):
    """The pool never has more than its number of buffers, however many segments are filled."""
    opened = open_store(tmp_path / "store", transient_store_pool_size=3)
    for _ in range(12):
        opened.put(message_of_size(3000))
    pool = opened.commit_log.pool
    assert opened.committed > 0
    assert pool.not_made == 0
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 12


def test_a_put_that_finds_no_buffer_is_refused_where_it_is_to_fail_fast(tmp_path):
    """Nothing is stored; after a commit the same put succeeds."""
    opened = open_store(tmp_path / "store", transient_store_pool_size=2, fast_fail_if_no_buffer_in_store_pool=True)
    opened.put(message_of_size(3000))
    opened.put(message_of_size(3000))
    with pytest.raises(StoreBusy, match=r"transient pool wait.*CREATE_MAPEDFILE_FAILED committed=0"):
        opened.put(message_of_size(3000))
    opened.durability.commit_service.commit()
    assert opened.put(message_of_size(3000)).commit_log_offset == 2 * SEGMENT_SIZE
    opened.close(views_complete=True)
    assert [record.queue_offset for record in records(tmp_path / "store")] == [0, 1, 2]


def test_a_segment_that_is_made_again_takes_no_second_buffer(tmp_path):
    """A RocketMQ that is started on a store in use removes the empty segment, here after a roll on a full disk."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files, transient_store_pool_size=2)
    opened.put(message_of_size(3000))
    files.reserve_until = 0
    with pytest.raises(StoreFull):
        opened.put(message_of_size(3000))
    files.reserve_until = 1 << 62
    (tmp_path / "store" / "commitlog" / f"{SEGMENT_SIZE:020}").unlink()
    for _ in range(4):
        opened.put(message_of_size(3000))
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 5


class UnwritableMapping(UnforcedMapping):
    """A mapping whose file cannot be written."""

    def write(self, data, at):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class UnwritableFiles(UnforcedFiles):
    """Files that can be mapped but not written."""

    def map(self, path: Path, size: int) -> Mapping:
        return UnwritableMapping(path, size)


def test_a_commit_that_the_disk_refuses_makes_the_store_read_only(tmp_path):
    """It has the reason, no put is published, and the commit is not retried."""
    opened = open_store(tmp_path / "store", files=UnwritableFiles())
    told = Told()
    opened.attach(told, needs_properties=False)
    opened.put(Message("orders", b"one"))
    opened.durability.commit_service.commit()
    deadline = time.monotonic() + 60
    while opened.state == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(StoreReadOnly, match=r"could not be written from the transient pool.*Input/output error"):
        opened.put(Message("orders", b"two"))
    assert told.ends == []
    opened.close(views_complete=True)
    assert (tmp_path / "store" / "abort").exists()


def test_a_new_publisher_is_told_of_what_is_put_from_then_on(tmp_path):
    """Earlier puts go to the previous publisher, even if they are not committed yet."""
    opened = open_store(tmp_path / "store")
    before, after = Told(), Told()
    opened.attach(before, needs_properties=False)
    first = opened.put(Message("orders", b"one")).next_commit_log_offset
    opened.attach(after, needs_properties=True)
    second = opened.put(Message("orders", b"two")).next_commit_log_offset
    opened.flush()
    assert (before.ends, after.ends) == ([first], [second])
    opened.close(views_complete=True)


def test_there_is_no_pool_with_sync_flush(tmp_path, caplog):
    """RocketMQ 4 has none then either; the log says so."""
    with caplog.at_level(logging.WARNING):
        opened = open_small(tmp_path / "store", transient_store_pool_enable=True, flush_disk_type="SYNC_FLUSH")
    assert opened.durability.commit_service is None
    assert "transient_store_pool_enable has no effect" in caplog.text
    opened.close(views_complete=True)


def test_a_buffer_that_may_not_be_locked_serves_all_the_same(tmp_path, caplog, monkeypatch):
    """The operator gets a log line."""

    def refuse(buffer: Buffer) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(Buffer, "lock", refuse)
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"one"))
    opened.close(views_complete=True)
    assert "a buffer of the transient pool is not locked" in caplog.text
    assert len(records(tmp_path / "store")) == 1


def test_readers_and_views_see_what_is_committed(tmp_path):
    """A message can be read, in this and other processes, once it was committed; then the views follow."""
    path = tmp_path / "store"
    with reput.open(path, transient_store_pool_enable=True, mode="inline", **NEVER) as store:
        result = store.put(reput.Message("orders", b"one"))
        assert store.appended == result.next_commit_log_offset
        assert store.status().writer.appended == 0
        assert list(store.records()) == []
        assert store.get("orders", 0, 0).status != "FOUND"
        store._engine.writer.durability.commit_service.commit()
        store.wait_for("consume_queue", result.next_commit_log_offset, 60.0)
        assert [record.body for record in store.records()] == [b"one"]
        assert [record.body for record in store.get("orders", 0, 0)] == [b"one"]
        store.put(reput.Message("orders", b"two"))
    with reput.open(path, read_only=True) as store:
        assert [record.body for record in store.get("orders", 0, 0)] == [b"one", b"two"]


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_process_that_is_killed_keeps_what_it_had_committed(tmp_path):
    """With the defaults that is everything except the last fifth of a second."""
    program = (
        "import os, sys, time, reput\n"
        "store = reput.open(sys.argv[1], transient_store_pool_enable=True, mode='inline')\n"
        "end = store.put(reput.Message('orders', b'one')).next_commit_log_offset\n"
        "store.wait_for('consume_queue', end, 60.0)\n"
        "store._engine.writer.durability.commit_service.commit = lambda: None\n"
        "store.put(reput.Message('orders', b'two'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "store"], check=False, timeout=60)
    with reput.open(tmp_path / "store", mode="inline") as store:
        assert store.put(reput.Message("orders", b"three")).queue_offset == 1
        assert [record.body for record in store.records()] == [b"one", b"three"]


@pytest.mark.processes
def test_a_commit_that_the_disk_refuses_leaves_nobody_waiting(tmp_path, monkeypatch):
    """Dispatchers are added and removed as before, requests are answered, and the store closes with the reason."""

    def refuse(mapping, data, at):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    settings = {"mapped_file_size_commit_log": 1 << 20, "flush_interval_commit_log": 3_600_000}
    with reput.open(tmp_path / "store", transient_store_pool_enable=True, **settings) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Mapping, "write", refuse)
            store.put(Message("orders", b"lost"))
            # The group's thread does this whenever dispatchers are added or removed.
            store._engine.attach_publisher()
            wait_until(lambda: store._engine.writer.appender.read_only_reason)
        assert [view.view for view in store.rebuild("consume_queue")] == ["consume_queue"]
        assert store._engine.threads.deaths == {}
        with pytest.raises(StoreReadOnly, match="Input/output error"):
            store.put(Message("orders", b"refused"))
    with pytest.raises(StoreClosed):
        store.rebuild("consume_queue")
