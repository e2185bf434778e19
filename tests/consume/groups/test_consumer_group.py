"""ConsumerGroup: queues that are added and removed during consumption, and unreadable records."""

from __future__ import annotations

import contextlib
import threading

import pytest

import reput
from delivering import accept, wait_until
from reput.errors import DamagedStore
from reput.store.config.topic_config_manager import TopicConfig

WAIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=1 << 16) as opened:
        yield opened


def describe(store, queue_nums: int) -> None:
    """Describe the topic with this number of queues to read."""
    store._engine.services.topics.create_or_update(
        TopicConfig(topic_name="orders", read_queue_nums=queue_nums, write_queue_nums=4)
    )


def queues(store) -> set[tuple[str, int]]:
    """Return topic and id of each queue that the consumers share."""
    return store._engine.services.consumer_groups["billing"].queues.keys()


def received(store, consumer) -> list[bytes]:
    """Return the bodies of the available messages, in order."""
    store.wait_for("consume_queue", store.appended, WAIT_S)
    bodies = []
    while (record := consumer.receive(0)) is not None:
        consumer.acknowledge(record)
        bodies.append(record.body)
    return sorted(bodies)


def test_a_topic_is_read_in_fewer_queues_or_more(store):
    """No error is raised, and messages put to a queue before it became readable are delivered then."""
    describe(store, 3)
    with store.consumer("billing", "orders") as first, store.consumer("billing", "orders") as second:
        for queue_id in range(4):
            store.put(reput.Message("orders", b"%d" % queue_id, queue_id=queue_id))
        assert [*received(store, first), *received(store, second)] == [b"0", b"1", b"2"]
        describe(store, 1)
        store.put(reput.Message("orders", b"late", queue_id=2))
        wait_until(
            lambda: received(store, second) == received(store, first) == [] and ("orders", 2) not in queues(store)
        )
        store._engine.services.look_for_queues()
        assert queues(store) == {("orders", 0)}
        describe(store, 4)
        store._engine.services.look_for_queues()
        assert sorted(received(store, first) + received(store, second)) == [b"3", b"late"]
    offsets = store._engine.services.managers.offsets
    assert [offsets.query_offset("billing", "orders", queue_id) for queue_id in range(4)] == [1, 1, 2, 1]


def test_one_put_to_a_far_queue_makes_no_queue_between(store):
    """A topic without a description has the queues that were put to, whatever their numbers."""
    far = 2**31 - 1
    store.put(reput.Message("orders", b"far", queue_id=far))
    store.put(reput.Message("orders", b"near", queue_id=2))
    store.wait_for("consume_queue", store.appended, WAIT_S)
    administration = store._engine.services.administration
    with store.consumer("billing", "orders") as consumer:
        assert queues(store) == {("orders", 2), ("orders", far)}
        store._engine.services.look_for_queues()
        assert received(store, consumer) == [b"far", b"near"]
        store.put(reput.Message("orders", b"new", queue_id=7))
        consumer.acknowledge(consumer.receive(WAIT_S))
        consumer.rewind("earliest")
        assert received(store, consumer) == [b"far", b"near", b"new"]
    assert [row.queue_id for row in administration.topic_stats("orders")] == [2, 7, far]
    assert [row.queue_id for row in administration.reset_offsets("billing", "orders", "latest")] == [2, 7, far]
    describe(store, 4)
    with store.consumer("billing", "orders") as consumer:
        assert queues(store) == {("orders", queue_id) for queue_id in range(4)}
    rows = administration.topic_stats("orders")
    assert [row.queue_id for row in rows] == [0, 1, 2, 3, 7, far]
    assert (rows[3].max_offset, rows[3].last_update_timestamp) == (0, None)


def test_what_is_done_while_an_offset_is_reset_is_done(store, monkeypatch):
    """An operator's reset and a concurrent commit are serialised."""
    for number in range(3):
        store.put(reput.Message("orders", b"%d" % number))
    store.wait_for("consume_queue", store.appended, WAIT_S)
    offsets = store._engine.services.managers.offsets
    with store.consumer("billing", "orders") as consumer:
        assert received(store, consumer) == [b"0", b"1", b"2"]
        consumer.commit()
        commit_offset = offsets.commit_offset

        def go_on() -> None:
            consumer.acknowledge(consumer.receive(WAIT_S))
            consumer.commit()

        thread = threading.Thread(target=go_on)

        def commit_meanwhile(group: str, topic: str, queue_id: int, queue_offset: int) -> None:
            if queue_offset == 0:
                thread.start()
                thread.join(0.05)
            commit_offset(group, topic, queue_id, queue_offset)

        with monkeypatch.context() as patched:
            patched.setattr(offsets, "commit_offset", commit_meanwhile)
            store._engine.services.administration.reset_offsets("billing", "orders", "earliest")
        thread.join(WAIT_S)
        consumer.commit()
        assert offsets.query_offset("billing", "orders", 0) == 1
    store._engine.services.administration.reset_offsets("billing", "orders", "earliest")
    assert offsets.query_offset("billing", "orders", 0) == 0
    with store.consumer("billing", "orders") as consumer:
        assert received(store, consumer) == [b"0", b"1", b"2"]
    store._engine.services.administration.reset_offsets("billing", "orders", "earliest")
    store._engine.services.administration.reset_offsets("billing", "orders", "latest", queue_id=0)
    assert offsets.query_offset("billing", "orders", 0) == 3


def test_a_record_that_is_damaged_holds_up_its_queue_alone(store):
    """Messages before it are delivered; it is reported each time, and neither skipped nor committed."""
    results = [store.put(reput.Message("orders", b"%d" % number)) for number in range(40)]
    store.wait_for("consume_queue", store.appended, WAIT_S)
    store.flush()
    with (store.directory / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(results[19].commit_log_offset + 4)
        segment.write(b"\0\0\0\0")
    with store.consumer("billing", "orders") as consumer:
        for number in range(19):
            record = consumer.receive(WAIT_S)
            assert record.body == b"%d" % number
            consumer.acknowledge(record)
        for _ in range(2):
            with pytest.raises(DamagedStore, match="queue_offset=19"):
                consumer.receive(WAIT_S)
        store.put(reput.Message("orders", b"other", queue_id=1))
        store.wait_for("consume_queue", store.appended, WAIT_S)
        store._engine.services.consumer_groups["billing"].look_for_queues()
        others = []
        for _ in range(2):
            with contextlib.suppress(DamagedStore):
                others.append(consumer.receive(0))
        assert [record.body for record in others] == [b"other"]
        consumer.acknowledge(others[0])
        consumer.commit()
        assert store._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 19
        accept(store, results[19])
        assert received(store, consumer) == [b"%d" % number for number in range(20, 40)]
