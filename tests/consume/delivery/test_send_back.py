"""Failed messages come again, with increasing delays, and finally become dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import reput
from delivering import all_records
from reput.consume.delivery.send_back import dead_letter_when_exhausted, send_back
from reput.embedded.store import Store
from reput.errors import RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import MessageExtBrokerInner
from reput_hooks import Record

GROUP = "billing"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=64 << 10) as opened:
        yield opened


def put_one(store: Store, **fields: Any) -> Record:
    """Put a message and return its record."""
    store.put(reput.Message("orders", b"body", tags="paid", keys=["k1"], properties={"a": "1"}, flag=5, **fields))
    return last(store)


def last(store: Store) -> Record:
    return all_records(store)[-1]


def sent_back(store: Store, record: Record, *arguments: int | None) -> Record:
    """Send a message back and return its copy, regardless of other deliveries of the store."""
    result = send_back(store._engine, GROUP, record, *arguments)
    assert result is not None
    return all_records(store, result.commit_log_offset)[0]


def test_a_message_comes_again_later_each_time(store):
    """Ten seconds at first, by RocketMQ's table: level 3, then one level more each time."""
    record = put_one(store)
    first = sent_back(store, record)
    assert (first.topic, first.queue_id, first.reconsume_times) == (SCHEDULE_TOPIC, 2, 1)
    assert first.properties == {
        "a": "1",
        "KEYS": "k1",
        "TAGS": "paid",
        "RETRY_TOPIC": "orders",
        "WAIT": "false",
        "ORIGIN_MESSAGE_ID": record.message_id,
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%billing",
        "REAL_QID": "0",
    }
    assert (first.body, first.flag, first.born_timestamp) == (b"body", 5, record.born_timestamp)
    # The copy as it will be delivered is sent back again.
    second = sent_back(store, replace(first, topic="%RETRY%billing"))
    assert (second.queue_id, second.reconsume_times) == (3, 2)
    assert second.properties["RETRY_TOPIC"] == "orders"
    assert second.properties["ORIGIN_MESSAGE_ID"] == record.message_id


def test_a_level_that_is_named_is_taken_and_the_highest_is_the_longest(store):
    record = put_one(store)
    assert sent_back(store, record, 1).queue_id == 0
    highest = sent_back(store, replace(record, reconsume_times=15))
    assert (highest.queue_id, highest.properties["DELAY"]) == (17, "18")


@pytest.mark.parametrize(
    ("reconsume_times", "delay_level", "maximum"), [(16, 0, None), (2, 3, 2), (0, -1, None), (0, 0, 0)]
)
def test_the_dead_letters_take_what_came_often_enough(store, reconsume_times, delay_level, maximum):
    """After the maximum of the group or of the request, or on the consumer's request: at once, without a delay."""
    record = replace(put_one(store), reconsume_times=reconsume_times)
    dead = sent_back(store, record, delay_level, maximum)
    assert (dead.topic, dead.queue_id, dead.reconsume_times) == ("%DLQ%billing", 0, reconsume_times + 1)
    assert (dead.properties["DELAY"], dead.properties["RETRY_TOPIC"]) == ("0", "orders")


def test_topics_and_group_are_made_when_they_are_needed(store):
    """With the group's number of queues and with read and write permission; they are in the configuration files."""
    store._engine.services.groups.create_or_update(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=3))
    record = put_one(store)
    queues = set()
    for _ in range(40):
        queues.add(sent_back(store, record).properties["REAL_QID"])
    assert queues == {"0", "1", "2"}
    send_back(store._engine, GROUP, record, -1)
    store._engine.services.topics.keep_new()
    manager = TopicConfigManager(store.directory)
    manager.load()
    assert (manager.entries["%RETRY%billing"].read_queue_nums, manager.entries["%RETRY%billing"].perm) == (3, 6)
    assert (manager.entries["%DLQ%billing"].write_queue_nums, manager.entries["%DLQ%billing"].perm) == (1, 6)


def test_what_comes_again_comes_to_a_queue_that_is_read(store):
    """Even if the group got more retry queues after its retry topic was created."""
    record = put_one(store)
    send_back(store._engine, GROUP, record)
    store._engine.services.groups.create_or_update(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=64))
    for _ in range(8):
        assert sent_back(store, record).properties["REAL_QID"] == "0"


def test_a_group_without_retry_queues_gets_nothing_again(store):
    """Like in RocketMQ, the request succeeds and stores nothing."""
    store._engine.services.groups.create_or_update(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=0))
    record = put_one(store)
    end = store.appended
    assert send_back(store._engine, GROUP, record) is None
    assert store.appended == end


def test_what_is_not_permitted_is_refused_with_rocketmqs_code(store):
    """Nothing is stored."""
    record = put_one(store)
    end = store.appended
    with pytest.raises(RequestRefused) as refused:
        send_back(store._engine, "no group", record)
    assert refused.value.response_code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    store._engine.services.topics.create_or_update(TopicConfig(topic_name="%RETRY%billing", perm=4))
    with pytest.raises(RequestRefused) as refused:
        send_back(store._engine, GROUP, record)
    assert refused.value.response_code == ResponseCode.NO_PERMISSION
    assert store.appended == end


def test_a_broker_that_takes_no_messages_takes_none_back(tmp_path):
    with reput.open(tmp_path / "store", mode="inline", broker_permission=4) as store:
        record = put_one(store)
        with pytest.raises(RequestRefused) as refused:
            send_back(store._engine, GROUP, record)
        assert refused.value.response_code == ResponseCode.NO_PERMISSION


def test_copies_are_those_that_rocketmq_made(golden, golden_listing):
    """Each record that its broker sent back is sent back here: fields and properties are the same."""
    rows = golden_listing("delay-retry-5.3")
    with reput.open(golden("delay-retry-5.3") / "store", mode="inline") as store:
        stored = {record.commit_log_offset: record for record in store.records()}
        compared = 0
        by_key: dict[str, list[Record]] = {}
        for row in rows:
            record = stored[row["physicalOffset"]]
            copies = by_key.setdefault(record.uniq_key, [])
            former = copies[-1] if copies else None
            copies.append(record)
            if former is None or record.reconsume_times != former.reconsume_times + 1:
                continue
            dead = record.topic.startswith("%DLQ%")
            target = record.topic if dead else record.properties["REAL_TOPIC"]
            group = target.removeprefix("%DLQ%").removeprefix("%RETRY%")
            level = 0 if dead else int(record.properties["DELAY"])
            result = send_back(store._engine, group, former, level, former.reconsume_times if dead else None)
            # Meanwhile the store delivers its waiting messages.
            own = next(store.records(result.commit_log_offset))
            for name in ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "body", "properties"):
                assert getattr(own, name) == getattr(record, name)
            assert own.reconsume_times == record.reconsume_times
            compared += 1
    assert compared == 5 + 6 * 3


def test_the_statistics_count_what_comes_back(store):
    """By group and original topic, with dead letters counted separately."""
    record = put_one(store)
    send_back(store._engine, GROUP, record)
    send_back(store._engine, GROUP, record, -1)
    counted = store._engine.services.statistics.of_group(GROUP, "orders")
    assert (counted.send_back_nums, counted.dead_letter_nums) == (2, 1)


@pytest.mark.parametrize(("reconsume_times", "maximum", "dead"), [(16, None, False), (17, None, True), (3, 2, True)])
def test_a_consumer_that_sends_to_its_retry_topic_itself_meets_the_same_end(store, reconsume_times, maximum, dead):
    """After more deliveries than the maximum it becomes a dead letter, without the requested delay."""
    message = MessageExtBrokerInner(
        "%RETRY%billing", b"x", properties={"DELAY": "4"}, delay_level=4, reconsume_times=reconsume_times
    )
    store.put(dead_letter_when_exhausted(store._engine, message, maximum))
    assert last(store).topic == ("%DLQ%billing" if dead else SCHEDULE_TOPIC)
    assert last(store).reconsume_times == reconsume_times
    if dead:
        # As in RocketMQ 5.
        assert last(store).properties["DELAY"] == "-1"
    others = MessageExtBrokerInner("orders", b"x", reconsume_times=99)
    assert dead_letter_when_exhausted(store._engine, others) is others
