"""Replies: pushed to the client that waits, stored, and answered."""

from __future__ import annotations

from broker.requests.test_send_message import stored
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from serving import send_fields

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": "asking", "TTL": "3000", "UNIQ_KEY": "C0A80001" * 4}


def begin_reply(client, code=Code.SEND_REPLY_MESSAGE_V2, **properties):
    """Send a reply."""
    return client.begin(code, send_fields(REPLY_TOPIC, {**PROPERTIES, **properties}, code=code), b"reply")


def test_a_reply_reaches_the_client_that_waits_for_it(broker, client):
    """With the properties that the broker adds, and addresses as the Java client parses them: without a slash."""
    with broker.client() as asking:
        asking.heartbeat("asking", producers=("pg",))
        for code in (Code.SEND_REPLY_MESSAGE_V2, Code.SEND_REPLY_MESSAGE):
            opaque = begin_reply(client, code)
            pushed = asking.request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
            asking.respond(pushed)
            assert client.answer_to(opaque).code == ResponseCode.SUCCESS
            assert pushed.body_bytes == b"reply"
            fields = pushed.ext_fields
            properties = dict(piece.split("\x01") for piece in fields["properties"].split("\x02") if piece)
            assert properties.pop("PUSH_REPLY_TIME") == fields["storeTimestamp"]
            assert properties == {**PROPERTIES, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
            assert fields["bornHost"].rpartition(":")[0] == "127.0.0.1"
            assert fields["storeHost"] == broker.engine.settings.store_host
    assert [record.body for record in stored(broker, REPLY_TOPIC)] == [b"reply", b"reply"]


def test_a_reply_to_a_client_that_is_gone_is_stored_and_answered_with_an_error(broker, client):
    answer = client.answer_to(begin_reply(client, REPLY_TO_CLIENT="gone"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "gone" in (answer.remark or "")
    assert [record.body for record in stored(broker, REPLY_TOPIC)] == [b"reply"]


def test_a_reply_goes_over_the_connection_of_the_last_heartbeat(broker, client):
    """The former one may be dead without the broker knowing, and would not answer."""
    with broker.client() as former, broker.client() as present:
        for connection in (former, present):
            connection.heartbeat("asking", producers=("pg",))
        opaque = begin_reply(client)
        present.respond(present.request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT))
        assert client.answer_to(opaque).code == ResponseCode.SUCCESS
