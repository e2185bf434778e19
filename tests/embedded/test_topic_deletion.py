"""A deleted topic stays deleted, beside readers and through crashes and rebuilds; its name can be used again."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import reput
from delivering import wait_until
from reput.errors import ConfigError, DamagedStore, StoreClosed
from reput.process.control.control_socket import request
from reput.process.owner.offline_rebuild import rebuild
from reput.settings import Settings, load_settings
from reput.store.check.check import check_store
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.state.topic_deletions import TopicDeletions
from small_store import ManualClock, drop, open_store, records

SMALL = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
WAIT_S = 60.0


def open_inline(path: Path, **settings: object) -> reput.Store:
    """Open a small store whose dispatchers run on a thread of the test."""
    return reput.open(path, mode="inline", **SMALL, **settings)


def put(store: reput.Store, topic: str, count: int = 3) -> list[int]:
    """Put *count* messages; return their queue offsets, once they can be read."""
    results = [store.put(reput.Message(topic, f"{topic} {number}".encode())) for number in range(count)]
    store.wait_for("consume_queue", results[-1].next_commit_log_offset, WAIT_S)
    return [result.queue_offset for result in results]


def bodies(store: reput.Store | reput.ReadOnlyStore, topic: str) -> list[bytes]:
    """Return the bodies that a reader gets for a topic."""
    return [record.body for record in store.get(topic)]


def views(path: Path) -> dict[str, str]:
    """Return the states of the views from `check`; the log must be undamaged."""
    report = check_store(path, Settings())
    assert report.damage == []
    return {name: view.state for name, view in report.views.items() if name != "consume_queue_ext"}


@pytest.mark.processes
def test_a_deleted_topic_has_no_messages_and_its_name_begins_anew(tmp_path):
    """For readers in the same program and in others."""
    with reput.open(tmp_path, **SMALL) as store, reput.open(tmp_path, read_only=True) as beside:
        put(store, "orders", 12)
        put(store, "bills", 2)
        assert len(bodies(store, "orders")) == len(bodies(beside, "orders")) == 12
        deleted_at = store.delete_topic("orders", WAIT_S)
        assert deleted_at == store.appended
        assert bodies(store, "orders") == bodies(beside, "orders") == []
        assert store.queue_range("orders") == (0, 0)
        assert "orders" not in store.topics()
        assert len(bodies(store, "bills")) == 2
        assert put(store, "orders", 2) == [0, 1]
        assert bodies(store, "orders") == [b"orders 0", b"orders 1"]
    assert views(tmp_path) == {"consume_queue": "equal", "index": "equal"}
    with reput.open(tmp_path, read_only=True) as store:
        assert bodies(store, "orders") == [b"orders 0", b"orders 1"]


@pytest.mark.processes
def test_nothing_of_a_deleted_topic_is_read_while_its_view_is_paused(tmp_path):
    """Its queues still have the old messages at offsets that new ones already use; readers get neither."""
    with reput.open(tmp_path, **SMALL) as store, reput.open(tmp_path, read_only=True) as beside:
        put(store, "orders", 5)
        put(store, "bills", 2)
        assert len(bodies(store, "orders")) == len(bodies(beside, "orders")) == 5
        request(tmp_path, "pause", "consume_queue")
        wait_until(
            lambda: [row.state for row in store.status().dispatchers if row.name == "consume_queue"] == ["PAUSED"]
        )
        store.delete_topic("orders", 0.01)
        for _ in range(2):
            for reader in (store, beside):
                assert bodies(reader, "orders") == []
                assert reader.queue_range("orders") == (0, 0)
                assert sorted(reader.topics()) == ["bills"]
                assert len(bodies(reader, "bills")) == 2
            new = store.put(reput.Message("orders", b"new"))
        assert new.queue_offset == 1
        request(tmp_path, "resume", "consume_queue")
        store.wait_for("consume_queue", store.appended, WAIT_S)
        assert bodies(store, "orders") == bodies(beside, "orders") == [b"new", b"new"]


def test_nothing_of_a_deleted_topic_is_read_where_its_view_ended_before(tmp_path):
    """The store was closed before the dispatcher reached the deletion, and no dispatcher runs now."""
    with open_inline(tmp_path) as store:
        put(store, "orders", 5)
    writer = reput.store.message_store.MessageStore(tmp_path, load_settings(**SMALL).settings)
    writer.delete_topic("orders")
    for number in range(2):
        writer.put(reput.Message("orders", b"new %d" % number))
    writer.close(views_complete=False)
    with reput.open(tmp_path, read_only=True) as store:
        assert bodies(store, "orders") == []


@pytest.mark.slow
@pytest.mark.newest_python
def test_no_rebuild_brings_a_deleted_topic_back(tmp_path):
    """Neither earlier messages, nor more than the new topic has."""
    with open_inline(tmp_path / "store") as store:
        put(store, "orders", 5)
        store.delete_topic("orders", WAIT_S)
        put(store, "bills", 1)
        put(store, "orders", 2)
        store.delete_topic("bills", WAIT_S)
    settings = load_settings(**SMALL).settings
    list(rebuild(tmp_path / "store", ["consume_queue"], tmp_path / "target", settings))
    built = tmp_path / "target" / "consumequeue"
    kept = tmp_path / "store" / "consumequeue"
    assert [path.name for path in built.iterdir()] == [path.name for path in kept.iterdir()] == ["orders"]
    assert {path.name: path.read_bytes() for path in (built / "orders" / "0").iterdir()} == {
        path.name: path.read_bytes() for path in (kept / "orders" / "0").iterdir()
    }


def test_what_is_stored_of_a_deleted_topic_goes_with_it(tmp_path):
    """Its entry in topics.json, and the groups' offsets for it; entries of other topics stay."""
    with open_inline(tmp_path) as store:
        put(store, "orders", 1)
    topics, offsets = TopicConfigManager(tmp_path), ConsumerOffsetManager(tmp_path)
    for topic in ("orders", "orders2"):
        topics.put(topic, TopicConfig(topic_name=topic))
        offsets.commit_offset("billing", topic, 0, 7)
    topics.persist()
    offsets.persist()
    with open_inline(tmp_path) as store:
        store.delete_topic("orders", WAIT_S)
    assert list(json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]) == ["orders2"]
    kept = ConsumerOffsetManager(tmp_path)
    kept.load()
    assert kept.offset_table == {"orders2@billing": {0: 7}}


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "TBW102", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_topic_of_rocketmqs_own_is_not_deleted(tmp_path, topic):
    """One of them holds the delayed messages of all topics."""
    with open_inline(tmp_path) as store, pytest.raises(ConfigError, match="system"):
        store.delete_topic(topic)


def test_a_closed_store_deletes_nothing(tmp_path):
    """It also refuses puts."""
    store = open_inline(tmp_path)
    store.close()
    with pytest.raises(StoreClosed):
        store.delete_topic("orders")


def test_a_topic_without_messages_can_be_deleted(tmp_path):
    """It need not have any data."""
    with open_inline(tmp_path) as store:
        assert store.delete_topic("orders", WAIT_S) == 0
        assert put(store, "orders", 2) == [0, 1]


# Recovery of a deletion.


def put_to(store, topic, count=1):
    """Put *count* messages; return their queue offsets."""
    return [store.put(reput.Message(topic, b"x" * 100)).queue_offset for _ in range(count)]


@pytest.mark.parametrize("before", [0, 1, 5, 40])
@pytest.mark.parametrize("after", [0, 1, 7])
def test_queue_offsets_begin_anew_behind_a_deletion_after_a_kill(tmp_path, before, after):
    """Regardless of how many records lie before and after it, across segments."""
    store = open_store(tmp_path)
    put_to(store, "bills", 3)
    put_to(store, "orders", before)
    store.delete_topic("orders")
    put_to(store, "bills", 2)
    put_to(store, "orders", after)
    drop(store)
    store = open_store(tmp_path)
    assert put_to(store, "orders") == [after]
    assert put_to(store, "bills") == [5]
    store.close(views_complete=False)


def test_queue_offsets_begin_anew_behind_a_deletion_after_a_close(tmp_path):
    """The snapshot contains it, and deletions after the snapshot are found, too."""
    store = open_store(tmp_path)
    put_to(store, "orders", 3)
    store.delete_topic("orders")
    store.close(views_complete=False)
    store = open_store(tmp_path)
    assert put_to(store, "orders", 2) == [0, 1]
    store.delete_topic("orders")
    drop(store)
    store = open_store(tmp_path)
    assert put_to(store, "orders") == [0]
    store.close(views_complete=False)


def test_a_deletion_behind_a_lost_tail_falls_upon_no_later_message(tmp_path):
    """The log now ends before the deletion, so it takes effect at the log's end."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    put_to(store, "orders", 3)
    [kept] = [records(tmp_path)[-1]]
    put_to(store, "bills", 2)
    store.delete_topic("orders")
    drop(store)
    # A power cut removed everything after the third record.
    end = kept.commit_log_offset + kept.record_size
    segment = tmp_path / "commitlog" / f"{0:020}"
    segment.write_bytes(segment.read_bytes()[:end].ljust(segment.stat().st_size, b"\0"))
    store = open_store(tmp_path, clock=clock)
    [deletion] = TopicDeletions(tmp_path).following(0)
    assert (deletion.topic, deletion.commit_log_offset) == ("orders", end)
    assert put_to(store, "orders", 4) == [0, 1, 2, 3]
    drop(store)
    store = open_store(tmp_path, clock=clock)
    assert put_to(store, "orders") == [4]
    store.close(views_complete=False)


def test_a_deletion_that_was_garbled_is_believed_by_nobody(tmp_path):
    """Otherwise the topic would return, and another one vanish; the error names file and line; nothing is changed."""
    store = open_store(tmp_path)
    put_to(store, "orders", 3)
    store.delete_topic("orders")
    drop(store)
    path = tmp_path / "reput" / "topic_deletions.jsonl"
    garbled = path.read_bytes().replace(b"orders", b"orderr")
    path.write_bytes(garbled)
    with pytest.raises(DamagedStore, match=r"topic_deletions\.jsonl line=1 "):
        open_store(tmp_path)
    with pytest.raises(DamagedStore, match=r"topic_deletions\.jsonl line=1 "):
        check_store(tmp_path, load_settings(**SMALL).settings)
    assert path.read_bytes() == garbled


def test_deletions_from_before_they_had_checksums_hold(tmp_path):
    """The topic stays deleted."""
    store = open_store(tmp_path)
    put_to(store, "orders", 3)
    store.delete_topic("orders")
    drop(store)
    path = tmp_path / "reput" / "topic_deletions.jsonl"
    [deletion] = TopicDeletions(tmp_path).following(0)
    path.write_bytes(msgspec.json.encode(deletion) + b"\n")
    store = open_store(tmp_path)
    assert put_to(store, "orders", 2) == [0, 1]
    drop(store)


def test_a_killed_view_makes_up_for_the_deletion(tmp_path):
    """Its files still exist when the store is opened again."""
    with open_inline(tmp_path) as store:
        put(store, "orders", 5)
    writer = reput.store.message_store.MessageStore(tmp_path, load_settings(**SMALL).settings)
    writer.delete_topic("orders")
    writer.close(views_complete=False)
    assert (tmp_path / "consumequeue" / "orders").exists()
    assert views(tmp_path) == {"consume_queue": "equal", "index": "equal"}
    with open_inline(tmp_path) as store:
        assert put(store, "orders", 2) == [0, 1]
        assert len(bodies(store, "orders")) == 2
    assert views(tmp_path) == {"consume_queue": "equal", "index": "equal"}
