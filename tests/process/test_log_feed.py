"""LogFeed: the commit log as a loop reads it that the ring does not reach back far enough for."""

from __future__ import annotations

import pytest

import reput
from reput.errors import DamagedStore
from reput.process import log_feed
from reput.process.log_feed import LogFeed
from reput.settings import Settings
from reput_hooks import Cursor, DispatchBatch


@pytest.fixture
def feed(tmp_path, monkeypatch):
    """Return the feed of a log of 30 records, of which a chunk has three or four, and how far the log goes."""
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


@pytest.mark.parametrize(("rows_wanted", "fewest"), [(1, 1), (8, 8), (1000, 30)])
def test_chunks_are_joined_to_batches(feed, monkeypatch, rows_wanted, fewest):
    """The memory is bounded by the chunk, the work of a view by the rows; nothing is left out or comes twice."""
    log, end = feed
    monkeypatch.setattr(log_feed, "ROWS_WANTED", rows_wanted)
    found, at = [], 0
    while at < end:
        part = log.read(at, end)
        assert len(offsets(part)) >= min(fewest, 30 - len(found))
        assert part.store_timestamp > 0
        found += offsets(part)
        at = part.end
    assert len(found) == len(set(found)) == 30
    assert found == sorted(found)


def test_what_lies_before_damage_comes_first(feed, tmp_path):
    """Damage in a later chunk is met by the next reading."""
    log, end = feed
    damaged = offsets(log.read(0, end))[20]
    log.close()
    with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as segment:
        segment.seek(damaged)
        segment.write(bytes(8))
    found = log.read(0, end)
    assert found.end == damaged
    with pytest.raises(DamagedStore):
        log.read(damaged, end)
