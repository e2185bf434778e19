"""Offsets beyond the end of a log that a power cut has shortened."""

from __future__ import annotations

import os
import shutil

import pytest

import reput
from delivering import open_inline, wait_until
from reput.consume.groups.cut_offsets import bring_back_offsets
from reput.consume.groups.local_offset_store import LocalFileOffsetStore
from reput.errors import DamagedStore
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager, consumer_offset_manager
from reput.store.queue.queue_offsets import QueueOffsets

WAIT_S = 60.0


def put(store, *bodies: bytes) -> None:
    """Put a message per body."""
    for body in bodies:
        store.put(reput.Message("orders", body))


def test_a_group_misses_nothing_that_takes_the_place_of_what_a_power_cut_took(tmp_path, caplog):
    """Messages that it had consumed are gone, and the next messages get their offsets: they are delivered."""
    with open_inline(tmp_path / "store") as store:
        put(store, b"0", b"1")
        store.flush()
        shutil.copytree(tmp_path / "store", tmp_path / "cut")
        put(store, b"lost", b"lost, too")
        with store.consumer("billing", "orders") as consumer:
            for _ in range(4):
                consumer.acknowledge(consumer.receive(WAIT_S))
    # The disk's state: it has the offsets, but not the end of the log.
    shutil.copytree(tmp_path / "store" / "config", tmp_path / "cut" / "config", dirs_exist_ok=True)
    with open_inline(tmp_path / "cut") as store:
        put(store, b"new", b"newer")
        with store.consumer("billing", "orders") as consumer:
            assert [consumer.receive(WAIT_S).body for _ in range(2)] == [b"new", b"newer"]
    assert "group=billing topic=orders queue_id=0 committed=4 queue_offset_max=2" in caplog.text


def test_a_group_misses_nothing_of_a_queue_that_a_power_cut_took_whole(tmp_path, caplog):
    """Only the stored offset is left, neither queue nor log: the new messages are delivered."""
    for kept in ([], ["other"]):
        root = tmp_path / str(len(kept))
        with open_inline(root / "store") as store:
            for topic in kept:
                store.put(reput.Message(topic, b"kept"))
            store.flush()
            shutil.copytree(root / "store", root / "cut")
            put(store, b"lost", b"lost, too")
            with store.consumer("billing", "orders") as consumer:
                for _ in range(2):
                    consumer.acknowledge(consumer.receive(WAIT_S))
        shutil.copytree(root / "store" / "config", root / "cut" / "config", dirs_exist_ok=True)
        with open_inline(root / "cut") as store:
            put(store, b"new", b"newer", b"newest")
            with store.consumer("billing", "orders") as consumer:
                assert [consumer.receive(WAIT_S).body for _ in range(3)] == [b"new", b"newer", b"newest"]
        assert "group=billing topic=orders queue_id=0 committed=2 queue_offset_max=0" in caplog.text
        caplog.clear()


def test_committed_offsets_are_compared_with_the_log_only_where_it_may_have_lost_something(tmp_path, monkeypatch):
    """Opening a cleanly closed store does not read the offsets of all groups; after a kill they are read."""
    with open_inline(tmp_path / "store") as store:
        put(store, b"0", b"1")
        with store.consumer("billing", "orders") as consumer:
            consumer.acknowledge(consumer.receive(WAIT_S))
        store.flush()
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    managers = []

    def counted(*arguments):
        managers.append(consumer_offset_manager(*arguments))
        return managers[-1]

    monkeypatch.setattr("reput.embedded.store_engine.consumer_offset_manager", counted)
    for _ in range(2):
        with open_inline(tmp_path / "store") as store:
            assert managers == []
            put(store, b"more")
    with open_inline(tmp_path / "killed"):
        assert len(managers) == 1


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_broadcasting_consumer_misses_nothing_that_takes_the_place_of_what_a_power_cut_took(tmp_path, caplog, kept):
    """Its own file was on disk, the end of the log was not; it returns only after new messages have been put."""
    path = tmp_path / "place.json"
    with open_inline(tmp_path / "store") as store:
        put(store, *(b"kept",) * kept)
        store.flush()
        shutil.copytree(tmp_path / "store", tmp_path / "cut")
        put(store, *(b"lost",) * 3)
        with store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer:
            for _ in range(kept + 3):
                consumer.acknowledge(consumer.receive(WAIT_S))
    new = [b"%d" % number for number in range(5)]
    with open_inline(tmp_path / "cut") as store:
        put(store, *new)
        with store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer:
            for body in new[:4]:
                record = consumer.receive(WAIT_S)
                assert record.body == body
                consumer.acknowledge(record)
    assert f"group=caches topic=orders queue_id=0 committed={kept + 3} queue_offset_max={kept}" in caplog.text
    caplog.clear()
    with (
        open_inline(tmp_path / "cut") as store,
        store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer,
    ):
        assert consumer.receive(WAIT_S).body == new[4]
    assert "the log lost messages" not in caplog.text


def test_a_broadcasting_consumer_misses_nothing_of_a_queue_that_a_power_cut_took_whole(tmp_path, caplog):
    """The queue exists again only after the consumer has continued in another one, and has returned a second time."""
    path = tmp_path / "place.json"

    def consume(store: reput.Store, *bodies: bytes) -> None:
        with store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer:
            for body in bodies:
                record = consumer.receive(WAIT_S)
                assert record.body == body
                consumer.acknowledge(record)

    with open_inline(tmp_path / "store") as store:
        put(store, b"kept")
        store.flush()
        shutil.copytree(tmp_path / "store", tmp_path / "cut")
        store.put(reput.Message("orders", b"lost", queue_id=1))
        store.put(reput.Message("orders", b"lost", queue_id=1))
        with store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer:
            for _ in range(3):
                consumer.acknowledge(consumer.receive(WAIT_S))
    with open_inline(tmp_path / "cut") as store:
        put(store, b"1")
        consume(store, b"1")
    with open_inline(tmp_path / "cut") as store:
        for body in (b"2", b"3", b"4"):
            store.put(reput.Message("orders", body, queue_id=1))
        consume(store, b"2", b"3", b"4")
    assert "group=caches topic=orders queue_id=1 committed=2 queue_offset_max=0" in caplog.text


@pytest.mark.parametrize("cut", [None, 50])
def test_a_queue_that_has_lost_a_file_says_so_to_whoever_looks_for_a_place_in_it(tmp_path, cut):
    """A file within the queue is missing or was cut short: the error names it."""
    with open_inline(tmp_path / "store", mapped_file_size_consume_queue=200) as store:
        put(store, *(b"%d" % number for number in range(50)))
        # No process has the file open any more to write or force it.
        wait_until(lambda: store._engine.views.durable_cursors()["consume_queue"] == store.appended)
        lost = tmp_path / "store" / "consumequeue" / "orders" / "0" / f"{25 * 20 // 200 * 200:020d}"
        if cut is None:
            lost.unlink()
        else:
            os.truncate(lost, cut)
        with pytest.raises(DamagedStore, match="topic=orders queue_id=0 queue_offset=25"):
            store._engine.queue_offset_from("orders", 0, store.appended)


def test_a_queue_that_cannot_be_read_keeps_no_other_from_being_told_of(tmp_path, monkeypatch):
    """Two queues have grown, and one is damaged: the consumer gets the other one."""
    with open_inline(tmp_path / "store") as store, store.consumer("billing", "orders"):
        shared = store._engine.services.consumer_groups["billing"]
        find = shared.new_queue

        def refuse(topic: str, queue_id: int, begin: str) -> object:
            if queue_id == 0:
                raise DamagedStore("the queue is damaged: queue_id=0")
            return find(topic, queue_id, begin)

        monkeypatch.setattr(shared, "new_queue", refuse)
        store.put(reput.Message("orders", b"1", queue_id=1))
        with pytest.raises(DamagedStore, match="queue_id=0"):
            shared.grown({("orders", 0), ("orders", 1)})
        assert [queue.queue_id for queue in shared.members[0].queues] == [1]


def test_a_broadcasting_consumer_begins_anew_with_another_store_in_the_place_of_its_own(tmp_path):
    """Even if the other store has more messages than the consumer had consumed."""
    path = tmp_path / "place.json"
    for name, bodies in (("old", [b"0", b"1"]), ("new", [b"2", b"3", b"4"])):
        with open_inline(tmp_path / name) as store:
            put(store, *bodies)
            with store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer:
                for body in bodies:
                    record = consumer.receive(WAIT_S)
                    assert record.body == body
                    consumer.acknowledge(record)


def test_a_file_of_offsets_that_does_not_say_where_the_log_ended_counts_up_to_the_end(tmp_path):
    """An earlier version wrote such files."""
    offsets = LocalFileOffsetStore(tmp_path / "place.json", NoLog())
    ConsumerOffsetManager.commit_offset(offsets, "caches", "orders", 0, 5)
    offsets.persist()
    with open_inline(tmp_path / "store") as store:
        put(store, b"old")
        with store.consumer("caches", "orders", broadcast=True, offset_store=tmp_path / "place.json") as consumer:
            put(store, b"new")
            assert consumer.receive(WAIT_S).body == b"new"


class NoLog:
    """A log that is never used."""


def test_offsets_of_queues_that_others_fill_are_left_alone(tmp_path):
    """The writer does not know the end of a queue that only RocketMQ writes. A queue without puts begins at 0."""
    offsets = ConsumerOffsetManager(tmp_path)
    for topic, queue_id in (("orders", 0), ("orders", 1), ("orders", 2), ("foreign", 0), ("absent", 0)):
        offsets.commit_offset("billing", topic, queue_id, 5)
    queue_offsets = QueueOffsets({"orders": {0: 5, 1: 4}})
    assert bring_back_offsets(offsets, queue_offsets, lambda topic: topic == "foreign") == 3
    assert offsets.offset_table == {
        "orders@billing": {0: 5, 1: 4, 2: 0},
        "foreign@billing": {0: 5},
        "absent@billing": {0: 0},
    }
