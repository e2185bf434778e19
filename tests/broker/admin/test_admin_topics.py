"""Topics and groups, described, changed and deleted by administrators."""

from __future__ import annotations

import json

import pytest

from reput.broker.admin import admin_topics
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import RawClient, served

SUCCESS = ResponseCode.SUCCESS


def topic_fields(topic: str, queue_nums: int = 4, **more: str) -> dict[str, str]:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_nums),
        "writeQueueNums": str(queue_nums),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return {**fields, **more}


def create_topic(client: RawClient, topic: str, queue_nums: int = 4, **more: str) -> int:
    """Create a topic, and return the answer's code."""
    return client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queue_nums, **more)).code


def topics_of(client: RawClient) -> dict[str, dict[str, object]]:
    return json.loads(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body_bytes)["topicConfigTable"]


def groups_of(client: RawClient) -> dict[str, dict[str, object]]:
    body = client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body_bytes
    return json.loads(body)["subscriptionGroupTable"]


def create_group(client: RawClient, **fields: object) -> int:
    body = json.dumps({"groupName": "billing", **fields}).encode()
    return client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code


def test_a_topic_is_created_shown_and_routed(broker, client):
    """The route has it when the answer comes."""
    assert create_topic(client, "T", 3, perm="4", order="true") == SUCCESS
    config = json.loads(client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).body_bytes)
    assert config == {
        "attributes": {},
        "order": True,
        "perm": 4,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    assert topics_of(client)["T"] == config
    route = json.loads(client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body_bytes)
    assert route["queueDatas"][0]["readQueueNums"] == 3
    assert route["queueDatas"][0]["perm"] == 4


def test_a_topic_is_on_disk_when_the_answer_comes(tmp_path):
    """A kill after it loses nothing."""
    with served(tmp_path / "store") as broker, broker.client() as client:
        assert create_topic(client, "T") == SUCCESS
        assert '"T"' in (tmp_path / "store" / "config" / "topics.json").read_text()


def test_a_change_raises_the_version_of_the_table(broker, client):
    """Other parts of RocketMQ compare versions to see whether to read the table again."""

    def counter() -> int:
        version = json.loads(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body_bytes)["dataVersion"]
        assert version["stateVersion"] == 0
        return version["counter"]

    before = counter()
    create_topic(client, "T")
    assert counter() == before + 1


def test_a_table_is_made_again_only_after_a_change(broker, client, monkeypatch):
    """Whoever asks in between gets the same bytes, from the loop; so it is with the groups."""
    made = []
    fields = admin_topics.topic_fields
    monkeypatch.setattr(admin_topics, "topic_fields", lambda config: made.append(config) or fields(config))
    first = [client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body_bytes for _ in range(3)]
    count = len(made)
    assert count == len(json.loads(first[0])["topicConfigTable"])
    assert first[0] == first[1] == first[2]
    create_topic(client, "added")
    assert "added" in topics_of(client)
    assert len(made) == 2 * count + 1
    client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "added"})
    assert "added" not in topics_of(client)


@pytest.mark.parametrize(
    "topic",
    ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"],
)
def test_topics_of_the_system_are_neither_changed_nor_deleted(broker, client, topic):
    """Those that every broker has, those named for the broker and its cluster, and all that RocketMQ reserves."""
    before = topics_of(client)
    assert create_topic(client, topic) == ResponseCode.INVALID_PARAMETER
    code = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code
    assert code == (ResponseCode.INVALID_PARAMETER if topic in before or topic == "rmq_sys_x" else SUCCESS)
    assert topics_of(client) == before


@pytest.mark.parametrize("topic", ["", ".", "..", "../T", "a/b", "T\0", "ä", "T" * 128, "%LMQ%/x"])
def test_names_that_are_no_topics_are_refused(broker, client, topic):
    """Among them everything that would leave the store's folder."""
    before = topics_of(client)
    assert create_topic(client, topic) == ResponseCode.INVALID_PARAMETER
    assert client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}).code == ResponseCode.TOPIC_NOT_EXIST
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == SUCCESS
    assert topics_of(client) == before


@pytest.mark.parametrize(
    "more",
    [
        {"readQueueNums": "0"},
        {"writeQueueNums": "-1"},
        {"readQueueNums": "10001"},
        {"writeQueueNums": "2147483647"},
        {"perm": "8"},
        {"topicFilterType": "NONE"},
        {"attributes": "+queue.type=BatchCQ"},
        {"attributes": "+message.type=OTHER"},
        {"attributes": "+nothing=1"},
        {"attributes": "message.type"},
    ],
)
def test_values_that_no_topic_can_have_are_refused(broker, client, more):
    """The topic is not created."""
    assert create_topic(client, "T", **more) == ResponseCode.INVALID_PARAMETER
    assert "T" not in topics_of(client)


@pytest.mark.parametrize("name", ["topic", "readQueueNums", "perm"])
def test_fields_that_are_missing_are_named(broker, client, name):
    """As in RocketMQ, with code 1."""
    fields = topic_fields("T")
    del fields[name]
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert name in (answer.remark or "")


def test_attributes_are_set_and_removed(broker, client):
    """Those that a request does not name stay."""
    create_topic(client, "T", attributes="+message.type=FIFO,+cleanup.policy=DELETE")
    assert topics_of(client)["T"]["attributes"] == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    create_topic(client, "T", attributes="-cleanup.policy")
    assert topics_of(client)["T"]["attributes"] == {"message.type": "FIFO"}


def test_several_topics_are_created_by_one_request(broker, client):
    """The topics before one that is refused are created."""
    body = {"topicConfigList": [{"topicName": name, "readQueueNums": 2, "perm": 6} for name in ("A", "B", "../C", "D")]}
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert {"A", "B", "C", "D"} & topics_of(client).keys() == {"A", "B"}
    assert topics_of(client)["A"]["readQueueNums"] == 2


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topicConfigList":[{}]}', b'{"topicConfigList":[{"topicName":7}]}'])
def test_a_body_that_is_no_list_of_topics_is_refused(broker, client, body):
    """With one clear sentence."""
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


def test_a_deleted_topic_is_gone_with_its_messages_and_its_route(broker, client):
    """And its offsets; it can be created again, and is empty then."""
    create_topic(client, "T")
    assert client.send_message("T").code == SUCCESS
    client.heartbeat("c", g={"T": "*"})
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == SUCCESS
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == SUCCESS
    assert "T" not in topics_of(client)
    assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST
    offsets = json.loads(client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body_bytes)["offsetTable"]
    assert "T@g" not in offsets
    create_topic(client, "T")
    answer = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert answer.ext_fields["offset"] == "0"


def test_the_topics_of_the_system_are_listed(broker, client):
    """Mqadmin leaves them out of its lists."""
    names = json.loads(client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body_bytes)["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} <= set(names)


def test_a_group_is_created_shown_and_changed(broker, client):
    """What RocketMQ 5 adds to a group is kept, and filled in where it is missing."""
    assert create_group(client, retryMaxTimes=3, consumeTimeoutMinute=20, groupSysFlag=0) == SUCCESS
    body = client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "billing"}).body_bytes
    assert json.loads(body) == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 20,
        "groupName": "billing",
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 3,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    assert create_group(client, retryMaxTimes=5) == SUCCESS
    assert groups_of(client)["billing"]["retryMaxTimes"] == 5
    assert groups_of(client)["billing"]["consumeTimeoutMinute"] == 20


def test_a_group_that_may_not_consume_is_refused_its_pulls(broker, client):
    """The change holds for the next pull."""
    create_topic(client, "T")
    client.heartbeat("c", billing={"T": "*"})
    assert client.pull("billing", "T").code == ResponseCode.PULL_NOT_FOUND
    create_group(client, consumeEnable=False)
    assert client.pull("billing", "T").code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("name", ["", "../g", "a/b", "ä", "g" * 256])
def test_names_that_are_no_groups_are_refused(broker, client, name):
    """Groups become names of topics, and those become folders."""
    before = groups_of(client)
    assert create_group(client, groupName=name) == ResponseCode.INVALID_PARAMETER
    assert groups_of(client) == before


def test_a_group_s_retry_topic_has_no_more_queues_than_another(broker, client):
    """The broker creates it by the group's number."""
    before = groups_of(client)
    assert create_group(client, retryQueueNums=10_001) == ResponseCode.INVALID_PARAMETER
    assert groups_of(client) == before


@pytest.mark.parametrize("body", [b"", b"7", b"{}", b'{"groupName":"g","retryMaxTimes":"x"}'])
def test_a_body_that_is_no_group_is_refused(broker, client, body):
    """With one clear sentence."""
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


@pytest.mark.parametrize(
    ("flag", "kept"), [({"cleanOffset": "true"}, False), ({"removeOffset": "true"}, False), ({}, True)]
)
def test_a_deleted_group_leaves_its_offsets_if_it_is_to(broker, client, flag, kept):
    """The flag has another name in RocketMQ 4.9 than in 5."""
    create_topic(client, "T")
    create_group(client)
    fields = {"consumerGroup": "billing", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == SUCCESS
    assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing", **flag}).code == SUCCESS
    answer = client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "billing"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    offsets = json.loads(client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body_bytes)["offsetTable"]
    assert ("T@billing" in offsets) == kept


def test_a_group_that_is_not_there_is_deleted_already(broker, client):
    """Other brokers of the cluster may have had it."""
    assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "nothere"}).code == SUCCESS
