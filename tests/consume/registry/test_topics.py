"""Topics: which descriptions are on disk when, and that a kill before that loses no message."""

from __future__ import annotations

import shutil

import pytest

import reput
from delivering import LIMIT_S
from reput.store.config.config_json import parse_config
from working import QUICK_DELAYS


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test, and whose delays are as short as they can be."""
    with reput.open(
        tmp_path / "store",
        mode="inline",
        message_delay_level=QUICK_DELAYS,
        # A copy of the store has no holes.
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=1000,
        max_index_num=4000,
        # The test writes what is to be written.
        flush_consumer_offset_interval=3_600_000,
    ) as opened:
        yield opened


def described(directory) -> set[str]:
    """Return the topics that the file describes."""
    path = directory / "config" / "topics.json"
    return {*parse_config(path.read_text())["topicConfigTable"]} if path.exists() else set()


def test_a_topic_of_an_operator_is_on_disk_when_the_call_returns(store):
    """So is a change of it, and its deletion."""
    administration = store.administration
    administration.create_topic("orders", 2)
    assert described(store.directory) == {"orders"}
    administration.create_topic("payments", 2)
    assert described(store.directory) == {"orders", "payments"}
    administration.delete_topic("orders")
    assert described(store.directory) == {"payments"}


def test_topics_that_messages_create_are_written_together(store):
    """Not one by one on the way of a message, which must not wait for the disk; the next change takes them along."""
    topics = store._engine.services.topics
    for number in range(3):
        topics.create_when_missing(f"orders{number}", 1)
    assert described(store.directory) == set()
    topics.keep_new()
    assert described(store.directory) == {"orders0", "orders1", "orders2"}
    topics.create_when_missing("orders3", 1)
    store.administration.create_topic("payments", 2)
    assert "orders3" in described(store.directory)
    topics.create_when_missing("orders4", 1)
    store.close()
    assert "orders4" in described(store.directory)


def test_a_topic_that_messages_create_spreads_messages_once_it_is_written(store):
    """Until then the file, by which the writer distributes messages, does not describe it."""
    store._engine.services.topics.create_when_missing("orders", 4)
    assert {store.put(reput.Message("orders", b"a")).queue_id for _ in range(8)} == {0}
    store._engine.services.topics.keep_new()
    assert {store.put(reput.Message("orders", b"a")).queue_id for _ in range(8)} == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_kill_before_a_topic_is_written_loses_no_message(store, tmp_path):
    """A message that was sent back comes again, though the description of the retry topic is lost."""
    store.put(reput.Message("orders", b"a"))
    with store.consumer("billing", "orders") as consumer:
        consumer.nack(consumer.receive(LIMIT_S))
        consumer.commit()
        store.flush()
        shutil.copytree(store.directory, tmp_path / "killed")
    assert described(tmp_path / "killed") == set()
    with (
        reput.open(tmp_path / "killed", mode="inline") as again,
        again.consumer("billing", "orders") as consumer,
    ):
        record = consumer.receive(LIMIT_S)
        assert record is not None
        assert (record.body, record.reconsume_times) == (b"a", 1)
        consumer.nack(record, -1)
        again.wait_for("consume_queue", again.appended, LIMIT_S)
        assert again.get("%DLQ%billing")[0].body == b"a"
        assert "%DLQ%billing" in again.administration.topic_names()


def test_a_topic_whose_description_was_lost_keeps_its_queues(store):
    """The next message describes it again, even with fewer queues; consumers still read the messages in the others."""
    store.put(reput.Message("orders", b"a", queue_id=3))
    store.put(reput.Message("far", b"a", queue_id=1 << 30))
    topics = store._engine.services.topics
    assert topics.create_when_missing("orders", 1).read_queue_nums == 4
    assert topics.read_queue_ids("orders") == [0, 1, 2, 3]
    assert topics.create_when_missing("far", 1).read_queue_nums == 1
