"""Where a group begins and goes on: rewinds, deleted topics, torn offsets."""

from __future__ import annotations

import pytest

import reput
from consume.groups.consuming import WAIT_S, bodies_of, offsets, put
from reput.embedded.topic_deletion import GoneDirectory
from reput.errors import ConfigError, OffsetOutOfRange, RequestRefused, StoreClosed


@pytest.fixture
def directory(tmp_path):
    """The store's directory."""
    return tmp_path / "store"


@pytest.fixture
def store(directory):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(directory, mode="inline", mapped_file_size_commit_log=1 << 16) as opened:
        yield opened


def test_the_group_rewinds(store):
    """To its beginning, to a time, to an offset."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 3) == ["a", "b", "c"]
        consumer.rewind()
        record = consumer.receive(WAIT_S)
        assert record.body == b"a"
        consumer.seek("orders", 0, 2)
        with pytest.raises(RequestRefused, match="not in flight"):
            consumer.acknowledge(record)
        assert bodies_of(consumer, 1) == ["c"]
        consumer.rewind(record.store_timestamp)
        assert bodies_of(consumer, 3) == ["a", "b", "c"]
        consumer.rewind("latest", topic="orders")
        put(store, "d")
        assert bodies_of(consumer, 1) == ["d"]


def test_a_group_may_begin_with_what_comes(store):
    """It continues there, even if it never received a message."""
    put(store, "old")
    with store.consumer("billing", "orders", begin="latest") as consumer:
        assert consumer.receive(timeout=0) is None
    put(store, "new")
    with store.consumer("billing", "orders", begin="latest") as consumer:
        assert bodies_of(consumer, 1) == ["new"]


def test_a_place_that_is_none_moves_nobody(store):
    """Nothing is committed: an offset outside the queue, or a queue or topic of another consumer."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 1) == ["a"]
        for queue_id, queue_offset in [(0, -1), (0, 4), (0, 1 << 80), (1, 0)]:
            with pytest.raises(OffsetOutOfRange, match=f"queue_id={queue_id}"):
                consumer.seek("orders", queue_id, queue_offset)
        with pytest.raises(ConfigError, match="not subscribed"):
            consumer.seek("invoices", 0, 0)
        with pytest.raises(ConfigError, match="not subscribed"):
            consumer.rewind(topic="invoices")
        for to in ("erliest", None, True, 1.5, -1):
            with pytest.raises(ConfigError, match="to="):
                consumer.rewind(to)
        consumer.commit()
        assert store._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 1
        consumer.seek("orders", 0, 3)
        put(store, "d")
        assert bodies_of(consumer, 1) == ["d"]
    with store.consumer("billing", "orders") as other:
        for move in (consumer.rewind, lambda: consumer.seek("orders", 0, 0), consumer.__enter__):
            with pytest.raises(StoreClosed, match="consumer is closed"):
                move()
        assert other.receive(0) is None


def test_without_queues_there_is_nothing_to_consume(directory):
    """Waiting would never end."""
    with (
        reput.open(directory, mode="inline", dispatchers=["index"]) as store,
        pytest.raises(ConfigError, match="dispatchers=index"),
    ):
        store.consumer("billing", "orders")


@pytest.mark.slow
def test_torn_offsets_are_taken_from_before(directory):
    """The backup has the state before the last change, which is lost with the file."""
    for count in (1, 2):
        with reput.open(directory, mode="inline") as store:
            put(store, *"abc"[: 4 - count])
            with store.consumer("billing", "orders") as consumer:
                bodies_of(consumer, count)
    path = directory / "config" / "consumerOffset.json"
    assert offsets(directory, "billing") == {0: 3}
    path.write_bytes(path.read_bytes()[:-9])
    with reput.open(directory, mode="inline") as store, store.consumer("billing", "orders") as consumer:
        assert consumer.receive(WAIT_S).queue_offset == 1


def test_a_topic_that_is_deleted_begins_anew_for_its_consumers(store):
    """Its next messages begin at offset 0 again."""
    put(store, "a", "b", "c")
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 2) == ["a", "b"]
        in_flight = consumer.receive(WAIT_S)
        store._engine.services.administration.delete_topic("orders")
        with pytest.raises(RequestRefused):
            consumer.acknowledge(in_flight)
        put(store, "new")
        assert bodies_of(consumer, 1) == ["new"]
        consumer.commit()
    assert store._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 1


def test_what_a_deleted_topic_had_is_not_given_while_its_queues_go(store, monkeypatch):
    """A consumer that waits meanwhile continues to wait, until the topic has messages again."""
    put(store, "a", "b", "c")
    wait = GoneDirectory.wait
    meanwhile = []

    def slow(*arguments):
        meanwhile.append(consumer.receive(0))
        return wait(*arguments)

    monkeypatch.setattr(GoneDirectory, "wait", slow)
    with store.consumer("billing", "orders") as consumer:
        assert bodies_of(consumer, 1) == ["a"]
        store.delete_topic("orders")
        assert meanwhile == [None]
        assert consumer.receive(0) is None
        put(store, "new")
        assert bodies_of(consumer, 1) == ["new"]
        assert consumer.receive(0) is None
