"""Who is connected, requests that are passed on to clients, and offsets that are reset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delivering import wait_until
from reput.broker.admin import admin_clients
from reput.broker.admin.admin_bodies import parse_body
from reput.broker.admin.admin_clients import AdminClientsProcessor
from reput.broker.broker import Broker
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand, encode_frame
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import RawClient, ServedBroker, served

SUCCESS = ResponseCode.SUCCESS


@pytest.fixture
def member(broker: ServedBroker) -> Iterator[RawClient]:
    """A connection that consumes T in group g and produces in group p, as client c."""
    with broker.client() as member:
        assert member.send_message("T").code == SUCCESS
        wait_until(lambda: max_offset(member) == 1)
        member.heartbeat("c", producers=("p",), g={"T": "a"})
        yield member


def respond(client: RawClient, request: RemotingCommand, response: RemotingCommand) -> None:
    client.write(b"".join(encode_frame(response.response_to(request))))


def reset(client: RawClient, **fields: object) -> RemotingCommand:
    """Reset group g on topic T, forwards as well."""
    header = {"group": "g", "topic": "T", "timestamp": 0, "isForce": "true", **fields}
    return client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {name: str(value) for name, value in header.items()})


def offset_of(client: RawClient, queue_id: int = 0) -> int:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": str(queue_id)}
    return int(client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields).ext_fields["offset"])


def max_offset(client: RawClient) -> int:
    answer = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    return int(answer.ext_fields["offset"])


def commit(client: RawClient, offset: int, queue_id: int = 0) -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": str(queue_id), "commitOffset": str(offset)}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == SUCCESS


def table_of(answer: RemotingCommand) -> dict[int, int]:
    """Return the offset by queue id."""
    assert answer.code == SUCCESS, answer.remark
    return {queue.queue_id: offset for queue, offset in parse_body(answer.body_bytes)["offsetTable"].items()}


# Connections.


def test_the_connections_of_a_consumer_group(client, member):
    """With how the group consumes, and what."""
    body = json.loads(client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).body_bytes)
    (connection,) = body["connectionSet"]
    host, port = member.socket.getsockname()
    assert connection == {
        "clientAddr": f"{host}:{port}",
        "clientId": "c",
        "language": "PYTHON",
        "version": connection["version"],
    }
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert body["messageModel"] == "CLUSTERING"
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert body["subscriptionTable"]["T"]["subString"] == "a"
    assert body["subscriptionTable"]["T"]["codeSet"] == [97]


def test_a_consumer_group_without_clients_is_not_online(client, member):
    """206, also after the last of them has gone."""
    fields = {"consumerGroup": "g"}
    member.close()
    wait_until(
        lambda: client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields).code == ResponseCode.CONSUMER_NOT_ONLINE
    )


def test_the_connections_of_a_producer_group(client, member):
    """A group without any is refused with 1."""
    body = json.loads(client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}).body_bytes)
    assert [connection["clientId"] for connection in body["connectionSet"]] == ["c"]
    answer = client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nothere"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_the_connections_of_all_producer_groups(client, member):
    """Each with the time of its last heartbeat."""
    data = json.loads(client.ask(RequestCode.GET_ALL_PRODUCER_INFO).body_bytes)["data"]
    (row,) = data["p"]
    assert (row["clientId"], row["language"]) == ("c", "PYTHON")
    assert row["remoteIP"].startswith("/127.0.0.1:")
    assert row["lastUpdateTimestamp"] > 0


# Passing on.


def test_running_info_is_the_clients_own_answer(client, member):
    """Its bytes are not touched: they are no JSON that could be read and written again."""
    fields = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "true"}
    opaque = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    request = member.request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert {name: request.ext_fields[name] for name in fields} == fields
    respond(member, request, RemotingCommand(SUCCESS, {}, b'{"mqTable":{{"topic":"T"}:{}}}'))
    answer = client.answer_to(opaque)
    assert (answer.code, answer.body_bytes) == (SUCCESS, b'{"mqTable":{{"topic":"T"}:{}}}')


def test_a_refusal_of_the_client_is_passed_back(client, member):
    """Code and remark."""
    opaque = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c"})
    request = member.request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    respond(member, request, RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="not now"))
    answer = client.answer_to(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "not now")


@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY], ids=["info", "directly"]
)
@pytest.mark.parametrize("fields", [{"clientId": "other"}, {}, {"consumerGroup": "nothere", "clientId": "c"}])
def test_a_client_that_is_not_there_is_not_asked(client, member, code, fields):
    """Code 1, with its name."""
    answer = client.ask(code, {"consumerGroup": "g", **fields})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not online" in (answer.remark or "")


def test_a_client_that_does_not_answer_is_given_up(tmp_path: Path):
    """207; its late answer is dropped, and the connection goes on."""

    class Impatient(Broker):
        def admin_processors(self) -> dict[int, Processor]:
            impatient = AdminClientsProcessor(self.engine, self.clients, timeout=0.05)
            return {**super().admin_processors(), **impatient.processors()}

    with served(tmp_path / "store", make=Impatient) as broker, broker.client() as client, broker.client() as member:
        member.heartbeat("c", g={"T": "*"})
        fields = {"consumerGroup": "g", "clientId": "c"}
        assert client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields).code == ResponseCode.CONSUME_MSG_TIMEOUT
        respond(member, member.request(RequestCode.GET_CONSUMER_RUNNING_INFO), RemotingCommand(SUCCESS))
        assert member.heartbeat("c", g={"T": "*"}).code == SUCCESS


def test_a_client_that_goes_before_it_answers(client, member):
    """Code 1, at once and not after the time limit."""
    opaque = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c"})
    member.request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.close()
    assert client.answer_to(opaque).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.slow
def test_requests_for_clients_that_do_not_answer_are_bounded(broker, client, member):
    """By their bytes and by their number; when one is answered, the next one passes."""
    fields = {"consumerGroup": "g", "clientId": "c"}
    body = bytes((8 << 20) - 100)
    for _ in range(8):
        client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, body)
    asked = [member.request(RequestCode.GET_CONSUMER_RUNNING_INFO) for _ in range(8)]
    refused = client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, body)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "relayed_size_max" in (refused.remark or "")
    respond(member, asked[0], RemotingCommand(SUCCESS))
    assert client.read().code == SUCCESS
    opaque = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, body)
    respond(member, member.request(RequestCode.GET_CONSUMER_RUNNING_INFO), RemotingCommand(SUCCESS, remark="last"))
    assert client.answer_to(opaque).remark == "last"


def test_the_number_of_requests_for_clients_is_bounded(broker, client, member, monkeypatch):
    """The fields of each take memory as well."""
    monkeypatch.setattr(admin_clients, "RELAYED_MAX", 2)
    fields = {"consumerGroup": "g", "clientId": "c"}
    first = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    asked = [member.request(RequestCode.GET_CONSUMER_RUNNING_INFO) for _ in range(2)]
    assert client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields).code == ResponseCode.SYSTEM_BUSY
    respond(member, asked[0], RemotingCommand(SUCCESS))
    assert client.answer_to(first).code == SUCCESS


def test_a_message_is_consumed_again_by_a_client(client, member):
    """The broker attaches the record that has the id."""
    record = member.pull("g", "T", sysFlag=0)
    sent = member.send_message("T", b"again")
    wait_until(lambda: max_offset(member) == 2)
    fields = {"consumerGroup": "g", "clientId": "c", "msgId": sent.ext_fields["msgId"], "brokerName": "other"}
    opaque = client.begin(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    request = member.request(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert request.ext_fields["brokerName"] == "broker-a"
    assert b"again" in request.body_bytes
    assert int.from_bytes(request.body_bytes[:4], "big") == len(request.body_bytes)
    respond(member, request, RemotingCommand(SUCCESS, {}, b'{"consumeResult":"CR_SUCCESS"}'))
    assert client.answer_to(opaque).body_bytes == b'{"consumeResult":"CR_SUCCESS"}'
    assert record.code in (SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


@pytest.mark.parametrize("message_id", ["", "x", "0" * 32, "7F00000100002A9F00000000000FFFFF", "../"])
def test_an_id_without_a_message_is_refused(client, member, message_id):
    """The client is not asked."""
    fields = {"consumerGroup": "g", "clientId": "c", "msgId": message_id}
    answer = client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no such message" in (answer.remark or "")


# Offsets.


def test_a_reset_moves_the_offsets_and_tells_the_clients(client, member):
    """To the messages of a time; a Java client reads the map with objects as keys."""
    commit(client, 1)
    assert table_of(reset(client)) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert offset_of(client) == 0
    request = member.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert request.is_oneway
    assert request.ext_fields == {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    body = request.body_bytes
    assert body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:0,')
    assert parse_body(body)["offsetTable"][MessageQueue("broker-a", 3, "T")] == 0


def test_a_client_in_cpp_is_told_by_a_list(broker, client):
    """It reads nothing else."""
    with broker.client() as member:
        assert member.send_message("T").code == SUCCESS
        body = json.dumps(
            {
                "clientID": "c",
                "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
            }
        ).encode()
        assert member.ask(RequestCode.HEART_BEAT, body=body, language="CPP").code == SUCCESS
        assert reset(client).code == SUCCESS
        body = json.loads(member.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET).body_bytes)
        assert body["offsetTable"][0] == {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}


def test_a_reset_to_the_end(client, member):
    """The time -1 stands for it."""
    assert table_of(reset(client, timestamp=-1)) == {0: 1, 1: 0, 2: 0, 3: 0}
    assert offset_of(client) == 1


def test_a_reset_that_is_not_forced_only_goes_back(client, member):
    """A group that is further back than the time stays there."""
    commit(client, 0)
    assert table_of(reset(client, timestamp=-1, isForce="false"))[0] == 0
    commit(client, 1)
    assert table_of(reset(client, timestamp=0, isForce="false"))[0] == 0


def test_one_queue_is_reset_to_an_offset(client, member):
    """RocketMQ 5 can do that."""
    assert table_of(reset(client, queueId=0, offset=1)) == {0: 1}
    assert table_of(reset(client, queueId=2, timestamp=-1)) == {2: 0}


def test_a_reset_is_on_disk_when_the_answer_comes(tmp_path):
    """And needs no client to be there."""
    with served(tmp_path / "store") as broker, broker.client() as client:
        client.heartbeat("c", g={"T": "*"})
        assert client.send_message("T").code == SUCCESS
        wait_until(lambda: max_offset(client) == 1)
        assert reset(client, timestamp=-1).code == SUCCESS
        assert '"T@g":{0:1' in (tmp_path / "store" / "config" / "consumerOffset.json").read_text()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nothere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "../T"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "nothere"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 9}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 0, "offset": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 9, "offset": 0}, ResponseCode.INVALID_PARAMETER),
        ({"timestamp": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_reset_of_something_that_is_not_there_is_refused(client, member, fields, code):
    """Nothing moves."""
    commit(client, 1)
    assert reset(client, **fields).code == code
    assert offset_of(client) == 1


def test_the_status_of_a_group_is_what_its_clients_say(client, member):
    """By client; each names its queues and where it is."""
    opaque = client.begin(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "g", "topic": "T"})
    request = member.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    assert request.ext_fields == {"group": "g", "topic": "T"}
    table: dict[str, Any] = {"c": {MessageQueue("broker-a", 0, "T"): 5}}
    respond(
        member,
        request,
        RemotingCommand(SUCCESS, {}, b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}'),
    )
    assert parse_body(client.answer_to(opaque).body_bytes)["consumerTable"] == table


def test_a_status_that_cannot_be_read_is_refused(client, member):
    """The client has sent something else; the broker goes on."""
    opaque = client.begin(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "g", "topic": "T"})
    request = member.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    respond(member, request, RemotingCommand(SUCCESS, {}, b'{"messageQueueTable":{{}:5}}'))
    assert client.answer_to(opaque).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("fields", [{"group": "nothere"}, {"group": "g", "clientAddr": "other"}])
def test_there_is_no_status_without_clients(client, member, fields):
    """Code 1."""
    answer = client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", **fields})
    assert answer.code == ResponseCode.SYSTEM_ERROR
