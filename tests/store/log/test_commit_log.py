"""The end of the log, if other programs change its directory."""

from __future__ import annotations

import errno
import os
import shutil
import threading

import pytest

from reput.errors import StoreError
from reput.store.disk.files import Files
from reput.store.log.commit_log import CommitLog
from reput.store.record.message import Message
from small_store import SEGMENT_SIZE, UnforcedFiles, UnforcedMapping, message_of_size, open_store, records


def test_a_segment_made_ahead_and_removed_is_made_again(tmp_path):
    """A RocketMQ that is started on a store in use removes the empty segment before it finds the store locked."""
    opened = open_store(tmp_path / "store")
    opened.put(message_of_size(SEGMENT_SIZE - 100))
    (tmp_path / "store" / "commitlog" / f"{SEGMENT_SIZE:020}").unlink()
    opened.put(message_of_size(200))
    opened.close(views_complete=True)
    assert [record.commit_log_offset for record in records(tmp_path / "store")] == [0, SEGMENT_SIZE]


def test_a_segment_made_ahead_and_removed_is_not_missed_at_the_end(tmp_path):
    """Then closing has nothing to remove."""
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"x"))
    (tmp_path / "store" / "commitlog" / f"{SEGMENT_SIZE:020}").unlink()
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 1


def test_a_removed_segment_is_no_durable_one(tmp_path):
    """Writes to a removed file are not confirmed."""
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"x"))
    (tmp_path / "store" / "commitlog" / f"{0:020}").unlink()
    with pytest.raises(StoreError, match="removed"):
        opened.flush()
    assert opened.state == "READ_ONLY"
    assert opened.durable == 0
    opened.close(views_complete=True)


def test_the_helper_never_makes_the_segment_that_a_roll_is_going_to(tmp_path):
    """It may run in the middle of a roll; each segment is still created once, and each record has its own offset."""
    opened = open_store(tmp_path / "store")
    log = opened.commit_log
    reserve = log.reserve
    helpers = []

    def reserve_while_the_helper_looks(segment, until):
        # In the middle of a roll, the blank of the current segment is reserved.
        if segment is log.current and until % 1500 and threading.current_thread() is threading.main_thread():
            helpers.append(threading.Thread(target=log.prepare, args=(log.appended,)))
            helpers[-1].start()
            # It has finished, or waits for the end of the roll.
            helpers[-1].join(0.05)
        reserve(segment, until)

    log.reserve = reserve_while_the_helper_looks
    for _ in range(8):
        opened.put(message_of_size(1500))
    for helper in helpers:
        helper.join(30)
    log.reserve = reserve
    opened.close(views_complete=True)
    assert helpers
    assert [record.commit_log_offset for record in records(tmp_path / "store")] == [
        segment * SEGMENT_SIZE + record * 1500 for segment in range(4) for record in range(2)
    ]


class LockedMapping(UnforcedMapping):
    """A mapping that records its calls; *refusal*: errno of locking it, 0: locking succeeds."""

    asked: list[tuple[str, int]]
    refusal = 0

    def reserve(self, at: int, size: int) -> None:
        super().reserve(at, size)
        self.asked.append(("reserve", at + size))

    def populate(self, at: int, size: int) -> None:
        super().populate(at, size)
        self.asked.append(("populate", at + size))

    def force(self) -> None:
        self.asked.append(("force", 0))

    def lock(self) -> None:
        self.asked.append(("lock", 0))
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        super().lock()


class LockedFiles(UnforcedFiles):
    """Files whose mappings record their calls, by the begin of the segment."""

    def __init__(self, refusal: int = 0) -> None:
        self.asked: dict[int, list[tuple[str, int]]] = {}
        self.refusal = refusal

    def map(self, path, size):
        mapping = LockedMapping(path, size)
        mapping.refusal = self.refusal
        mapping.asked = self.asked.setdefault(int(path.name), [])
        return mapping


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_segment_is_warmed_up_before_it_is_used(tmp_path, flush_disk_type):
    """All of it is reserved, in memory and locked; with SYNC_FLUSH it is also forced."""
    files = LockedFiles()
    opened = open_store(
        tmp_path / "store",
        files=files,
        warm_maped_file_enable=True,
        flush_least_pages_when_warm_maped_file=1,
        flush_disk_type=flush_disk_type,
    )
    following = files.asked[SEGMENT_SIZE]
    assert following[:2] == [("reserve", SEGMENT_SIZE), ("populate", SEGMENT_SIZE)]
    assert following[2:] == ([("force", 0)] if flush_disk_type == "SYNC_FLUSH" else []) + [("lock", 0)]
    for _ in range(3):
        opened.put(message_of_size(SEGMENT_SIZE - 100))
    opened.close(views_complete=False)
    assert len(records(tmp_path / "store")) == 3


def test_a_segment_that_cannot_be_locked_is_used_all_the_same(tmp_path, caplog):
    """It is logged, with the limit to raise."""
    opened = open_store(tmp_path / "store", files=LockedFiles(errno.ENOMEM), warm_maped_file_enable=True)
    opened.put(Message("orders", b"x"))
    opened.close(views_complete=False)
    assert "could not be warmed up" in caplog.text
    assert "ulimit -l" in caplog.text


def test_a_store_is_not_warmed_up_by_itself(tmp_path):
    """A new store uses little disk and memory."""
    files = LockedFiles()
    open_store(tmp_path / "store", files=files).close(views_complete=False)
    assert ("lock", 0) not in files.asked[SEGMENT_SIZE]


def test_room_that_another_thread_reserves_meanwhile_is_not_asked_for_again(tmp_path):
    """The larger step finds a full disk, but by then the helper has reserved enough for the put."""
    log = CommitLog(tmp_path, 1 << 20, 0, Files())
    try:
        segment = log.current
        segment.reserved = 4096

        class Refusing:
            path = segment.mapping.path

            def reserve(self, at: int, size: int) -> None:
                assert size > 0
                segment.reserved = 16384
                raise OSError(28, "No space left on device")

        mapping, segment.mapping = segment.mapping, Refusing()
        try:
            log.reserve(segment, 8192)
        finally:
            segment.mapping = mapping
        assert segment.reserved == 16384
    finally:
        log.close()


class Killed(BaseException):
    """The process ends here."""


class FailingMemory:
    """The end of a log whose process is killed after some writes."""

    def __init__(self, memory, left):
        self.memory, self.left = memory, left

    def __setitem__(self, place, data):
        if not self.left:
            # Of the records themselves, the C library may have copied any part.
            self.memory[place.start + 4 : place.stop] = data[4:]
            raise Killed
        self.left -= 1
        self.memory[place] = data


@pytest.mark.parametrize("writes", range(0, 9, 2))
def test_a_batch_that_is_cut_off_by_a_kill_is_a_torn_end_and_no_damage(tmp_path, writes):
    """Its first records are whole, and behind them nothing looks like a record: the next opening just goes on."""
    store = open_store(tmp_path)
    messages = [Message("orders", b"%d" % number) for number in range(8)]
    store.put(messages[0])
    store.appender.kernel = None
    store.commit_log.memory = FailingMemory(memory := store.commit_log.memory, writes)
    with pytest.raises(Killed):
        store.put_batch(messages)
    store.commit_log.memory = memory
    copy = tmp_path / "copy"
    shutil.copytree(store.directory, copy, ignore=shutil.ignore_patterns("lock"))
    store.close(views_complete=False)
    open_store(copy).close(views_complete=False)
    assert [record.body for record in records(copy)] == [
        b"0",
        *(b"%d" % number for number in range(max(writes - 1, 0))),
    ]
