"""With SYNC_FLUSH what is put is gathered in memory, and written by the force that it waits for."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from delivering import wait_until
from reput.errors import StoreReadOnly
from reput.store import group_commit_log
from reput.store.files import Mapping
from reput.store.group_commit_log import GroupCommitLog
from reput.store.message import Message
from reput.store.message_store import MessageStore
from small_store import SEGMENT_SIZE, UnforcedFiles, UnforcedMapping, drop, log_bytes, message_of_size, records
from small_store import open_store as open_small

HOUR_MS = 3_600_000


def open_store(directory: Path, **settings: object) -> MessageStore:
    """Open a store whose flusher comes when somebody waits, and at no other time."""
    return open_small(
        directory,
        **{
            "files": UnforcedFiles(),
            "flush_disk_type": "SYNC_FLUSH",
            "flush_interval_commit_log": HOUR_MS,
            **settings,
        },
    )


def test_what_is_put_is_in_the_file_once_it_is_forced(tmp_path):
    """And not before: whoever is killed then has promised nothing."""
    opened = open_store(tmp_path / "store")
    end = opened.append(Message("orders", b"one")).next_commit_log_offset
    assert (opened.appended, opened.committed, opened.durable) == (end, 0, 0)
    assert not log_bytes(tmp_path / "store").strip(b"\0")
    assert opened.flush() == end
    assert (opened.committed, opened.durable) == (end, end)
    assert [record.body for record in records(tmp_path / "store")] == [b"one"]
    opened.close(views_complete=True)


def test_a_force_writes_a_group_with_one_call_for_each_segment(tmp_path, monkeypatch):
    """However many records there are; the blank of a segment is written with its last ones."""
    written: list[tuple[int, int]] = []
    write = Mapping.write

    def note(mapping: Mapping, data: memoryview, at: int) -> None:
        written.append((at, len(data)))
        write(mapping, data, at)

    # What this disk does for a forced write.
    monkeypatch.setattr(UnforcedMapping, "write", note)
    opened = open_store(tmp_path / "store")
    for _ in range(3):
        opened.append(message_of_size(SEGMENT_SIZE // 4))
    opened.append(message_of_size(SEGMENT_SIZE // 2))
    opened.flush()
    assert written == [(0, 3 * (SEGMENT_SIZE // 4) + 8), (0, SEGMENT_SIZE // 2)]
    opened.append(message_of_size(100))
    opened.flush()
    assert written[2:] == [(SEGMENT_SIZE // 2, 100)]
    opened.close(views_complete=True)


def test_the_log_has_the_bytes_that_it_has_with_asynchronous_flush(tmp_path):
    """Over many segments, from single puts and batches, forced together or one by one."""
    for name, flush_disk_type in (("gathered", "SYNC_FLUSH"), ("mapped", "ASYNC_FLUSH")):
        opened = open_store(tmp_path / name, flush_disk_type=flush_disk_type)
        for number in range(60):
            message = message_of_size(100 + number * 7)
            if number % 3 == 0:
                opened.append_batch([message, message_of_size(90)])
            elif number % 7 == 0:
                opened.put(message)
            else:
                opened.append(message)
        opened.close(views_complete=True)
    assert log_bytes(tmp_path / "gathered") == log_bytes(tmp_path / "mapped")
    assert len(records(tmp_path / "gathered")) == 80


def test_a_put_forces_what_was_gathered_where_that_is_much(tmp_path, monkeypatch):
    """A disk that is slower than the puts does not fill the memory."""
    monkeypatch.setattr(group_commit_log, "GATHERED_MAX", SEGMENT_SIZE)
    opened = open_store(tmp_path / "store")
    for _ in range(20):
        opened.append(message_of_size(SEGMENT_SIZE // 2))
    log = opened.commit_log
    assert isinstance(log, GroupCommitLog)
    assert sum(len(piece) for _, piece in log.gathered) <= 2 * SEGMENT_SIZE
    assert 0 < opened.appended - opened.durable <= 2 * SEGMENT_SIZE
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 20


def test_a_killed_writer_loses_what_nobody_was_told_of(tmp_path):
    """The log ends where it was forced; the next message has the offset of the first that is gone."""
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"forced"))
    opened.append(Message("orders", b"lost"))
    drop(opened)
    opened = open_small(tmp_path / "store")
    assert opened.put(Message("orders", b"next")).queue_offset == 1
    opened.close(views_complete=True)
    assert [record.body for record in records(tmp_path / "store")] == [b"forced", b"next"]


@pytest.mark.parametrize("comes", ["before", "behind"])
def test_a_force_that_is_interrupted_is_done_again_whole(tmp_path, comes):
    """Whether Ctrl-C comes before or behind what the system does: no byte goes elsewhere, and none is missing."""
    opened = open_store(tmp_path / "store")
    for number in range(9):
        opened.append(message_of_size(SEGMENT_SIZE // 4 - number))
    mapping = opened.commit_log.current.mapping
    write_forced = mapping.write_forced

    def interrupt(data: bytes, at: int) -> None:
        mapping.write_forced = write_forced
        if comes == "behind":
            write_forced(data, at)
        raise KeyboardInterrupt

    mapping.write_forced = interrupt
    with pytest.raises(KeyboardInterrupt):
        opened.commit_log.flush()
    assert opened.durable == 0
    opened.append(message_of_size(300))
    assert opened.flush() == opened.appended
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 10


class UnwritableMapping(UnforcedMapping):
    """A file that the disk writes a part to, and then refuses."""

    def write(self, data: memoryview, at: int) -> None:
        super().write(data[: len(data) // 2], at)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))


class UnwritableFiles(UnforcedFiles):
    """A disk that refuses all segments."""

    def map(self, path: Path, size: int) -> Mapping:
        return UnwritableMapping(path, size)


def test_a_write_that_the_disk_refuses_fails_every_put_that_waits(tmp_path):
    """Each says why; the store takes nothing more, and what was half written is no record."""
    opened = open_store(tmp_path / "store", files=UnwritableFiles())
    reasons: list[str] = []

    def put() -> None:
        try:
            opened.put(Message("orders", b"x" * 300))
        except StoreReadOnly as error:
            reasons.append(str(error))

    threads = [threading.Thread(target=put) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [("could not be forced" in reason, "Input/output error" in reason) for reason in reasons] == [
        (True, True)
    ] * 3
    wait_until(lambda: opened.state == "READ_ONLY")
    with pytest.raises(StoreReadOnly, match="could not be forced"):
        opened.append(Message("orders", b"more"))
    opened.close(views_complete=True)
    assert (tmp_path / "store" / "abort").exists()
    opened = open_small(tmp_path / "store")
    assert opened.appended == sum(record.record_size for record in records(tmp_path / "store"))
    opened.close(views_complete=True)
