"""Any header and any body to every processor: a code is the answer, or the end; never an error in the log."""

from __future__ import annotations

import logging
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reput.remoting.remoting_command import RemotingCommand, SerializeType, encode_frame
from reput.remoting.request_code import RequestCode as Code
from serving import heartbeat_body, send_fields, served

PING = 99_999
# The binary header has 16 bits for a code.
CODE_OF_BINARY_MAX = 2**15 - 1
NAMES = re.findall(
    r"\w+",
    """
    topic queueId consumerGroup group groupName producerGroup clientID clientId offset commitOffset queueOffset
    maxMsgNums sysFlag suspendTimeoutMillis subscription subVersion expressionType maxMsgBytes timestamp boundaryType
    key maxNum beginTimestamp endTimestamp delayLevel originTopic unitMode maxReconsumeTimes tranStateTableOffset
    commitLogOffset commitOrRollback fromTransactionCheck msgId namespace value brokerName brokerAddr clusterName
    brokerId bodyCrc32 compressed heartbeatTimeoutMillis cluster defaultTopic readQueueNums writeQueueNums perm
    topicFilterType order topicSysFlag attributes index count isForce jstackEnable cleanOffset topicList
    setZeroIfNotFound clientAddr properties bornTimestamp flag reconsumeTimes batch defaultTopicQueueNums
    a b c d e f g h i j k l m n statsName statsKey enable
    """,
)
EXISTING = ["T", "g", "me", "TBW102", "%RETRY%g", "%DLQ%g", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"]
numbers = st.sampled_from([0, 1, -1, 4, 31, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**64]).map(str)
# A pull that is held would be answered a minute later.
texts = (
    numbers
    | st.sampled_from([*EXISTING, "", "true", "false", "*", "TAG", "SQL92", "a > 1", "../..", "a=b", "\0", "{}", "1e9"])
    | st.text(st.characters(codec="utf-8"), max_size=20)
)
fields = st.dictionaries(st.sampled_from(NAMES), texts, max_size=20)
VALID = [
    {**send_fields("T", code=Code.SEND_MESSAGE), **send_fields("T")},
    {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "group": "g",
        "offset": "0",
        "timestamp": "0",
        "key": "k",
        "maxNum": "3",
        "beginTimestamp": "0",
        "endTimestamp": "9",
        "delayLevel": "0",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "producerGroup": "pg",
        "clientID": "me",
        "clientId": "me",
        "msgId": "00" * 16,
        "index": "0",
        "count": "1",
    },
    {
        "brokerName": "b",
        "brokerAddr": "1.2.3.4:5",
        "clusterName": "c",
        "brokerId": "0",
        "namespace": "n",
        "key": "k",
        "value": "v",
        "topic": "T",
        "groupName": "g",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
        "isForce": "true",
    },
]
BODIES = [
    b"",
    b"body",
    b"{}",
    b"[]",
    b"null",
    b'{"a":' * 5000,
    b"\xff\xfe",
    heartbeat_body("me", ("pg",), {"g": {"T": "*"}}),
    b'{"consumerGroup":"g","clientId":"me","mqSet":[{"brokerName":"broker-a","topic":"T","queueId":0}]}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{}},"dataVersion":{}}}',
    b'{"groupName":"g","retryQueueNums":"x"}',
    b"autoCreateTopicEnable=true\nfileReservedTime=x\n",
    b'{"queueDatas":[{"readQueueNums":-1}]}',
    (38).to_bytes(4, "big") + bytes(12) + (4).to_bytes(4, "big") + b"body" + (12).to_bytes(2, "big") + b"x" * 12,
]
requests = st.builds(
    RemotingCommand,
    code=st.just(0),
    ext_fields=st.builds(lambda valid, changes: {**valid, **changes}, st.sampled_from([{}, *VALID]), fields),
    body=st.sampled_from(BODIES) | st.binary(max_size=60),
    flag=st.sampled_from([0, 0, 0, 2]),
    version=st.sampled_from([0, 317, 399, 479, 2**15 - 1]),
    language=st.sampled_from(["JAVA", "GO", "CPP", "OTHER"]),
    serialize_type=st.sampled_from(SerializeType),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One broker for all examples, with a message and a member."""
    path = tmp_path_factory.mktemp("fuzzing") / "store"
    with served(path, enable_property_filter=True) as broker, broker.client() as client:
        client.send_message("T")
        client.heartbeat("me", producers=("pg",), g={"T": "*"})
        yield broker


def codes_of(broker):
    """Return the codes that the broker answers."""
    return sorted(broker.broker.server.processors)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_request_is_answered_or_ends_its_connection(shared, caplog, data):
    """Whatever its header and its body hold."""
    caplog.clear()
    with caplog.at_level(logging.ERROR), shared.client() as client:
        batch = data.draw(st.lists(st.tuples(st.sampled_from(codes_of(shared)), requests), min_size=1, max_size=20))
        for opaque, (code, request) in enumerate(batch):
            request.code, request.opaque = code, opaque
            if code > CODE_OF_BINARY_MAX:
                request.serialize_type = SerializeType.JSON
            # No answer comes later than the test.
            if "suspendTimeoutMillis" in request.ext_fields:
                request.ext_fields = {**request.ext_fields, "suspendTimeoutMillis": "1"}
            client.write(b"".join(encode_frame(request)))
        client.opaques = iter([PING])
        assert client.ask(PING).code == 3
        shared.reaches(lambda: not shared.broker.server.running)
        for answer in client.others:
            if answer.is_response:
                assert -1 <= answer.code < 2**15
                assert not batch[answer.opaque][1].is_oneway
                assert all(isinstance(value, str) for value in answer.ext_fields.values())
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.getMessage(), record.exc_text) for record in errors] == []


@pytest.mark.slow
@given(st.binary(max_size=200))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_bytes_are_answered_or_end_their_connection(shared, caplog, data):
    """The broker goes on."""
    caplog.clear()
    with caplog.at_level(logging.ERROR), shared.client() as stranger, shared.client() as client:
        stranger.write(data)
        assert client.ask(PING).code == 3
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
