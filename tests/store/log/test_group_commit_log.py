"""With SYNC_FLUSH, puts are gathered in memory, and written by the force that they wait for."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from delivering import wait_until
from reput.errors import StoreFull, StoreReadOnly
from reput.store.disk.files import Mapping
from reput.store.log import commit_log, group_commit_log
from reput.store.log.group_commit_log import GroupCommitLog
from reput.store.message_store import MessageStore
from reput.store.record.layout import BLANK_MAGIC_CODE
from reput.store.record.message import Message
from reput.store.service.threads import StartedThread, Threads
from reput.store.writer.publisher import AppendedRecords, Publisher
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

HOUR_MS = 3_600_000


def open_store(directory: Path, **settings: object) -> MessageStore:
    """Open a store whose flusher runs only when a put waits."""
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
    """Not before: if the process is killed then, no put was confirmed."""
    opened = open_store(tmp_path / "store")
    end = opened.appender.append(Message("orders", b"one")).next_commit_log_offset
    assert (opened.appended, opened.committed, opened.durable) == (end, 0, 0)
    assert not log_bytes(tmp_path / "store").strip(b"\0")
    assert opened.flush() == end
    assert (opened.committed, opened.durable) == (end, end)
    assert [record.body for record in records(tmp_path / "store")] == [b"one"]
    opened.close(views_complete=True)


def test_the_writer_itself_finds_what_is_in_no_file_yet(tmp_path):
    """By the offset of the put; once forced, it is in the file."""
    opened = open_store(tmp_path / "store")
    results = [opened.appender.append(Message("orders", body)) for body in (b"one", b"two")]
    found = [opened.appender.peek(result.commit_log_offset) for result in results]
    assert [record and (record.body, record.queue_offset) for record in found] == [(b"one", 0), (b"two", 1)]
    opened.flush()
    assert [opened.appender.peek(result.commit_log_offset) for result in results] == [None, None]
    opened.close(views_complete=True)


def test_a_force_writes_a_group_with_one_call_for_each_segment(tmp_path, monkeypatch):
    """However many records there are; a segment's blank is written with its last records."""
    written: list[tuple[int, int]] = []
    write = Mapping.write

    def note(mapping: Mapping, data: memoryview, at: int) -> None:
        written.append((at, len(data)))
        write(mapping, data, at)

    # A forced write on this disk.
    monkeypatch.setattr(UnforcedMapping, "write", note)
    opened = open_store(tmp_path / "store")
    for _ in range(3):
        opened.appender.append(message_of_size(SEGMENT_SIZE // 4))
    opened.appender.append(message_of_size(SEGMENT_SIZE // 2))
    opened.flush()
    assert written == [(0, 3 * (SEGMENT_SIZE // 4) + 8), (0, SEGMENT_SIZE // 2)]
    opened.appender.append(message_of_size(100))
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
                opened.appender.append_batch([message, message_of_size(90)])
            elif number % 7 == 0:
                opened.put(message)
            else:
                opened.appender.append(message)
        opened.close(views_complete=True)
    assert log_bytes(tmp_path / "gathered") == log_bytes(tmp_path / "mapped")
    assert len(records(tmp_path / "gathered")) == 80


def test_a_put_forces_what_was_gathered_where_that_is_much(tmp_path, monkeypatch):
    """Memory does not fill up if the disk is slower than the puts."""
    monkeypatch.setattr(group_commit_log, "GATHERED_MAX", SEGMENT_SIZE)
    opened = open_store(tmp_path / "store")
    for _ in range(20):
        opened.appender.append(message_of_size(SEGMENT_SIZE // 2))
    log = opened.commit_log
    assert isinstance(log, GroupCommitLog)
    assert sum(map(len, log.gathered.values())) <= 2 * SEGMENT_SIZE
    assert 0 < opened.appended - opened.durable <= 2 * SEGMENT_SIZE
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 20


def test_while_the_disk_hangs_much_may_gather_before_a_put_waits_for_it(tmp_path, monkeypatch):
    """A put that waits holds the put lock, and other puts could not time out."""
    monkeypatch.setattr(group_commit_log, "JOINED_MAX", 1000)
    opened = open_store(tmp_path / "store", sync_flush_timeout=60_000)
    mapping, begun, answer = opened.commit_log.current.mapping, threading.Event(), threading.Event()
    write_forced = mapping.write_forced

    def hang(data: bytes, at: int) -> None:
        begun.set()
        answer.wait()
        write_forced(data, at)

    mapping.write_forced = hang
    with ThreadPoolExecutor(1) as waiting, ThreadPoolExecutor(1) as putting:
        try:
            first = waiting.submit(opened.put, Message("orders", b"first"))
            assert begun.wait(60)
            for _ in range(6):
                putting.submit(opened.appender.append, message_of_size(SEGMENT_SIZE // 2)).result(60)
            assert opened.durable == 0
        finally:
            answer.set()
        assert first.result(60).queue_offset == 0
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 7


def test_a_killed_writer_loses_what_nobody_was_told_of(tmp_path):
    """The log ends where it was forced; the next message gets the offset of the first lost one."""
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"forced"))
    opened.appender.append(Message("orders", b"lost"))
    drop(opened)
    opened = open_small(tmp_path / "store")
    assert opened.put(Message("orders", b"next")).queue_offset == 1
    opened.close(views_complete=True)
    assert [record.body for record in records(tmp_path / "store")] == [b"forced", b"next"]


@pytest.mark.parametrize("comes", ["before", "behind"])
def test_a_force_that_is_interrupted_is_done_again_whole(tmp_path, comes):
    """Whether Ctrl-C comes before or after the system call: no byte is misplaced or missing."""
    opened = open_store(tmp_path / "store")
    for number in range(9):
        opened.appender.append(message_of_size(SEGMENT_SIZE // 4 - number))
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
    opened.appender.append(message_of_size(300))
    assert opened.flush() == opened.appended
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 10


class UnwritableMapping(UnforcedMapping):
    """A file to which the disk writes a part, and then fails."""

    def write(self, data: memoryview, at: int) -> None:
        super().write(data[: len(data) // 2], at)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))


class UnwritableFiles(UnforcedFiles):
    """A disk that refuses all segments."""

    def map(self, path: Path, size: int) -> Mapping:
        return UnwritableMapping(path, size)


def test_a_write_that_the_disk_refuses_fails_every_put_that_waits(tmp_path):
    """Each error has the reason; the store refuses further puts, and the half-written data is not a record."""
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
        opened.appender.append(Message("orders", b"more"))
    opened.close(views_complete=True)
    assert (tmp_path / "store" / "abort").exists()
    opened = open_small(tmp_path / "store")
    assert opened.appended == sum(record.record_size for record in records(tmp_path / "store"))
    opened.close(views_complete=True)


class NoThread(Threads):
    """No thread works beside the test."""

    def start(
        self, name: str, target: Callable[[], None], end_waits: Callable[[str], None] | None = None
    ) -> StartedThread:
        return self

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class CtrlC:
    """Raises KeyboardInterrupt after one of the log's calls, where Python checks for signals."""

    def __init__(self, call: int) -> None:
        self.calls_left = call

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        own = frame.f_code.co_filename in (commit_log.__file__, group_commit_log.__file__)
        if own and event in ("c_return", "return"):
            self.calls_left -= 1
            if self.calls_left == 0:
                raise KeyboardInterrupt

    def interrupts(self, act: Callable[[], object]) -> bool:
        """Call *act*; return whether it was interrupted."""
        sys.setprofile(self)
        try:
            act()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False


def piece(number: int, size: int) -> bytes:
    """Return a piece of data in place of a record."""
    return size.to_bytes(4, "big") + number.to_bytes(4, "big") * (size // 4 - 1)


def put(log: GroupCommitLog, data: bytes) -> None:
    """Do the log's part of a put."""
    log.room(len(data))
    log.append(data)


def written_pieces(data: bytes, end: int) -> list[int]:
    """Return the numbers of the pieces of a log that ends at *end*; between them are blanks."""
    at, numbers = 0, []
    while at < end:
        size, number = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        if number != BLANK_MAGIC_CODE:
            assert data[at : at + size] == piece(number, size)
            numbers.append(number)
        at += size
    return numbers


@pytest.mark.slow
def test_ctrl_c_in_a_put_takes_no_other_message(tmp_path, monkeypatch):
    """Wherever it comes, also in a roll or a force of gathered data: all appended data is written at its place."""
    monkeypatch.setattr(group_commit_log, "JOINED_MAX", 1000)
    call, interrupted = 0, True
    while interrupted:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        log = GroupCommitLog(directory, SEGMENT_SIZE, 0, UnforcedFiles(), threads=NoThread())
        ctrl_c = CtrlC(call)
        appended, in_doubt = [], set()
        for number, size in enumerate([300, 700, 1500, 200, 3000, 64, 64, 900, 4000, 120, 2000, 2000, 52] * 2):
            appended.append(number)
            if ctrl_c.interrupts(partial(put, log, piece(number, size))):
                in_doubt.add(number)
        interrupted = ctrl_c.interrupts(log.flush) or bool(in_doubt)
        assert log.flush() == log.appended
        found = written_pieces(b"".join(path.read_bytes() for path in sorted(directory.iterdir())), log.appended)
        assert set(appended) - in_doubt <= set(found)
        assert found == sorted(set(found))
        assert all(begin >= log.durable for begin in log.gathered)
        log.close()
    assert call > 200


def test_a_force_without_memory_fails_as_one_that_the_disk_refuses(tmp_path):
    """The flusher continues, and waiting puts get the error."""
    opened = open_store(tmp_path / "store")
    log = opened.commit_log
    assert isinstance(log, GroupCommitLog)
    log.gathered = NoMemory()
    with pytest.raises(StoreReadOnly, match="Cannot allocate memory"):
        opened.put(Message("orders", b"x"))
    assert opened.durability.flush_service.thread.is_alive()
    opened.close(views_complete=True)


class NoMemory(dict[int, bytes]):
    """Nothing can be removed from it."""

    def __getitem__(self, begin: int) -> bytes:
        raise MemoryError


def test_large_batches_are_written_in_parts(tmp_path, monkeypatch):
    """Only small ones are copied into one piece; the parts follow each other."""
    monkeypatch.setattr(group_commit_log, "JOINED_MAX", 1000)
    written: list[tuple[int, int]] = []
    write = Mapping.write

    def note(mapping: Mapping, data: memoryview, at: int) -> None:
        written.append((at, len(data)))
        write(mapping, data, at)

    monkeypatch.setattr(UnforcedMapping, "write", note)
    log = GroupCommitLog(tmp_path, SEGMENT_SIZE, 0, UnforcedFiles(), threads=NoThread())
    for number, size in enumerate((400, 400, 400, 2000, 100)):
        log.append(piece(number, size))
    assert log.flush() == 3300
    assert written == [(0, 800), (800, 400), (1200, 2000), (3200, 100)]
    log.close()


class Listener(Publisher):
    """Records its notifications."""

    def __init__(self) -> None:
        self.end = self.offset = 0

    def publish(self, records: AppendedRecords) -> None:
        self.end = records.end

    def durable(self, offset: int) -> None:
        self.offset = offset


def test_what_a_put_has_forced_is_told_though_nothing_is_left_to_force(tmp_path):
    """The put itself may have failed since. Waiting puts are notified only after the dispatchers."""
    opened = open_store(tmp_path / "store")
    listener, told = Listener(), []
    opened.attach(listener, needs_properties=False)
    end = opened.appender.append(Message("orders", b"x")).next_commit_log_offset
    # Like a put that finds much gathered data.
    assert opened.commit_log.flush() == end
    opened.call_when_durable(end, lambda: told.append(listener.end))
    wait_until(lambda: told)
    assert told == [end]
    assert listener.offset == end
    opened.close(views_complete=True)


def test_a_put_that_cannot_force_what_was_gathered_says_that_the_store_takes_no_writes(tmp_path, monkeypatch):
    """Like a put that waits for the force."""
    monkeypatch.setattr(group_commit_log, "GATHERED_MAX", 100)
    opened = open_store(tmp_path / "store", files=UnwritableFiles())
    opened.appender.append(message_of_size(SEGMENT_SIZE // 2))
    opened.appender.append(message_of_size(SEGMENT_SIZE // 4))
    with pytest.raises(StoreReadOnly, match="Input/output error"):
        opened.appender.append(message_of_size(SEGMENT_SIZE // 2))
    opened.durability.flush_service.wake.set()
    wait_until(lambda: opened.state == "READ_ONLY")
    opened.close(views_complete=True)


def test_what_a_full_disk_leaves_of_a_batch_is_on_disk_when_that_is_said(tmp_path):
    """So it exists after a kill."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files)
    files.reserve_until = 0
    with pytest.raises(StoreFull, match="stored_count=4"):
        opened.put_batch([message_of_size(900) for _ in range(6)])
    drop(opened)
    assert len(records(tmp_path / "store", unclean=True)) == 4
