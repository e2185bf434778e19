"""Sends: both forms of the header, what is stored and answered, and what is refused."""

from __future__ import annotations

import json
import zlib

import pytest

from reput.broker.requests import sent_message
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from reput.store.record.record import decode_record
from serving import send_fields, served


def stored(broker, topic, queue_id=0):
    """Return the records of a queue, once its view has all that was put."""
    with broker.client() as client:
        broker.wait_until_readable()
        answer = client.pull("reader", topic, queueId=queue_id)
    data, at, records = answer.body, 0, []
    while at < len(data):
        record = decode_record(data, at)
        records.append(record)
        at += record.record_size
    return records


def test_both_forms_of_the_header_store_the_same(broker, client):
    """Go sends the long names, Java the short ones."""
    properties = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "C0A80001" * 4}
    answers = [
        client.send_message("T", b"body", properties, code=code) for code in (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2)
    ]
    assert [answer.code for answer in answers] == [0, 0]
    first, second = stored(broker, "T")
    for name in ("body", "properties", "sys_flag", "flag", "born_timestamp", "reconsume_times", "topic"):
        assert getattr(first, name) == getattr(second, name)


def test_the_answer_says_where_the_message_is(broker, client):
    """Clients take the ids from it."""
    answer = client.send_message("T", queue_id=2, properties={"UNIQ_KEY": "C0A80001" * 4})
    assert answer.code == ResponseCode.SUCCESS
    fields = answer.ext_fields
    assert (fields["queueId"], fields["queueOffset"], fields["transactionId"]) == ("2", "0", "C0A80001" * 4)
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
    assert answer.remark is None
    message_id = bytes.fromhex(fields["msgId"])
    assert len(message_id) == 16
    assert int.from_bytes(message_id[8:], "big") == stored(broker, "T", 2)[0].commit_log_offset


def test_a_first_message_creates_its_topic(broker, client):
    """With as many queues as the client wants, or the template has; it cannot be inherited from."""
    client.send_message("T")
    client.send_message("U", fields={"defaultTopicQueueNums": "100"})
    entries = broker.engine.services.managers.topics.entries
    assert (entries["T"].read_queue_nums, entries["T"].write_queue_nums, entries["T"].perm) == (4, 4, 6)
    assert entries["U"].write_queue_nums == 8


def test_without_automatic_creation_an_unknown_topic_is_refused(tmp_path):
    """Code 17."""
    with served(tmp_path / "store", auto_create_topic_enable=False) as broker, broker.client() as client:
        assert client.send_message("T").code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("a b", {}, ResponseCode.INVALID_PARAMETER),
        ("", {}, ResponseCode.INVALID_PARAMETER),
        ("../../etc/passwd", {}, ResponseCode.INVALID_PARAMETER),
        ("a\0b", {}, ResponseCode.INVALID_PARAMETER),
        ("x" * 256, {}, ResponseCode.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, ResponseCode.NO_PERMISSION),
        ("T", {"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ("T", {"defaultTopic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ("T", {"queueId": "x"}, ResponseCode.SYSTEM_ERROR),
        ("T", {"sysFlag": str(2**31)}, ResponseCode.SYSTEM_ERROR),
        ("T", {"bornTimestamp": str(2**63)}, ResponseCode.SYSTEM_ERROR),
        ("T", {"properties": "DELAY\x01x\x02"}, ResponseCode.SYSTEM_ERROR),
        ("T", {"properties": "k\x01" + "v" * 33_000}, ResponseCode.MESSAGE_ILLEGAL),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_message_that_is_refused_is_not_stored(broker, client, topic, fields, code):
    """Each refusal has its own code."""
    answer = client.send_message(topic, fields=fields)
    assert answer.code == code
    assert answer.remark
    assert broker.engine.appended == 0


def test_a_body_beyond_the_limit_is_refused(client):
    """Code 13."""
    assert client.send_message("T", bytes((4 << 20) + 1)).code == ResponseCode.MESSAGE_ILLEGAL


def batch(*bodies):
    """Return the body of a batch."""
    data = b""
    for number, body in enumerate(bodies):
        properties = f"UNIQ_KEY\x01{number:032X}\x02".encode()
        inner = bytes(12) + len(body).to_bytes(4, "big") + body + len(properties).to_bytes(2, "big") + properties
        data += (len(inner) + 4).to_bytes(4, "big") + inner
    return data


def test_a_batch_is_stored_as_a_unit(broker, client):
    """With queue offsets that follow each other; the ids are joined by commas."""
    answer = client.send_message("T", batch(b"a", b"b", b"c"), code=Code.SEND_BATCH_MESSAGE, fields={"batch": "true"})
    assert answer.code == ResponseCode.SUCCESS
    records = stored(broker, "T")
    assert [record.body for record in records] == [b"a", b"b", b"c"]
    assert [record.queue_offset for record in records] == [0, 1, 2]
    assert answer.ext_fields["msgId"] == ",".join(record.message_id for record in records)
    assert answer.ext_fields["queueOffset"] == "0"


@pytest.mark.parametrize("of_batch", [{}, {"UNIQ_KEY": "C0A80001" * 4}])
def test_messages_of_a_batch_without_a_unique_key_stay_without(broker, client, of_batch):
    """The Go client sends them so, and RocketMQ stores them so; others get what the batch has."""
    inner = bytes(12) + (1).to_bytes(4, "big") + b"x" + bytes(2)
    body = (len(inner) + 4).to_bytes(4, "big") + inner
    answer = client.send_message("T", body, of_batch, code=Code.SEND_BATCH_MESSAGE, fields={"batch": "true"})
    assert answer.code == ResponseCode.SUCCESS
    (record,) = stored(broker, "T")
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert record.properties == {**of_batch, **added}


@pytest.mark.parametrize(
    "body", [b"", b"x", batch(b"a")[:-1], batch(b"a") + b"x", b"\xff" * 40, bytes(22), b"\x7f\xff\xff\xff" * 10]
)
def test_a_batch_that_is_none_is_refused(broker, client, body):
    """Code 13, and nothing of it is stored."""
    answer = client.send_message("T", body, code=Code.SEND_BATCH_MESSAGE, fields={"batch": "true"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.engine.appended == 0


@pytest.mark.parametrize("parts", [1, 2, 30])
def test_a_batch_beyond_the_limit_of_one_message_is_refused(tmp_path, parts):
    """Code 13, as RocketMQ, although each message and each record keeps the limit. One byte less is stored."""
    with served(tmp_path / "store", max_message_size=16 << 10) as broker, broker.client() as client:
        client.send_message("T")
        appended = broker.engine.appended
        size = (16 << 10) - parts * len(batch(b""))
        bodies = [bytes(size // parts)] * (parts - 1) + [bytes(size - size // parts * (parts - 1))]
        fields = {"batch": "true"}
        longer = batch(*bodies[:-1], bodies[-1] + b"x")
        assert client.send_message("T", longer, code=Code.SEND_BATCH_MESSAGE, fields=fields).code == 13
        assert broker.engine.appended == appended
        assert client.send_message("T", batch(*bodies), code=Code.SEND_BATCH_MESSAGE, fields=fields).code == 0
        assert len(stored(broker, "T")) == 1 + parts


def test_a_batch_of_more_messages_than_an_answer_can_name_is_refused(broker, client, monkeypatch):
    """Code 13. The answer has an id of each message."""
    monkeypatch.setattr(sent_message, "BATCH_COUNT_MAX", 3)
    body = batch(b"a", b"b", b"c", b"d").replace(b"UNIQ_KEY", b"__CRC32#")
    answer = client.send_message("T", body, code=Code.SEND_BATCH_MESSAGE, fields={"batch": "true"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.engine.appended == 0


@pytest.mark.parametrize("properties", [{}, {"k": "v"}])
@pytest.mark.parametrize("sys_flag", [0x80, 0xC0])
def test_a_batch_for_one_record_is_refused(broker, client, sys_flag, properties):
    """Code 13, as for a single message: the consume queue would leave out its records."""
    fields = {"batch": "true", "sysFlag": str(sys_flag)}
    answer = client.send_message("T", batch(b"a", b"b"), properties, code=Code.SEND_BATCH_MESSAGE, fields=fields)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.engine.appended == 0


def test_an_empty_body_in_a_batch_is_stored(broker, client):
    """RocketMQ refuses it only in a message of its own."""
    answer = client.send_message("T", batch(b"", b"x"), code=Code.SEND_BATCH_MESSAGE, fields={"batch": "true"})
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in stored(broker, "T")] == [b"", b"x"]


def test_a_batch_to_a_retry_topic_is_refused(client):
    """Code 13."""
    fields = {"batch": "true"}
    answer = client.send_message("%RETRY%g", batch(b"a"), code=Code.SEND_BATCH_MESSAGE, fields=fields)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_negative_queue_is_any(client):
    """The broker picks one that exists."""
    answers = [client.send_message("T", queue_id=-1) for _ in range(20)]
    assert {answer.code for answer in answers} == {0}
    assert {int(answer.ext_fields["queueId"]) for answer in answers} <= set(range(4))


@pytest.mark.slow
def test_a_compressed_body_is_stored_as_it_is(broker, client):
    """With its flags. A gigabyte of zeros stays a megabyte: the broker inflates nothing."""
    bomb = zlib.compress(bytes(64 << 20), 9)
    answer = client.send_message("T", bomb, fields={"sysFlag": str(1 | 0x300)})
    assert answer.code == ResponseCode.SUCCESS
    (record,) = stored(broker, "T")
    assert record.body == bomb
    assert record.sys_flag == 1 | 0x300


@pytest.mark.parametrize("code", [Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2])
def test_a_reply_reaches_its_requester(broker, client, code):
    """Over the connection of a producer with the id that the reply names; while that is away, code 1."""
    properties = {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "7", "MSG_TYPE": "reply", "CLUSTER": "DefaultCluster"}
    answer = client.send_message("DefaultCluster_REPLY_TOPIC", b"reply", properties, code=code)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    with broker.client() as asker:
        asker.heartbeat("asker", producers=("pg",))
        fields = send_fields("DefaultCluster_REPLY_TOPIC", properties, 0, code)
        opaque = client.begin(code, fields, b"reply")
        pushed = asker.request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
        assert pushed.body == b"reply"
        assert "CORRELATION_ID\x017" in pushed.ext_fields["properties"]
        asker.respond(pushed)
        assert client.answer_to(opaque).code == ResponseCode.SUCCESS


def send_back(client, offset, group="orders", level=0, **fields):
    """Ask for a message again."""
    header = {"offset": str(offset), "group": group, "delayLevel": str(level), "originMsgId": "", **fields}
    return client.ask(Code.CONSUMER_SEND_MSG_BACK, header)


@pytest.mark.slow
def test_a_message_that_is_sent_back_waits_for_its_turn(broker, client):
    """It is stored for the group's retry topic, and delayed by the level that its deliveries give."""
    client.send_message("T")
    offset = stored(broker, "T")[0].commit_log_offset
    assert send_back(client, offset).code == ResponseCode.SUCCESS
    (record,) = stored(broker, "SCHEDULE_TOPIC_XXXX", 2)
    assert record.properties["REAL_TOPIC"] == "%RETRY%orders"
    assert record.properties["RETRY_TOPIC"] == "T"
    assert record.properties["ORIGIN_MESSAGE_ID"]
    assert record.reconsume_times == 1


@pytest.mark.parametrize(("level", "times"), [(-1, None), (0, 0)])
def test_a_message_that_is_given_up_is_a_dead_letter(broker, client, level, times):
    """At once, when its last delivery was the last allowed, or the consumer says so."""
    client.send_message("T")
    offset = stored(broker, "T")[0].commit_log_offset
    fields = {} if times is None else {"maxReconsumeTimes": str(times)}
    assert send_back(client, offset, level=level, **fields).code == ResponseCode.SUCCESS
    (record,) = stored(broker, "%DLQ%orders")
    assert record.body == b"body"


@pytest.mark.parametrize("offset", [-1, 7, 1 << 40, 2**63 - 1])
def test_what_is_not_in_the_log_cannot_be_sent_back(client, offset):
    """Code 1."""
    client.send_message("T")
    assert send_back(client, offset).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(("times", "is_dead"), [(16, False), (17, True)])
def test_a_message_to_a_retry_topic_is_given_up_after_its_last_delivery(broker, client, times, is_dead):
    """As many are allowed as the sender names, or the group's configuration."""
    client.heartbeat("one", orders={"T": "*"})
    fields = {"reconsumeTimes": str(times), "maxReconsumeTimes": "16"}
    assert client.send_message("%RETRY%orders", fields=fields).code == ResponseCode.SUCCESS
    topics = broker.engine.services.managers.topics.entries
    assert ("%DLQ%orders" in topics) is is_dead


def test_a_message_that_is_to_be_on_disk_is_answered_then(tmp_path):
    """With SYNC_FLUSH; a sender may say that it does not wait."""
    with served(tmp_path / "store", flush_disk_type="SYNC_FLUSH") as broker, broker.client() as client:
        assert client.send_message("T").code == ResponseCode.SUCCESS
        assert broker.engine.writer.durable == broker.engine.appended
        assert client.send_message("T", properties={"WAIT": "false"}).code == ResponseCode.SUCCESS


def test_consumers_are_listed_as_json(client):
    """A body of a name and a list."""
    client.heartbeat("one", orders={"T": "*"})
    body = client.ask(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "orders"}).body
    assert json.loads(body) == {"consumerIdList": ["one"]}


def test_sends_are_refused_while_a_put_is_stuck(broker, client, monkeypatch):
    """The loop does not wait for it, and clients are told to slow down; also for a topic that is new."""
    appender = broker.engine.writer.appender
    monkeypatch.setattr(appender.page_cache, "is_stuck", lambda: True)
    with appender.put_lock:
        answers = [client.send_message("new"), client.send_message("T", properties={"DELAY": "1"})]
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_BUSY] * 2
    assert all(answer.remark.startswith("[PC_SYNCHRONIZED]") for answer in answers)
    assert client.send_message("new").code == ResponseCode.SUCCESS
