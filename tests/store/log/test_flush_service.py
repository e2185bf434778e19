"""When the flusher forces the log by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from delivering import wait_until
from reput.errors import StoreError, StoreReadOnly
from reput.settings import Settings
from reput.store.message_store import MessageStore
from reput.store.record.message import Message
from reput.store.writer.publisher import Publisher

TIMEOUT = 60.0


class Listener(Publisher):
    """A publisher that records durable offsets."""

    def __init__(self) -> None:
        self.offset = 0
        self.told = threading.Condition()

    def durable(self, offset: int) -> None:
        """Record the offset."""
        with self.told:
            self.offset = offset
            self.told.notify_all()

    def wait_for(self, offset: int) -> bool:
        """Wait until the log is durable up to *offset*."""
        with self.told:
            return self.told.wait_for(lambda: self.offset >= offset, TIMEOUT)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[MessageStore]:
    """A writer whose flusher checks often, and would not force a single record by itself."""
    settings = Settings(
        mapped_file_size_commit_log=1 << 16,
        flush_interval_commit_log=5,
        flush_commit_log_thorough_interval=3_600_000,
    )
    store = MessageStore(tmp_path / "store", settings)
    yield store
    store.close(views_complete=False)


def test_a_reader_of_durable_bytes_gets_each_record_soon(writer):
    """While a reader waits for durable bytes, a record is forced although it fills no page."""
    listener = Listener()
    writer.attach(listener, needs_properties=False, reads_durable=True)
    result = writer.put(Message("orders", b"one"))
    assert listener.wait_for(result.next_commit_log_offset)


def test_a_reader_that_waits_for_durable_bytes_does_not_wait_for_the_flusher_s_time(tmp_path):
    """It requests a force for the records appended before; also if it requests again at once."""
    store = MessageStore(
        tmp_path / "store", Settings(mapped_file_size_commit_log=1 << 16, flush_interval_commit_log=3_600_000)
    )
    listener = Listener()
    store.attach(listener, needs_properties=False, reads_durable=True)
    for _ in range(3):
        result = store.put(Message("orders", b"one"))
        store.force_soon()
        assert listener.wait_for(result.next_commit_log_offset)
    store.close(views_complete=False)


def test_whole_pages_are_forced_without_being_asked_for(writer):
    """Four of them, by RocketMQ's default."""
    listener = Listener()
    writer.attach(listener, needs_properties=False)
    result = writer.put(Message("orders", bytes(4 * 4096)))
    assert listener.wait_for(result.next_commit_log_offset)


def test_a_full_segment_is_forced_without_being_asked_for(writer):
    """The completed segment never changes again."""
    listener = Listener()
    writer.attach(listener, needs_properties=False)
    writer.put(Message("orders", bytes(60_000)))
    rolled = writer.put(Message("orders", bytes(6_000)))
    assert rolled.commit_log_offset == 1 << 16
    assert listener.wait_for(1 << 16)


@pytest.fixture
def synchronous(tmp_path: Path) -> Iterator[MessageStore]:
    """A writer whose puts wait for the disk."""
    store = MessageStore(
        tmp_path / "store",
        Settings(mapped_file_size_commit_log=1 << 20, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000),
    )
    yield store
    store.close(views_complete=False)


def test_threads_share_forces_and_return_only_when_their_message_is_on_disk(synchronous):
    """Sixteen threads; forces are counted, and each put checks the durable offset when it returns."""
    forces: list[int] = []
    flush = synchronous.commit_log.flush

    def counted() -> int:
        forces.append(flush())
        return forces[-1]

    synchronous.commit_log.flush = counted
    begun = threading.Barrier(16)

    def put(number: int) -> list[bool]:
        begun.wait(TIMEOUT)
        return [
            synchronous.put(Message("orders", b"x", queue_id=number)).next_commit_log_offset <= synchronous.durable
            for _ in range(50)
        ]

    with ThreadPoolExecutor(16) as pool:
        seen = [wait.result(TIMEOUT) for wait in [pool.submit(put, number) for number in range(16)]]
    assert seen == [[True] * 50] * 16
    assert len(forces) < 16 * 50


def test_a_failed_force_refuses_all_who_wait_for_it_and_who_come_later(synchronous):
    """No put waits for ever, and none is confirmed."""
    begun = threading.Event()
    fail = threading.Event()

    def refuse(data: bytes, at: int) -> None:
        begun.set()
        fail.wait(TIMEOUT)
        raise OSError(5, "Input/output error")

    synchronous.commit_log.current.mapping.write_forced = refuse
    with ThreadPoolExecutor(8) as pool:
        puts = [pool.submit(synchronous.put, Message("orders", b"x")) for _ in range(8)]
        assert begun.wait(TIMEOUT)
        fail.set()
        for put in puts:
            with pytest.raises(StoreReadOnly):
                put.result(TIMEOUT)
    with pytest.raises(StoreReadOnly):
        synchronous.put(Message("orders", b"x"))
    with pytest.raises(StoreReadOnly):
        synchronous.durability.wait(synchronous.appended)
    assert synchronous.durable == 0


def test_a_put_whose_disk_does_not_answer_in_time_says_so(tmp_path):
    """The message is stored, and becomes durable once the disk answers."""
    settings = Settings(mapped_file_size_commit_log=1 << 16, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20)
    store = MessageStore(tmp_path / "store", settings)
    answer = threading.Event()
    write_forced = store.commit_log.current.mapping.write_forced

    def slow(data: bytes, at: int) -> None:
        answer.wait(TIMEOUT)
        write_forced(data, at)

    store.commit_log.current.mapping.write_forced = slow
    result = store.put(Message("orders", b"x"))
    assert result.status.value == "FLUSH_DISK_TIMEOUT"
    assert store.durable < result.next_commit_log_offset
    answer.set()
    store.flush()
    assert store.durable >= result.next_commit_log_offset
    store.close(views_complete=False)


def test_a_store_that_is_closed_refuses_who_waits_for_what_it_has_not(synchronous):
    """The flusher has ended; there will be no more forces."""
    synchronous.put(Message("orders", b"x"))
    synchronous.stop_puts()
    assert synchronous.durability.flush_service.wait_durable(synchronous.appended, TIMEOUT)
    with pytest.raises(StoreError):
        synchronous.durability.flush_service.wait_durable(synchronous.appended + 1, TIMEOUT)


def test_a_force_that_is_asked_for_has_begun_when_that_returns(synchronous):
    """Unless another force takes longer than the caller's time limit."""
    begun = threading.Event()
    answer = threading.Event()
    write_forced = synchronous.commit_log.current.mapping.write_forced

    def slow(data: bytes, at: int) -> None:
        begun.set()
        assert answer.wait(TIMEOUT)
        write_forced(data, at)

    synchronous.commit_log.current.mapping.write_forced = slow
    synchronous.appender.append(Message("orders", b"x"))
    synchronous.begin_flush(TIMEOUT)
    assert begun.wait(TIMEOUT)
    end = synchronous.appender.append(Message("orders", b"y")).next_commit_log_offset
    synchronous.begin_flush(0.01)
    assert synchronous.durable == 0
    answer.set()
    assert synchronous.durability.wait(end)


def test_a_flush_after_a_failed_one_leaves_nobody_waiting(synchronous):
    """It is not tried again; later puts are refused at once, however often a flush is requested."""

    def refuse(data: bytes, at: int) -> None:
        raise OSError(5, "Input/output error")

    synchronous.commit_log.current.mapping.write_forced = refuse
    end = synchronous.appender.append(Message("orders", b"x")).next_commit_log_offset
    with pytest.raises(StoreReadOnly):
        synchronous.durability.wait(end)
    synchronous.durability.flush_service.flush()
    with pytest.raises(StoreReadOnly):
        synchronous.durability.wait(end)


def test_threads_behind_one_that_does_not_get_on_are_let_go_all_the_same(synchronous):
    """One thread was woken but does not wake the next: another one computes and holds the interpreter."""
    flush, gate = synchronous.commit_log.flush, threading.Event()

    def gated() -> int:
        gate.wait(TIMEOUT)
        return flush()

    synchronous.commit_log.flush = gated
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(synchronous.put, Message("orders", b"first"))
        wait_until(lambda: synchronous.durability.flush_service.group.before is not None)
        stuck = threading.Lock()
        stuck.acquire()
        group = synchronous.durability.flush_service.group
        group.waiting.append(stuck)
        others = [pool.submit(synchronous.put, Message("orders", b"other")) for _ in range(2)]
        wait_until(lambda: len(group.waiting) == 3)
        gate.set()
        assert sorted(put.result(TIMEOUT / 2).queue_offset for put in (first, *others)) == [0, 1, 2]
        assert not stuck.locked()
