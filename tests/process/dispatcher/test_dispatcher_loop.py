"""DispatcherLoop in situations in which a running group cannot be held."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from faults.scripted_store import ScriptedStore
from reput.errors import DispatcherError
from reput.process.dispatcher import gathering
from reput.process.dispatcher.pending_frames import lacks_properties
from reput.process.dispatcher.states import Phase, StopMode
from reput.process.frames.log_feed import LogFeed
from reput_hooks import DispatchColumns
from reput_hooks.dispatch import ROW
from simulation.simulated_machine import HeldThreads, PromptThreads
from simulation.simulation import SEGMENT_SIZE


@pytest.fixture
def store(tmp_path):
    """A store with three segments that the dispatchers have not read yet."""
    store = ScriptedStore(tmp_path / "store")
    # With SYNC_FLUSH, dispatchers would get messages only after a force.
    store.settings = msgspec.structs.replace(store.settings, flush_disk_type="ASYNC_FLUSH")
    store.open()
    while store.store.appended < 3 * SEGMENT_SIZE:
        store.put()
    store.flush()
    yield store
    store.abandon()


def test_a_segment_that_goes_before_anybody_says_so_is_waited_for(store):
    """Retention removes the file first. The loop continues after it, with a gap, once it is notified."""
    member = store.member("consume_queue")
    store.work(member, 1)
    store.writer_files.remove(store.directory / "commitlog" / f"{0:020d}")
    for _ in range(5):
        store.work(member, 2)
        store.clock.advance(0.1)
    assert member.cell.progress == 0
    store.store.appender.publisher.expire(SEGMENT_SIZE, store.store.appended, store.store.ordinal)
    for _ in range(5):
        store.work(member, 2)
        store.clock.advance(0.1)
    assert member.cell.progress == store.store.appended
    assert member.cell.gap_bytes == SEGMENT_SIZE


def test_what_reads_the_log_is_not_loaded_within_the_time_limit_of_a_batch(store, monkeypatch):
    """On a busy machine loading takes longer than a small limit, and smaller batches would not help."""
    member = store.member("consume_queue")
    phases = []
    opened = LogFeed.open

    def open_log(feed):
        phases.append(Phase(member.cell.phase))
        return opened(feed)

    monkeypatch.setattr(LogFeed, "open", open_log)
    store.work(member, 3)
    assert phases == [Phase.START]


def test_a_flush_without_room_comes_again(store):
    """Meanwhile nothing is lost or restarted, batches continue, and the status has the reason."""
    member = store.member("consume_queue")
    store.work(member, 8)
    loop = member.loop
    store.put()
    store.clock.advance(0.1)
    store.work(member, 1)
    store.disk.full = True
    store.clock.advance(1.0)
    store.work(member, 2)
    assert "the cursor cannot be written: error=No space left on device" in str(member.cell.error)
    assert member.loop is loop
    assert member.cell.durable_cursor.commit_log_offset < store.store.appended
    store.disk.full = False
    store.clock.advance(6.0)
    store.work(member, 2)
    assert member.cell.error is None
    assert member.cell.durable_cursor.commit_log_offset == store.store.appended


@pytest.mark.parametrize("how", ["goes on", "drains"])
def test_batches_are_dispatched_while_a_flush_goes_on_beside(store, how):
    """Readers see the batches meanwhile; the durable cursor follows when all files are forced, or at the end."""
    store.flush_threads = HeldThreads()
    member = store.member("consume_queue")
    store.work(member, 8)
    loop, end = member.loop, store.store.appended
    while not loop.flushing.preparing:
        store.clock.advance(0.3)
        store.work(member, 1)
    for _ in range(2):
        store.put()
        store.work(member, 1)
    assert loop.flushing.preparing
    assert member.cell.progress == store.store.appended
    assert (member.cell.durable_cursor.commit_log_offset if member.cell.durable_cursor else 0) < end
    if how == "drains":
        loop.request_stop(StopMode.DRAIN)
        store.work(member, 3)
        assert loop.finished
    else:
        loop.dispatcher.flushing.thread.join()
        store.work(member, 1)
        assert end <= member.cell.durable_cursor.commit_log_offset < store.store.appended
        store.flush_threads = PromptThreads()
        loop.dispatcher.threads = store.flush_threads
        store.clock.advance(1.0)
        store.work(member, 20)
    assert member.cell.durable_cursor.commit_log_offset == store.store.appended


@pytest.mark.parametrize("name", ["consume_queue", "index"])
def test_a_flush_beside_that_does_not_end_is_given_up(store, name):
    """On a disk that does not answer, batches continue until the time limit, and a late result is not trusted."""
    store.flush_threads = HeldThreads()
    member = store.member(name)
    store.work(member, 8)
    loop = member.loop
    while not loop.flushing.preparing:
        store.clock.advance(0.3)
        store.work(member, 1)
    store.clock.advance(loop.flushing.time_max_s - 1.0)
    store.put()
    store.work(member, 2)
    assert member.cell.progress == store.store.appended
    durable = member.cell.durable_cursor
    # A call of `alive` by the plugin renews it.
    loop.alive()
    store.clock.advance(loop.flushing.time_max_s - 1.0)
    store.work(member, 2)
    store.clock.advance(2.0)
    with pytest.raises(DispatcherError, match="a flush exceeded its time limit and is not trusted"):
        store.work(member, 2)
    assert member.cell.durable_cursor == durable
    store.flush_threads = PromptThreads()
    store.end_dispatcher(member)
    store.work(member, 8)
    assert member.cell.progress == store.store.appended


def test_a_loop_that_waits_for_room_to_start_can_be_stopped(store):
    """There is nothing to flush."""
    member = store.member("index")
    store.work(member, 8)
    store.clock.advance(1.0)
    store.work(member, 8)
    store.end_dispatcher(member)
    store.disk.full = True
    store.work(member, 3)
    assert "No space left" in str(member.cell.error)
    member.loop.request_stop(StopMode.DRAIN)
    store.work(member, 1)
    assert member.loop.finished


@pytest.mark.parametrize(
    ("row_count", "asked_for", "gather_ms"),
    [(1, True, 0), (1, False, 16), (4, True, 4), (4, False, 16)],
)
def test_frames_gather_where_they_come_in_numbers_or_nobody_looks(store, monkeypatch, row_count, asked_for, gather_ms):
    """A view whose progress is requested is updated record by record; an unwatched one is not, and less often."""
    member = store.member("consume_queue")
    store.work(member, 8)
    while not member.loop.following:
        store.work(member, 1)
    monkeypatch.setattr(type(member.cell), "is_asked_for", lambda cell: asked_for)
    for _ in range(row_count):
        store.put()
    assert member.loop.do_work() == 1
    assert member.loop.gathering.ms == gather_ms
    assert member.loop.gathering.is_awaited is (gather_ms == 0)
    assert member.loop.is_current()


def test_records_that_come_fast_gather_although_somebody_looks(store, monkeypatch):
    """The writer would have to wake the dispatcher for each of them. After a pause each one counts again."""
    member = store.member("consume_queue")
    store.work(member, 8)
    while not member.loop.following:
        store.work(member, 1)
    monkeypatch.setattr(type(member.cell), "is_asked_for", lambda cell: True)
    rests = []
    for quick_ns in [0, *[1 << 62] * gathering.QUICK_COUNT_MAX, 0]:
        monkeypatch.setattr(gathering, "QUICK_NS", quick_ns)
        store.put()
        assert member.loop.do_work() == 1
        rests.append(member.loop.gathering.ms)
    assert rests == [0] * gathering.QUICK_COUNT_MAX + [gathering.GATHER_MS, 0]


def test_a_view_that_is_built_again_says_why_until_it_has_caught_up(store):
    """Its files are gone. The status shows the reason for the lag, and that it is over."""
    member = store.member("consume_queue")
    while member.cell.progress != store.store.appended:
        store.work(member, 1)
    store.clock.advance(10.0)
    store.work(member, 5)
    shutil.rmtree(store.directory / "consumequeue")
    store.kill_and_open()
    member = store.member("consume_queue")
    store.work(member, 1)
    assert "the view is being rebuilt from the log: consume queue is gone" in str(member.cell.error)
    for _ in range(8):
        store.work(member, 2)
    assert member.cell.progress == store.store.appended
    assert member.cell.error is None


@pytest.mark.parametrize(("sizes", "is_lacking"), [((0, 5, 32767), False), ((-1, 5), True), ((5, -1, 5), True)])
def test_a_frame_lacks_properties_if_any_of_its_rows_does(sizes, is_lacking):
    """A put that began before they were requested may end, and be held, after others that began later."""
    rows = b"".join(ROW.pack(at * 100, at, 0, 0, 0, 100, 0, 0, 0, -1, -1, -1, size) for at, size in enumerate(sizes))
    assert lacks_properties(DispatchColumns([("orders", 3)], rows, b"")) is is_lacking
