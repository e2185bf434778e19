"""Which write queue of a topic a message gets."""

from __future__ import annotations

import threading

import pytest

from reput.errors import (
    MessageIllegal,
)
from reput.filter.string_hash import string_hash
from reput.store.record.message import Message
from small_store import (
    open_store,
    records,
)
from store.message_stores import describe


@pytest.fixture
def store(tmp_path):
    """A new store of small segments, closed afterwards."""
    opened = open_store(tmp_path / "store")
    yield opened
    if opened.state != "STOPPED":
        opened.close(views_complete=True)


def test_the_write_queues_of_a_described_topic_take_turns(store):
    """A message without a queue id goes to the next one, also in a batch; an undescribed topic has only queue 0."""
    describe(store.directory, "orders", 3)
    queue_ids = [store.put(Message("orders", b"")).queue_id for _ in range(4)]
    queue_ids += [result.queue_id for result in store.put_batch([Message("orders", b"", tags="a")] * 4)]
    assert queue_ids == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [store.put(Message("invoices", b"")).queue_id for _ in range(3)] == [0, 0, 0]
    assert store.put(Message("orders", b"", queue_id=7)).queue_id == 7


def test_a_sharding_key_picks_the_queue_as_rocketmqs_selector_does(store):
    """By the absolute remainder of Java's ``hashCode``, including its smallest value."""
    keys = ["order-17", "", "polygenelubricants", "ключ", "order-17"]
    describe(store.directory, "orders", 5)
    queue_ids = [store.put(Message("orders", b"", sharding_key=key)).queue_id for key in keys]
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE; Java's remainder by 5 is -3.
    assert queue_ids == [abs(string_hash("order-17")) % 5, 0, 3, abs(string_hash("ключ")) % 5, queue_ids[0]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"queue_id": 1, "sharding_key": "a"}, "queue_id=1 sharding_key='a'"), ({"sharding_key": 7}, "sharding_key=7")],
)
def test_a_sharding_key_is_text_and_stands_alone(store, fields, words):
    """Together with a queue id it would be ambiguous."""
    with pytest.raises(MessageIllegal, match=words):
        store.put(Message("orders", b"", **fields))


def test_a_delayed_message_is_spread_when_it_is_put(store):
    """It stores the selected queue."""
    describe(store.directory, "orders", 2)
    for _ in range(3):
        store.put(Message("orders", b"", delay_level=1))
    store.put(Message("orders", b"", sharding_key="b", delay_level=1))
    assert [(record.topic, record.properties["REAL_QID"]) for record in records(store.directory)] == [
        ("SCHEDULE_TOPIC_XXXX", queue_id) for queue_id in ("0", "1", "0", "0")
    ]


def test_a_topic_that_is_described_anew_is_spread_anew(store):
    """The store is notified, and reads the description at the next put."""
    describe(store.directory, "orders", 2)
    assert [store.put(Message("orders", b"")).queue_id for _ in range(2)] == [0, 1]
    describe(store.directory, "orders", 4)
    store.topic_table.topic_changed("orders")
    assert {store.put(Message("orders", b"")).queue_id for _ in range(4)} == {0, 1, 2, 3}


def test_a_description_that_changes_while_it_is_looked_up_is_not_missed(store):
    """A description read before the change is not kept after it."""
    describe(store.directory, "orders", 1)
    store.put(Message("orders", b""))
    store.topic_table.topic_changed("orders")
    find, changing = store.topic_table.batch_topics.described.find, []

    def find_while_it_changes(topic):
        found = find(topic)
        if not changing:
            describe(store.directory, "orders", 4)
            changing.append(threading.Thread(target=store.topic_table.topic_changed, args=("orders",)))
            changing[0].start()
        return found

    store.topic_table.batch_topics.described.find = find_while_it_changes
    store.put(Message("orders", b""))
    changing[0].join()
    assert {store.put(Message("orders", b"")).queue_id for _ in range(4)} == {0, 1, 2, 3}
