"""Pulls: what is found, what is held, and each refusal."""

from __future__ import annotations

import pytest

from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from reput.store.record.record import decode_record

SUSPEND, SUBSCRIPTION = 2, 4
FIELDS = {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}


def records_of(data):
    """Return the records of an answer's body."""
    at, records = 0, []
    while at < len(data):
        records.append(decode_record(data, at))
        at += records[-1].record_size
    return records


@pytest.fixture
def filled(broker, client):
    """A connection to a broker whose topic T has five messages, of the tags a and b in turn."""
    for number in range(5):
        client.send_message("T", str(number).encode(), {"TAGS": "ab"[number % 2]})
    broker.wait_until_readable()
    return client


def test_a_pull_finds_the_records_as_they_are_in_the_log(filled):
    """One after the other."""
    answer = filled.pull("g", "T")
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in records_of(answer.body)] == [b"0", b"1", b"2", b"3", b"4"]
    assert answer.ext_fields["nextBeginOffset"] == "5"
    assert filled.pull("g", "T", maxMsgNums=2).ext_fields["nextBeginOffset"] == "2"


@pytest.mark.parametrize(
    ("queue_offset", "queue_id", "code", "following"),
    [
        (5, 0, ResponseCode.PULL_NOT_FOUND, "5"),
        (6, 0, ResponseCode.PULL_OFFSET_MOVED, "5"),
        (-1, 0, ResponseCode.PULL_OFFSET_MOVED, "0"),
        (0, 1, ResponseCode.PULL_NOT_FOUND, "0"),
        (3, 1, ResponseCode.PULL_OFFSET_MOVED, "0"),
        (2**62, 0, ResponseCode.PULL_OFFSET_MOVED, "5"),
    ],
)
def test_a_pull_beyond_the_queue_says_where_to_go_on(filled, queue_offset, queue_id, code, following):
    """All four fields are there: the Java client takes them for granted."""
    answer = filled.pull("g", "T", queue_offset, queueId=queue_id)
    assert answer.code == code
    assert set(answer.ext_fields) >= FIELDS
    assert answer.ext_fields["nextBeginOffset"] == following


@pytest.mark.parametrize("code", [Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE])
def test_a_pull_may_bring_its_own_filter(filled, code):
    """Without a heartbeat; LitePull has a code of its own, and no other meaning."""
    answer = filled.pull("g", "T", code=code, subscription="b")
    assert [record.body for record in records_of(answer.body)] == [b"1", b"3"]
    answer = filled.pull("g", "T", code=code, subscription="none")
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "5")


def test_a_subscription_of_a_heartbeat_filters(filled):
    """By the tags that it names."""
    filled.heartbeat("one", orders={"T": "a"})
    answer = filled.pull("orders", "T", sysFlag=0)
    assert [record.body for record in records_of(answer.body)] == [b"0", b"2", b"4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "../../etc"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"expressionType": "SQL92", "subscription": "a > "}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
        ({"expressionType": "SQL92", "subscription": "(" * 50_000}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "x" * 900_000}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"maxMsgNums": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"queueOffset": 2**63}, ResponseCode.SYSTEM_ERROR),
        ({"suspendTimeoutMillis": ""}, ResponseCode.SYSTEM_ERROR),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_pull_that_is_refused_says_why(filled, fields, code):
    """Each check has its code."""
    answer = filled.pull(fields.pop("consumerGroup", "g"), fields.pop("topic", "T"), **fields)
    assert answer.code == code
    assert answer.remark


def test_an_older_subscription_is_refused(filled):
    """Code 25, until the heartbeat with the newer one has come."""
    filled.heartbeat("one", orders={"T": "*"})
    assert filled.pull("orders", "T", sysFlag=0, subVersion=7).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_a_held_pull_is_answered_by_the_next_message(broker, filled):
    """It is not answered before; requests behind it are."""
    held = filled.begin_pull("g", "T", 5, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=60_000)
    assert filled.pull("g", "T").code == ResponseCode.SUCCESS
    assert filled.others == []
    with broker.client() as other:
        other.send_message("T", b"new")
    answer = filled.answer_to(held)
    assert [record.body for record in records_of(answer.body)] == [b"new"]


@pytest.mark.parametrize("ends", ["message", "disconnection"])
def test_a_held_pull_keeps_no_more_of_its_request_than_its_answer_needs(broker, ends):
    """Clients may send bodies and fields of any size with it."""
    with broker.client() as client, broker.client() as other:
        other.send_message("T")
        options = {"sysFlag": SUSPEND | SUBSCRIPTION, "suspendTimeoutMillis": 60_000, "more": "x" * 100_000}
        header = {"consumerGroup": "g", "topic": "T", "queueId": 1, "queueOffset": 0, "maxMsgNums": 32}
        fields = {**header, "commitOffset": 0, "subscription": "*", "subVersion": 0, **options}
        opaque = client.begin(Code.PULL_MESSAGE, {name: str(value) for name, value in fields.items()}, bytes(1 << 20))
        hold_service = broker.engine.services.hold_service
        broker.reaches(lambda: hold_service.held_count == 1)
        held = hold_service.deadlines[0][2]
        request = held.done.args[0]
        assert (request.body, "more" in request.ext_fields) == (b"", False)
        if ends == "message":
            other.send_message("T", queue_id=1)
            assert client.answer_to(opaque).code == ResponseCode.SUCCESS
        else:
            client.close()
            broker.reaches(lambda: hold_service.held_count == 0)
        assert held.done is None


def test_a_held_pull_is_answered_when_its_time_is_over(filled):
    """With the same code that it would have had at once."""
    answer = filled.pull("g", "T", 5, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=50)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "5")


def test_a_held_pull_is_checked_again_when_it_wakes(broker, filled):
    """A group that may not consume any more gets no message."""
    import msgspec

    groups = broker.engine.services.groups
    held = filled.begin_pull("g", "T", 5, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=60_000)
    assert filled.pull("g", "T").code == ResponseCode.SUCCESS
    groups.create_or_update(msgspec.structs.replace(groups.find("g"), consume_enable=False))
    with broker.client() as other:
        other.send_message("T", b"new")
    assert filled.answer_to(held).code == ResponseCode.NO_PERMISSION


def test_a_pull_commits_the_offset_that_it_brings(filled):
    """Also one that is held."""
    question = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
    filled.pull("g", "T", 3, sysFlag=1 | SUBSCRIPTION, commitOffset=3)
    assert filled.ask(Code.QUERY_CONSUMER_OFFSET, question).ext_fields == {"offset": "3"}
    filled.begin_pull("g", "T", 5, sysFlag=1 | SUSPEND | SUBSCRIPTION, commitOffset=5, suspendTimeoutMillis=60_000)
    assert filled.ask(Code.QUERY_CONSUMER_OFFSET, question).ext_fields == {"offset": "5"}


def test_a_pull_has_at_most_32_messages_and_256_kib(broker, client):
    """The first message is there, however large it is."""
    for _ in range(40):
        client.send_message("small", b"x")
    client.send_message("large", bytes(1 << 19))
    client.send_message("large", b"x")
    broker.wait_until_readable()
    assert len(records_of(client.pull("g", "small", maxMsgNums=100).body)) == 32
    assert len(records_of(client.pull("g", "large").body)) == 1


def test_held_pulls_of_a_connection_that_ends_are_given_up(broker, filled):
    """Those of others stay."""
    sys_flag = SUSPEND | SUBSCRIPTION
    with broker.client() as other:
        other.begin_pull("g", "T", 5, sysFlag=sys_flag, suspendTimeoutMillis=60_000)
        other.pull("g", "T")
    held = filled.begin_pull("g", "T", 5, sysFlag=sys_flag, suspendTimeoutMillis=60_000)
    broker.reaches(lambda: len(broker.broker.server.connections) == 1)
    with broker.client() as other:
        other.send_message("T", b"new")
    assert [record.body for record in records_of(filled.answer_to(held).body)] == [b"new"]
