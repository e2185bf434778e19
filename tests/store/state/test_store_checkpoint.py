"""The checkpoint tells RocketMQ from where to dispatch again after a crash, and is never too late."""

from __future__ import annotations

import time

import pytest

import reput
from reput.cli.target.findings import store_findings
from reput.process.owner.stopped_status import stopped_status
from reput.settings import Settings
from reput.store.disk.files import Clock, Files
from reput.store.index.index_layout import HEADER
from reput.store.record.message import Message
from reput.store.state.store_checkpoint import (
    StoreCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from reput.store.writer.publisher import Publisher
from small_store import START_MS, ManualClock, UnforcedFiles, open_store

LIMIT_S = 60.0


def index_file(store, number, begin, end, end_offset, count=400):
    """Write the header of an index file."""
    directory = store / "index"
    directory.mkdir(exist_ok=True)
    (directory / f"{20260101000000000 + number}").write_bytes(HEADER.pack(begin, end, 0, end_offset, 1, count))


def written(store, queue_timestamp, index_durable=None):
    """Return (logics, index) of the checkpoint that is written when the queues are on disk up to a given time."""
    write_checkpoint(store, 9_000, queue_timestamp, Files(), index_durable=index_durable)
    checkpoint = read_checkpoint(store)
    assert checkpoint.physic_msg_timestamp == 9_000
    return checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp


def test_without_an_index_the_queues_count_alone(tmp_path):
    """A file without entries does not limit the checkpoint."""
    assert written(tmp_path, 8_000) == (8_000, 0)
    index_file(tmp_path, 1, 0, 0, 0, count=0)
    assert written(tmp_path, 8_000) == (8_000, 0)


def test_the_file_that_is_written_to_holds_the_queues_back(tmp_path):
    """RocketMQ drops it, and only dispatches again from there on."""
    index_file(tmp_path, 1, 1_000, 3_000, 500)
    index_file(tmp_path, 2, 3_000, 6_000, 900)
    assert written(tmp_path, 8_000) == (3_000, 3_000)
    assert written(tmp_path, 2_000) == (2_000, 3_000)


@pytest.mark.parametrize(
    ("durable", "expected"),
    [(2_000, (5_000, 5_000)), (701, (5_000, 5_000)), (700, (3_000, 3_000)), (500, (1_000, 0)), (0, (1_000, 0))],
)
def test_a_full_file_counts_once_it_is_on_disk(tmp_path, durable, expected):
    """Up to its last entry."""
    index_file(tmp_path, 1, 1_000, 3_000, 500)
    index_file(tmp_path, 2, 3_000, 5_000, 700)
    index_file(tmp_path, 3, 5_000, 7_000, 900)
    assert written(tmp_path, 8_000, durable) == expected


def test_where_all_is_dispatched_again_no_index_file_is_kept(tmp_path):
    """RocketMQ adds no keys of records before the end of its last index file, whether that had them or not."""
    index_file(tmp_path, 1, 1_000, 3_000, 500)
    index_file(tmp_path, 2, 3_000, 6_000, 900)
    assert written(tmp_path, 0) == (0, 0)


def test_files_that_end_at_the_same_time_are_told_apart_by_none(tmp_path):
    """RocketMQ would keep both, so neither is reported as durable."""
    index_file(tmp_path, 1, 1_000, 3_000, 500)
    index_file(tmp_path, 2, 3_000, 3_000, 900)
    assert written(tmp_path, 8_000) == (1_000, 0)


def test_what_others_keep_in_it_stays(tmp_path):
    """RocketMQ 5 has two more numbers there."""
    (tmp_path / "checkpoint").write_bytes(b"".join(number.to_bytes(8, "big") for number in (1, 2, 3, 4, 5)))
    write_checkpoint(tmp_path, 9_000, 8_000, Files())
    data = (tmp_path / "checkpoint").read_bytes()
    assert len(data) == 4096
    assert decode_checkpoint(data) == StoreCheckpoint(9_000, 8_000, 0, 4, 5)


def test_it_is_written_while_the_store_is_open(tmp_path):
    """For the durable part, as reported by the views; after a kill RocketMQ need not begin with the oldest segment."""

    class Ticking(ManualClock):
        seconds = 0.0

        def monotonic(self):
            return self.seconds

    clock = Ticking()
    store = open_store(tmp_path, clock=clock, flush_interval_commit_log=1)
    store.durability.durable_views = lambda: (START_MS - 5, 0)
    store.put(reput.Message("orders", b"x"))
    store.flush()
    assert read_checkpoint(tmp_path) == StoreCheckpoint()
    clock.seconds = 11.0
    end = time.monotonic() + LIMIT_S
    while read_checkpoint(tmp_path) != StoreCheckpoint(START_MS, START_MS - 5):
        assert time.monotonic() < end
    store.close(views_complete=False)


@pytest.mark.slow
@pytest.mark.newest_python
def test_views_say_up_to_when_they_are_on_disk(tmp_path):
    """The smallest of them counts."""
    with reput.open(tmp_path, mode="inline", max_hash_slot_num=100, max_index_num=400) as store:
        result = store.put(reput.Message("orders", b"x", keys=["k"]))
        end = time.monotonic() + LIMIT_S
        while store._engine.views.durable_views() != (result.store_timestamp, result.next_commit_log_offset):
            assert time.monotonic() < end
    with reput.open(tmp_path, mode="inline", dispatchers=["index"]) as store:
        assert store._engine.views.durable_views() == (0, 0)


class Told(Publisher):
    """Counts the requests to check the writer."""

    count = 0

    def read_only(self, reason: str | None) -> None:
        assert reason is None
        self.count += 1


def test_a_clock_that_was_set_back_is_told_while_it_is_behind_the_log(tmp_path, caplog):
    """Store times do not go back: they stay constant until the clock catches up; the opening and `doctor` report it.

    Then a jump of the clock is reported, which retention ignores for a while.
    """
    clock = ManualClock(Clock().now_ms())
    # The flusher would report it, too.
    opened = open_store(tmp_path, clock=clock, files=UnforcedFiles(), flush_interval_commit_log=3_600_000)
    told = Told()
    opened.attach(told, needs_properties=False)
    opened.put(Message("orders", b"x"))
    assert opened.notice is None
    clock.ms += 3_600_000
    ahead = opened.put(Message("orders", b"x")).store_timestamp
    clock.ms -= 3_600_000
    assert opened.put(Message("orders", b"x")).store_timestamp == ahead
    assert "ahead of this machine's clock, and every message gets it" in opened.notice
    assert f"store_timestamp={ahead} ahead_ms=3600000" in opened.notice
    opened.tell_notice()
    opened.tell_notice()
    assert (told.count, opened.state) == (1, "RUNNING")
    clock.ms += 3_600_000
    opened.tell_notice()
    assert told.count == 2
    assert "this machine's clock disagrees with the log's" in opened.notice
    opened.close(views_complete=True)
    write_checkpoint(tmp_path, ahead, ahead, UnforcedFiles())
    (finding,) = [finding for finding in store_findings(tmp_path) if finding.name == "store times"]
    assert finding.state == "warning"
    assert f"store_timestamp={ahead}" in finding.finding
    assert f"store_timestamp={ahead}" in stopped_status(tmp_path, Settings()).writer.reason
    clock.ms -= 3_600_000
    open_store(tmp_path, clock=clock, files=UnforcedFiles()).close(views_complete=True)
    assert "ahead of this machine's clock, and every message gets it" in caplog.text


def test_the_sixth_number_is_read_and_leaves_it_to_the_times(golden):
    """RocketMQ 5.5 wrote it; after a crash of reput it uses the times, like older versions."""
    store = golden("direct-5.5") / "store"
    assert read_checkpoint(store).logics_physical_offset == 87728
    before = (store / "checkpoint").read_bytes()
    assert encode_checkpoint(decode_checkpoint(before)) == before
    write_checkpoint(store, 9_000, 0, Files())
    assert read_checkpoint(store) == StoreCheckpoint(physic_msg_timestamp=9_000)
