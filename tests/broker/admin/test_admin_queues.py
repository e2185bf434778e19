"""What queues hold and how far groups are in them, as administrators ask."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from delivering import wait_until
from reput.broker.admin.admin_bodies import parse_body
from reput.remoting.message_queue import MessageQueue
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import RawClient, ServedBroker, served

SUCCESS = ResponseCode.SUCCESS


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue("broker-a", queue_id, topic)


def ask(client: RawClient, code: int, **fields: object) -> Any:
    """Return the body of an answer that has to be successful."""
    answer = client.ask(code, {name: str(value) for name, value in fields.items()})
    assert answer.code == SUCCESS, answer.remark
    return parse_body(answer.body_bytes)


def commit(client: RawClient, group: str, queue_id: int, offset: int, topic: str = "T") -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == SUCCESS


@pytest.fixture
def filled(broker: ServedBroker, client: RawClient) -> RawClient:
    """A connection; topic T has four queues, 3 messages in the first and 1 in the second."""
    for queue_id in (0, 0, 0, 1):
        assert client.send_message("T", queue_id=queue_id, properties={"TAGS": "a"}).code == SUCCESS
    # Administrators see what consumers do.
    wait_until(lambda: max_offset(client, 0) == 3 and max_offset(client, 1) == 1)
    return client


def max_offset(client: RawClient, queue_id: int) -> int:
    answer = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": str(queue_id)})
    return int(answer.ext_fields["offset"])


def test_topic_stats_have_every_queue(filled):
    """A queue without messages was never updated."""
    now_ms = time.time_ns() // 1_000_000
    table = ask(filled, RequestCode.GET_TOPIC_STATS_INFO, topic="T")["offsetTable"]
    assert [(key, row["minOffset"], row["maxOffset"]) for key, row in table.items()] == [
        (queue(0), 0, 3),
        (queue(1), 0, 1),
        (queue(2), 0, 0),
        (queue(3), 0, 0),
    ]
    assert 0 < table[queue(0)]["lastUpdateTimestamp"] <= now_ms
    assert table[queue(2)]["lastUpdateTimestamp"] == 0


def test_the_put_rate_of_a_topic_is_measured(filled):
    """4 messages came within the minute."""
    assert ask(filled, RequestCode.GET_TOPIC_STATS_INFO, topic="T")["topicPutTps"] > 0


def test_an_unknown_topic_has_no_stats(broker, client):
    """As in RocketMQ: 17."""
    answer = client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "nothere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_consume_stats_have_every_queue_of_the_topics_with_offsets(filled):
    """A queue without an offset counts as not begun."""
    commit(filled, "g", 0, 2)
    table = ask(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="g")["offsetTable"]
    assert [(key, row["brokerOffset"], row["consumerOffset"]) for key, row in table.items()] == [
        (queue(0), 3, 2),
        (queue(1), 1, 0),
        (queue(2), 0, 0),
        (queue(3), 0, 0),
    ]
    assert table[queue(0)]["pullOffset"] == 2
    assert table[queue(0)]["lastTimestamp"] > 0
    assert table[queue(1)]["lastTimestamp"] == 0


def test_consume_stats_of_a_group_without_offsets_are_empty(filled):
    """Such a group may not even exist."""
    assert ask(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="nothere") == {"consumeTps": 0.0, "offsetTable": {}}


def test_consume_stats_leave_out_a_topic_that_present_consumers_have_left(filled):
    """The offsets of the former subscription stay, but do not count as a lag."""
    commit(filled, "g", 0, 2)
    filled.heartbeat("c", g={"Other": "*"})
    assert ask(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="g")["offsetTable"] == {}
    filled.heartbeat("c", g={"T": "*"})
    assert ask(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T")["offsetTable"]


def test_the_topics_of_consume_stats_can_be_listed(filled):
    """RocketMQ 5 names several, separated by semicolons; unknown ones are left out."""
    found = ask(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topicList="T;nothere")
    assert found["offsetTable"].keys() == {queue(queue_id) for queue_id in range(4)}


def test_pulls_count_as_deliveries(filled, broker):
    """Number and bytes of messages, and their latency, are those of the group."""
    filled.heartbeat("c", g={"T": "*"})
    answer = filled.pull("g", "T")
    assert answer.code == SUCCESS
    (row,) = broker.engine.statistics().groups
    assert (row.group, row.topic, row.get_nums, row.get_size) == ("g", "T", 3, len(answer.body_bytes))
    assert row.latency_ms is not None
    commit(filled, "g", 0, 3)
    assert ask(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="g")["consumeTps"] > 0


def test_a_held_pull_counts_when_it_is_answered(filled, broker):
    """It found nothing before."""
    filled.heartbeat("c", g={"T": "*"})
    opaque = filled.begin_pull("g", "T", 3, sysFlag=6, suspendTimeoutMillis=60_000)
    with broker.client() as other:
        assert other.send_message("T").code == SUCCESS
        assert filled.answer_to(opaque).code == SUCCESS
    assert [row.get_nums for row in broker.engine.statistics().groups] == [1]


def test_stats_of_all_groups(filled):
    """Each described group with its topics, and what they lag behind in all."""
    commit(filled, "g", 0, 2)
    commit(filled, "h", 1, 1)
    body = ask(filled, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert [list(entry) for entry in body["consumeStatsList"]] == [["g"], ["h"]]
    assert body["totalDiff"] == 1 + 1 + 3
    assert ask(filled, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")["consumeStatsList"] == []


def test_the_groups_of_a_topic_are_those_with_offsets_and_those_with_subscriptions(filled):
    """RocketMQ 5.3.3 lists the topic itself as well, which is a mistake."""
    commit(filled, "committed", 0, 1)
    filled.heartbeat("c", present={"T": "*"})
    assert sorted(ask(filled, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")["groupList"]) == [
        "committed",
        "present",
    ]


def test_the_topics_of_a_group_are_those_with_offsets(filled):
    """Also when none of its consumers is present."""
    commit(filled, "g", 0, 1)
    assert ask(filled, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g")["topicList"] == ["T"]
    assert ask(filled, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="nothere")["topicList"] == []


def test_a_subscription_is_shown_while_consumers_are_present(filled):
    """With its tags."""
    filled.heartbeat("c", g={"T": "a || b"})
    found = ask(filled, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="T")
    assert (found["group"], found["topic"]) == ("g", "T")
    assert found["subscriptionData"]["subString"] == "a || b"
    assert found["subscriptionData"]["tagsSet"] == ["a", "b"]
    other = ask(filled, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="Other")
    assert other == {"group": "g", "topic": "Other"}


def test_time_spans_say_how_long_the_next_message_has_waited(filled):
    """A queue that is consumed has no delay, and neither has an empty one."""
    commit(filled, "g", 0, 2)
    commit(filled, "g", 1, 1)
    spans = ask(filled, RequestCode.QUERY_CONSUME_TIME_SPAN, group="g", topic="T")["consumeTimeSpanSet"]
    by_queue = {span["messageQueue"]["queueId"]: span for span in spans}
    assert by_queue.keys() == {0, 1, 2, 3}
    first = by_queue[0]
    assert first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
    wait_until(
        lambda: (
            ask(filled, RequestCode.QUERY_CONSUME_TIME_SPAN, group="g", topic="T")["consumeTimeSpanSet"][0]["delayTime"]
            > 0
        )
    )
    assert by_queue[1]["delayTime"] == 0
    assert (by_queue[2]["minTimeStamp"], by_queue[2]["delayTime"]) == (-1, 0)


def test_units_of_a_queue_are_shown_as_they_are_stored(filled):
    """From an index on, as many as there are."""
    body = ask(filled, RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=1, count=10)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 3)
    assert [unit["tagsCode"] for unit in body["queueData"]] == [97, 97]
    assert body["queueData"][0]["physicOffset"] < body["queueData"][1]["physicOffset"]
    assert body["queueData"][0]["physicSize"] > 0
    assert "subscriptionData" not in body


def test_units_are_shown_with_the_subscription_of_a_group(filled):
    """If the group has consumers; otherwise it is said that it has none."""
    fields = {"topic": "T", "queueId": 0, "index": 0, "count": 1, "consumerGroup": "g"}
    assert ask(filled, RequestCode.QUERY_CONSUME_QUEUE, **fields)["filterData"] == "g@T is not online!"
    filled.heartbeat("c", g={"T": "*"})
    assert ask(filled, RequestCode.QUERY_CONSUME_QUEUE, **fields)["subscriptionData"]["subString"] == "*"


@pytest.mark.parametrize(
    ("topic", "queue_id", "index", "count"), [("T", 0, 3, 5), ("T", 0, 99, 5), ("T", 0, 0, -1), ("T", 3, 0, 5)]
)
def test_there_are_no_units_where_a_queue_has_none(filled, topic, queue_id, index, count):
    """Behind its end, and in an empty one."""
    body = ask(filled, RequestCode.QUERY_CONSUME_QUEUE, topic=topic, queueId=queue_id, index=index, count=count)
    assert body["queueData"] == []


@pytest.mark.parametrize(("topic", "queue_id"), [("nothere", 0), ("T", 9), ("T", -1), ("../T", 0), ("", 0)])
def test_units_of_a_queue_that_is_not_there_are_refused(filled, topic, queue_id):
    """No name leads out of the folder of queues."""
    fields = {"topic": topic, "queueId": str(queue_id), "index": "0", "count": "5"}
    answer = filled.ask(RequestCode.QUERY_CONSUME_QUEUE, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"{queue_id}@{topic} is not exist!"


def test_counters_say_what_came_in_the_last_minute_hour_and_day(filled):
    """By the names of RocketMQ's statistics."""
    filled.heartbeat("c", g={"T": "*"})
    assert filled.pull("g", "T").code == SUCCESS
    put = ask(filled, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert [put[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [4, 4, 4]
    got = ask(filled, RequestCode.VIEW_BROKER_STATS_DATA, statsName="GROUP_GET_NUMS", statsKey="T@g")
    assert got["statsMinute"]["sum"] == 3
    assert got["statsMinute"]["tps"] > 0


def test_a_counter_that_counted_nothing_is_not_there(broker, client):
    """Mqadmin then shows zeros."""
    answer = client.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_delay_offsets_are_those_of_the_deliveries(tmp_path):
    """By delay level."""
    with served(tmp_path / "store", message_delay_level="1s") as broker, broker.client() as client:
        assert json.loads(client.ask(RequestCode.GET_ALL_DELAY_OFFSET).body_bytes) == {"offsetTable": {}}
        assert client.send_message("T", properties={"DELAY": "1"}).code == SUCCESS
        wait_until(
            lambda: json.loads(client.ask(RequestCode.GET_ALL_DELAY_OFFSET).body_bytes) == {"offsetTable": {"1": 1}}
        )
