"""ConsumerGroup: queues that come and go while they are consumed, and records that cannot be read."""

from __future__ import annotations

import contextlib

import pytest

import reput
from delivering import wait_until
from reput.errors import DamagedStore
from reput.store.recovery import DamagedRange, DamageList
from reput.store.sealed_file import seal
from reput.store.topic_config_manager import TopicConfig

WAIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=1 << 16) as opened:
        yield opened


def describe(store, queue_nums: int) -> None:
    """Have the topic be read in so many queues."""
    store.services.topics.create_or_update(
        TopicConfig(topic_name="orders", read_queue_nums=queue_nums, write_queue_nums=4)
    )


def received(consumer) -> list[bytes]:
    """Return the bodies of what is there, in order."""
    store = consumer.shared.services.store
    store.wait_for("consume_queue", store.appended, WAIT_S)
    bodies = []
    while (record := consumer.receive(0)) is not None:
        consumer.acknowledge(record)
        bodies.append(record.body)
    return sorted(bodies)


def test_a_topic_is_read_in_fewer_queues_or_more(store):
    """Nobody is told by an error, and what was put to a queue before it was to be read is given then."""
    describe(store, 3)
    with store.consumer("billing", "orders") as first, store.consumer("billing", "orders") as second:
        for queue_id in range(4):
            store.put(reput.Message("orders", b"%d" % queue_id, queue_id=queue_id))
        assert [*received(first), *received(second)] == [b"0", b"1", b"2"]
        describe(store, 1)
        store.put(reput.Message("orders", b"late", queue_id=2))
        wait_until(lambda: received(second) == received(first) == [] and ("orders", 2) not in first.shared.queues)
        store.services.look_for_queues()
        assert first.shared.queues.keys() == {("orders", 0)}
        describe(store, 4)
        store.services.look_for_queues()
        assert sorted(received(first) + received(second)) == [b"3", b"late"]
    offsets = store.services.managers.offsets
    assert [offsets.query_offset("billing", "orders", queue_id) for queue_id in range(4)] == [1, 1, 2, 1]


def accept(store, result) -> None:
    """Have an operator decide that a record is lost, as `reput repair --accept` keeps it."""
    damaged = DamagedRange(result.commit_log_offset, result.next_commit_log_offset, "no record", accepted=True)
    (store.directory / "reput" / "damage").write_bytes(seal(DamageList([damaged])))


def test_a_record_that_is_damaged_holds_up_its_queue_alone(store):
    """What lies before it is given; it is reported each time, and neither passed over nor committed."""
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
        consumer.shared.look_for_queues()
        others = []
        for _ in range(2):
            with contextlib.suppress(DamagedStore):
                others.append(consumer.receive(0))
        assert [record.body for record in others] == [b"other"]
        consumer.acknowledge(others[0])
        consumer.commit()
        assert store.services.managers.offsets.query_offset("billing", "orders", 0) == 19
        accept(store, results[19])
        assert received(consumer) == [b"%d" % number for number in range(20, 40)]
