"""Offsets: what a broker says of queues."""

from __future__ import annotations

import threading

import pytest

from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode


@pytest.mark.parametrize(("topic", "queue_id"), [("T", 1), ("T", 9), ("unknown", 0)])
def test_a_queue_without_messages_begins_and_ends_at_zero(client, topic, queue_id):
    """So does one that does not exist, as in RocketMQ."""
    client.send_message("T")
    fields = {"topic": topic, "queueId": str(queue_id)}
    for code in (Code.GET_MIN_OFFSET, Code.GET_MAX_OFFSET):
        answer = client.ask(code, fields)
        assert (answer.code, answer.ext_fields["offset"]) == (ResponseCode.SUCCESS, "0")
    assert client.ask(Code.GET_EARLIEST_MSG_STORETIME, fields).ext_fields["timestamp"] == "-1"


@pytest.mark.slow
def test_a_queue_with_messages_begins_at_its_first_and_ends_behind_its_last(broker, client):
    for _ in range(3):
        client.send_message("T")
    broker.wait_until_readable()
    fields = {"topic": "T", "queueId": "0"}
    assert client.ask(Code.GET_MIN_OFFSET, fields).ext_fields["offset"] == "0"
    assert client.ask(Code.GET_MAX_OFFSET, fields).ext_fields["offset"] == "3"


def first_offset(client, queue_id, **fields):
    """Return what a group that is new is told of a queue: a code, and an offset if there is one."""
    question = {"consumerGroup": "g", "topic": "T", "queueId": str(queue_id), **fields}
    answer = client.ask(Code.QUERY_CONSUMER_OFFSET, question)
    return answer.code, answer.ext_fields.get("offset")


def test_a_new_group_begins_at_a_message_that_the_consume_queue_does_not_have_yet(broker, client, monkeypatch):
    """Told that the queue is empty, it would ask for the queue's end a moment later, and begin behind the message."""
    client.send_message("T")
    monkeypatch.setattr(broker.engine.reader, "queue_range", lambda *_: (0, 0))
    assert first_offset(client, 0) == (ResponseCode.SUCCESS, "0")
    assert first_offset(client, 0, setZeroIfNotFound="false") == (ResponseCode.QUERY_NOT_FOUND, None)
    assert first_offset(client, 1) == (ResponseCode.QUERY_NOT_FOUND, None)


def test_a_new_group_begins_at_zero_where_the_first_message_is_in_memory(broker, client):
    client.send_message("T")
    broker.wait_until_readable()
    assert first_offset(client, 0) == (ResponseCode.SUCCESS, "0")
    assert first_offset(client, 1) == (ResponseCode.QUERY_NOT_FOUND, None)


def test_no_pull_waits_for_a_query(broker, client):
    """A key may have millions of entries; the loop, which serves all clients, reads beside the query."""
    client.send_message("T", properties={"KEYS": "k"})
    broker.wait_until_readable("index")
    begun, ends = threading.Event(), threading.Event()
    with broker.engine.slow_reader.reading() as reader:
        query_message = reader.index.query_message

    def slow(*arguments):
        begun.set()
        assert ends.wait(60)
        return query_message(*arguments)

    reader.index.query_message = slow
    fields = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    try:
        with broker.client() as other:
            opaque = other.begin(Code.QUERY_MESSAGE, fields)
            assert begun.wait(60)
            assert client.pull("g", "T").code == ResponseCode.SUCCESS
            assert client.ask(Code.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"}).code == ResponseCode.SUCCESS
            ends.set()
            assert other.answer_to(opaque).code == ResponseCode.SUCCESS
    finally:
        ends.set()
