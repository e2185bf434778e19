"""The writer and the disk: forces, errors, and no room."""

from __future__ import annotations

import errno
import threading

import pytest

from reput.errors import (
    StoreFull,
    StoreReadOnly,
)
from reput.store.record.message import Message, PutMessageStatus
from reput.store.state.store_lock import StoreLock
from small_store import (
    SEGMENT_SIZE,
    FailingFiles,
    extents,
    log_bytes,
    message_of_size,
    open_store,
    records,
)
from store.message_stores import Published


@pytest.fixture
def store(tmp_path):
    """A new store of small segments, closed afterwards."""
    opened = open_store(tmp_path / "store")
    yield opened
    if opened.state != "STOPPED":
        opened.close(views_complete=True)


def test_sync_flush_acknowledges_what_is_on_disk(tmp_path):
    """When put returns, the durable offset is beyond the record."""
    opened = open_store(
        tmp_path / "store", flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000, flush_interval_commit_log=100_000
    )
    published = Published()
    opened.attach(published, needs_properties=False)
    result = opened.put(Message("orders", b"x"))
    assert opened.durable >= result.next_commit_log_offset
    batch = opened.put_batch([message_of_size(900) for _ in range(9)])
    assert opened.durable >= batch[-1].next_commit_log_offset
    assert {result.status, *(one.status for one in batch)} == {PutMessageStatus.PUT_OK}
    assert published.durable_offsets[-1] == opened.appended
    opened.close(views_complete=True)


def test_sync_flush_of_many_threads_shares_its_forces(tmp_path):
    """Group commit: puts that arrive while the disk is busy share the next force."""
    files = FailingFiles()
    forces = []
    entered, go_on = threading.Event(), threading.Event()

    def before_force():
        forces.append(1)
        entered.set()
        go_on.wait(30)

    opened = open_store(tmp_path / "store", files=files, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)
    files.before_force = before_force
    threads = [threading.Thread(target=opened.put, args=(Message("orders", b"x"),)) for _ in range(20)]
    threads[0].start()
    assert entered.wait(30)
    for thread in threads[1:]:
        thread.start()
    while opened.ordinal < 20:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join()
    assert opened.durable == opened.appended
    assert 2 <= len(forces) <= 4
    opened.close(views_complete=True)


def test_sync_flush_tells_when_the_disk_takes_too_long(tmp_path):
    """The message is stored, but not confirmed as durable."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=1)
    go_on = threading.Event()
    files.before_force = lambda: go_on.wait(30)
    assert opened.put(Message("orders", b"x")).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    go_on.set()
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 1


def test_a_failed_force_turns_the_store_read_only(tmp_path):
    """No second try: the kernel forgets a failed write. Puts and status get the reason."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)
    opened.put(Message("orders", b"kept"))
    files.force_error = errno.EIO
    with pytest.raises(StoreReadOnly, match="forced"):
        opened.put(Message("orders", b"lost"))
    files.force_error = None
    with pytest.raises(StoreReadOnly, match="forced"):
        opened.put(Message("orders", b"refused"))
    assert opened.state == "READ_ONLY"
    assert "Input/output error" in opened.appender.read_only_reason
    durable = opened.durable
    opened.close(views_complete=True)
    assert (tmp_path / "store" / "abort").exists()
    assert opened.durable == durable
    again = open_store(tmp_path / "store")
    assert records(tmp_path / "store")[0].body == b"kept"
    again.put(Message("orders", b"goes on"))
    again.close(views_complete=True)


def test_a_failed_force_is_noticed_without_anyone_waiting(tmp_path):
    """With ASYNC_FLUSH the next put raises."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files, flush_interval_commit_log=1, flush_commit_log_least_pages=0)
    files.force_error = errno.EIO
    opened.put(Message("orders", b"x"))
    while opened.appender.read_only_reason is None:
        threading.Event().wait(0.001)
    with pytest.raises(StoreReadOnly):
        opened.put(Message("orders", b"y"))
    opened.close(views_complete=True)


def test_a_full_disk_stores_nothing_and_a_later_put_works(tmp_path):
    """Neither the record nor a part of it; once there is space the store continues where it was."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files)
    opened.put(message_of_size(3000))
    files.reserve_until = 0
    before = log_bytes(tmp_path / "store")
    with pytest.raises(StoreFull, match="No space left"):
        opened.put(message_of_size(3000))
    with pytest.raises(StoreFull, match="stored_count=0"):
        opened.put_batch([message_of_size(3000)])
    assert log_bytes(tmp_path / "store")[: len(before)] == before
    assert opened.state == "RUNNING"
    files.reserve_until = 1 << 62
    result = opened.put(message_of_size(3000))
    assert (result.commit_log_offset, result.queue_offset) == (SEGMENT_SIZE, 1)
    opened.close(views_complete=True)
    assert extents(tmp_path / "store") == [
        "records 0..3000 count=1",
        "blank 3000..4096",
        "records 4096..7096 count=1",
    ]


def test_a_disk_that_fills_in_a_batch_says_how_much_was_stored(tmp_path):
    """The messages before are stored, as separate records."""
    files = FailingFiles()
    opened = open_store(tmp_path / "store", files=files)
    opened.put(message_of_size(100))
    # The next segment is created in advance, so its space is what is missing.
    files.reserve_until = 0
    with pytest.raises(StoreFull, match="stored_count=4"):
        opened.put_batch([message_of_size(900) for _ in range(6)])
    files.reserve_until = 1 << 62
    assert opened.put(message_of_size(900)).queue_offset == 5
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 6


def test_a_segment_that_cannot_be_made_is_an_error_of_the_put(tmp_path):
    """Later puts are not affected."""
    files = FailingFiles()
    files.create_error = errno.ENOSPC
    with pytest.raises(StoreFull, match="segment cannot be made"):
        open_store(tmp_path / "store", files=files)
    assert StoreLock.holder(tmp_path / "store") is None
    files.create_error = None
    opened = open_store(tmp_path / "store", files=files)
    assert opened.put(Message("orders", b"x")).commit_log_offset == 0
    opened.close(views_complete=True)


def test_a_batch_that_a_full_disk_cuts_says_how_much_of_it_is_stored(tmp_path):
    """The messages before the next segment are stored, the later ones are not."""
    files = FailingFiles()
    store = open_store(tmp_path / "store", files=files)
    files.create_error = errno.ENOSPC
    with pytest.raises(StoreFull) as refused:
        store.put_batch([message_of_size(1000) for _ in range(12)])
    appended = store.appended
    files.create_error = None
    store.close(views_complete=False)
    assert refused.value.stored_count == appended // 1000 > 0
