"""RocketMQ's data in RocksDB is reported, and not mistaken for missing data."""

from __future__ import annotations

import shutil

import pytest

import reput
from reput.errors import StoreError
from reput.settings import Settings
from reput.store.check.check import check_store
from small_store import open_store


@pytest.fixture
def store(golden):
    """A store of RocketMQ 5.5, whose rocksdbstore/ is empty."""
    return golden("direct-5.5") / "store"


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue_rocksdb"])
def test_a_store_with_its_queues_in_rocksdb_is_refused(store, name):
    """Otherwise each topic would look deleted. Readers get the error, too; the log can be read."""
    topic = next(path.name for path in sorted((store / "consumequeue").iterdir()))
    shutil.rmtree(store / "consumequeue")
    (store / name).mkdir()
    (store / name / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    with pytest.raises(StoreError, match=f"consume queues of this store in RocksDB.* path={store / name}"):
        open_store(store)
    assert not (store / "reput" / "store.json").exists()
    with reput.open(store, read_only=True) as opened:
        assert len(list(opened.records())) == 260
        with pytest.raises(StoreError, match="consume queues of this store in RocksDB"):
            opened.get(topic)
    assert any("consume queues in RocksDB" in note for note in check_store(store, Settings()).notes)


def test_queues_that_are_kept_both_ways_are_read(store):
    """RocketMQ may write them in both ways."""
    (store / "consumequeue_rocksdb").mkdir()
    (store / "consumequeue_rocksdb" / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    open_store(store).close(views_complete=True)
    assert check_store(store, Settings()).notes == []


def test_what_lies_in_rocksdb_is_a_note_of_a_check(store):
    """An empty folder does not count: every store of 5.4 and later has it."""
    assert check_store(store, Settings()).notes == []
    (store / "rocksdbstore" / "000007.sst").write_bytes(b"x")
    (store / "config" / "topics").mkdir(parents=True)
    (store / "config" / "topics" / "CURRENT").write_bytes(b"x")
    timers, configuration = check_store(store, Settings()).notes
    assert f"path={store / 'rocksdbstore'}" in timers
    assert f"path={store / 'config' / 'topics'}" in configuration
