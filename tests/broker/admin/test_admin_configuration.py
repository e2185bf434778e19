"""The broker's settings, shown and changed while it runs; those of its name server; its runtime figures."""

from __future__ import annotations

import json

import pytest

from delivering import wait_until
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.settings.java_properties import parse_properties
from serving import RawClient, served

SUCCESS = ResponseCode.SUCCESS
# What mqadmin shows; where one is missing, it prints a stack trace or nothing.
RUNTIME_KEYS = {
    *("brokerVersionDesc", "brokerActive", "putTps", "getTransferedTps", "getTransferredTps"),
    *("sendThreadPoolQueueSize", "pullThreadPoolQueueSize"),
    *("sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills"),
    *("pageCacheLockTimeMills", "earliestMessageTimeStamp", "commitLogDiskRatio"),
    *("timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps"),
    *("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow"),
    *("msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow"),
}


def settings_of(client: RawClient) -> dict[str, str]:
    body = client.ask(RequestCode.GET_BROKER_CONFIG).body_bytes
    return {name: value for name, value, _ in parse_properties(body)}


def update(client: RawClient, text: str) -> RemotingCommand:
    return client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def version_of(client: RawClient) -> dict[str, int]:
    return json.loads(client.ask(RequestCode.GET_BROKER_CONFIG).ext_fields["version"])


def runtime(client: RawClient) -> dict[str, str]:
    return json.loads(client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body_bytes)["table"]


def test_settings_are_shown_in_rocketmqs_spelling(broker, client):
    """Those that RocketMQ knows; truth values and lists as its properties have them."""
    settings = settings_of(client)
    assert settings["brokerName"] == "broker-a"
    assert settings["autoCreateTopicEnable"] == "true"
    assert settings["mapedFileSizeCommitLog" if "mapedFileSizeCommitLog" in settings else "mappedFileSizeCommitLog"]
    assert settings["messageDelayLevel"].startswith("1s 5s")
    assert not {"ringSize", "storeHost", "dispatchers"} & settings.keys()
    # `mqadmin exportConfigs` ends with an exception without these.
    exported = {"filterServerNums", "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS"}
    assert exported <= settings.keys()


def test_a_change_holds_at_once_and_raises_the_version(broker, client):
    """Sends to unknown topics are refused from then on."""
    before = version_of(client)
    assert update(client, "autoCreateTopicEnable=false\n").code == SUCCESS
    assert settings_of(client)["autoCreateTopicEnable"] == "false"
    assert version_of(client)["counter"] == before["counter"] + 1
    assert client.send_message("T").code == ResponseCode.TOPIC_NOT_EXIST
    assert update(client, "auto_create_topic_enable=true").code == SUCCESS
    assert client.send_message("T").code == SUCCESS


def test_switching_creation_off_and_on_leaves_the_template_as_it_is(broker, client):
    """In RocketMQ a send in between takes TBW102's inherit bit for good."""
    update(client, "autoCreateTopicEnable=false\n")
    client.send_message("T")
    update(client, "autoCreateTopicEnable=true\n")
    template = json.loads(client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "TBW102"}).body_bytes)
    assert template["perm"] == 7


def test_a_broker_that_began_without_creation_gets_the_template(tmp_path):
    """And its route."""
    with served(tmp_path / "store", auto_create_topic_enable=False) as broker, broker.client() as client:
        assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).code != SUCCESS
        assert update(client, "autoCreateTopicEnable=true\n").code == SUCCESS
        wait_until(lambda: client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).code == SUCCESS)
        assert client.send_message("T").code == SUCCESS


def routed_perms(client):
    """Return the permissions of the topic T and of the template in their routes."""
    routes = [client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}) for topic in ("T", "TBW102")]
    return [json.loads(route.body_bytes)["queueDatas"][0]["perm"] for route in routes]


def test_a_broker_can_be_closed_for_writing(broker, client):
    """By its permission: producers see it in the routes, and what they send until then is stored, one-way or not."""
    assert client.send_message("T").code == SUCCESS
    assert routed_perms(client) == [6, 7]
    client.heartbeat("c", g={"T": "*"})
    assert update(client, "brokerPermission=4\n").code == SUCCESS
    assert routed_perms(client) == [4, 4]
    assert client.send_message("T").code == SUCCESS
    broker.wait_until_readable()
    assert client.pull("g", "T").code == SUCCESS
    assert update(client, "brokerPermission=2\n").code == SUCCESS
    assert client.pull("g", "T").code == ResponseCode.NO_PERMISSION
    assert client.send_message("T").code == SUCCESS
    assert routed_perms(client) == [2, 2]
    assert update(client, "brokerPermission=6\n").code == SUCCESS
    assert routed_perms(client) == [6, 7]


def test_a_broker_that_is_closed_for_writing_refuses_messages_of_ordered_topics(client):
    """Their producers do not choose another broker's queues by themselves."""
    fields = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "order": "true"}
    header = {"topic": "O", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", **fields}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header).code == SUCCESS
    assert client.send_message("O").code == SUCCESS
    assert update(client, "brokerPermission=4\n").code == SUCCESS
    assert client.send_message("O").code == ResponseCode.NO_PERMISSION


def test_groups_are_created_or_not_as_the_setting_says_now(broker, client):
    """Offsets of unknown groups are refused with 26."""
    assert client.send_message("T").code == SUCCESS
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "0"}
    assert update(client, "autoCreateSubscriptionGroup=false\n").code == SUCCESS
    answer = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert update(client, "autoCreateSubscriptionGroup=true\n").code == SUCCESS
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == SUCCESS


def test_expressions_are_taken_as_the_setting_says_now(broker, client):
    """Of consumers that register and that pull."""
    subscription = {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}
    body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription}).encode()
    assert client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == ResponseCode.SYSTEM_ERROR
    assert update(client, "enablePropertyFilter=true\n").code == SUCCESS
    assert client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == SUCCESS


def test_retention_is_told(broker, client):
    """It looks at its settings again each time."""
    assert update(client, "fileReservedTime=48\ndeleteWhen=01;13\n").code == SUCCESS
    settings = broker.engine.writer.retention.settings
    assert (settings.file_reserved_time, settings.delete_when) == (48, "01;13")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "brokerName",
        "brokerClusterName",
        "brokerId",
        "brokerConfigPath",
        "storePathRootDir",
        "storePathCommitLog",
        "namesrvAddr",
        "listenPort",
        "rocketmqHome",
        "configBlackList",
        "aclEnable",
        "messageDelayLevel",
        "defaultTopicQueueNums",
        "maxMessageSize",
        "flushDiskType",
        "nothing",
        "dispatchers",
    ],
)
def test_other_settings_cannot_change(broker, client, name):
    """They are refused by name, and those that came with them do not change either."""
    before = settings_of(client)
    answer = update(client, f"autoCreateTopicEnable=false\n{name}=1\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert name in (answer.remark or "")
    assert settings_of(client) == before


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "fileReservedTime=x\n", "fileReservedTime=-1\n", "deleteWhen=25\n", "deleteWhen=\\uZZ\n"],
)
def test_values_that_are_wrong_are_refused(broker, client, text):
    """With what would be right."""
    before = settings_of(client)
    answer = update(client, text)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark
    assert settings_of(client) == before


def test_the_name_server_shows_its_settings_and_keeps_them(broker, client):
    """None of them can change."""
    body = client.ask(RequestCode.GET_NAMESRV_CONFIG).body_bytes
    assert "scanNotActiveBrokerInterval" in {name for name, _, _ in parse_properties(body)}
    answer = client.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=false\n")
    assert answer.code == ResponseCode.NO_PERMISSION


def test_the_runtime_figures_have_what_mqadmin_shows(broker, client):
    """All of it is text; rates are three numbers."""
    table = runtime(client)
    assert table.keys() >= RUNTIME_KEYS
    assert all(isinstance(value, str) for value in table.values())
    for name in ("putTps", "getTransferedTps", "getTransferredTps"):
        assert len([float(rate) for rate in table[name].split(" ")]) == 3
    assert table["earliestMessageTimeStamp"] == "-1"
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1


def test_the_runtime_figures_count_puts_and_pulls(broker, client):
    """Found and missed ones apart."""
    assert client.send_message("T").code == SUCCESS
    client.heartbeat("c", g={"T": "*"})
    broker.wait_until_readable()
    assert client.pull("g", "T").code == SUCCESS
    assert client.pull("g", "T", 1).code == ResponseCode.PULL_NOT_FOUND
    table = runtime(client)
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1", "1")
    assert int(table["commitLogMaxOffset"]) > 0
    assert int(table["earliestMessageTimeStamp"]) > 0
    found, missed, total = (float(table[name].split(" ")[2]) for name in ("getFoundTps", "getMissTps", "getTotalTps"))
    assert found > 0
    assert missed > 0
    assert total > 0
