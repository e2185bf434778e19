"""LogFeed: reads the commit log for a loop when the ring does not reach back far enough."""

from __future__ import annotations

import pytest

import reput
from reput.errors import DamagedStore
from reput.process.frames import log_feed
from reput.process.frames.log_feed import LogFeed
from reput.settings import Settings
from reput_hooks import Cursor, DispatchBatch


@pytest.fixture
def feed(tmp_path, monkeypatch):
    """Return the feed of a log of 30 records, with three or four per chunk, and the log's end."""
    monkeypatch.setattr(log_feed, "CHUNK_SIZE", 1024)
    with reput.open(tmp_path / "store", dispatchers=[], mode="inline") as store:
        for number in range(30):
            store.put(reput.Message("t", bytes(150), queue_id=number))
        end = store.appended
    feed = LogFeed(tmp_path / "store", Settings())
    yield feed, end
    feed.close()


def offsets(found):
    """Return the commit-log offsets of the records in a range."""
    return [request.commit_log_offset for request in DispatchBatch(0, Cursor("", 1, found.end, 0), found.parts)]


@pytest.mark.parametrize("record_count_max", [1, 7, 1000])
@pytest.mark.parametrize("size_max", [100, 1000, 1 << 20])
def test_a_batch_has_no_more_records_and_bytes_than_wanted(feed, record_count_max, size_max):
    """At least one record is returned; none is left out or repeated."""
    log, end = feed
    found, at = [], 0
    while at < end:
        part = log.read(at, end, record_count_max, size_max)
        new = offsets(part)
        assert 1 <= len(new) <= record_count_max
        assert part.end - at <= size_max or len(new) == 1
        assert part.store_timestamp > 0
        found += new
        at = part.end
    assert len(found) == len(set(found)) == 30
    assert found == sorted(found)


def test_positions_are_bounded_by_bytes(feed, tmp_path):
    """They are the ends of whole records, at least one."""
    log, end = feed
    bounds = {*offsets(log.read(0, end, 1000, 1 << 20)), end}
    positions = LogFeed(tmp_path / "store", Settings(), positions=True)
    for size_max in (1, 1000, 1 << 20):
        at = 0
        while at < end:
            part = positions.read(at, end, 1, size_max)
            assert part.end in bounds
            assert part.end > at
            assert part.end - at <= max(size_max, 400)
            at = part.end
    positions.close()


def test_what_lies_before_damage_comes_first(feed, tmp_path):
    """Damage in a later chunk is met by the next read."""
    log, end = feed
    damaged = offsets(log.read(0, end, 1000, 1 << 20))[20]
    log.close()
    with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as segment:
        segment.seek(damaged)
        segment.write(bytes(8))
    found = log.read(0, end, 1000, 1 << 20)
    assert found.end == damaged
    with pytest.raises(DamagedStore):
        log.read(damaged, end, 1000, 1 << 20)
