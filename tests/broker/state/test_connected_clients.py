"""Heartbeats: which connections are members of which groups, and when the others of a group are told."""

from __future__ import annotations

import json

import pytest

from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import heartbeat_body


def members(client, group):
    """Return the ids that GET_CONSUMER_LIST_BY_GROUP lists, or None: the group has no members."""
    answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return json.loads(answer.body)["consumerIdList"] if answer.code == ResponseCode.SUCCESS else None


def test_a_heartbeat_answers_with_a_version_that_clients_take_for_new(client):
    """Clients keep the version of the answer; from 401 on they expect strict JSON."""
    answer = client.heartbeat("one")
    assert answer.code == ResponseCode.SUCCESS
    assert answer.version >= 401


def test_the_own_id_is_listed_at_once(client):
    """A consumer that does not find itself in its group takes no queue."""
    client.heartbeat("one", orders={"T": "*"})
    assert members(client, "orders") == ["one"]


def test_a_group_without_members_is_refused_with_its_name(client):
    """Clients read code 1 as "no consumers"."""
    answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "none"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "no consumer for this group, none"


def test_a_new_member_is_announced_to_all_connections_of_the_group(broker, client):
    """The new one included, and before the answer to its heartbeat."""
    client.heartbeat("one", orders={"T": "*"})
    client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    with broker.client() as other:
        other.heartbeat("two", orders={"T": "*"})
        # It came before the answer.
        assert [command.code for command in other.others] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        told = client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        assert told.is_oneway
        assert told.ext_fields == {"consumerGroup": "orders"}
        assert members(client, "orders") == ["one", "two"]


def test_an_equal_heartbeat_announces_nothing(client):
    """It refreshes the client alone."""
    client.heartbeat("one", orders={"T": "*"})
    client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    client.heartbeat("one", orders={"T": "*"})
    assert client.others == []


@pytest.mark.parametrize("topics", [{"T": "*", "U": "*"}, {"U": "*"}], ids=["added", "replaced"])
def test_another_topic_announces_a_change(client, topics):
    """A topic that has come or gone changes what the members share."""
    client.heartbeat("one", orders={"T": "*"})
    client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    client.heartbeat("one", orders=topics)
    client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


def test_a_socket_that_ends_takes_its_client_out_of_the_group(broker, client):
    """The Go client never unregisters."""
    client.heartbeat("one", orders={"T": "*"})
    client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    with broker.client() as other:
        other.heartbeat("two", orders={"T": "*"})
        client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    client.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert members(client, "orders") == ["one"]


def test_a_client_that_unregisters_leaves_the_group(broker, client):
    """Its connection stays open, and the others are told."""
    client.heartbeat("one", orders={"T": "*"})
    with broker.client() as other:
        other.heartbeat("two", orders={"T": "*"})
        fields = {"clientID": "two", "consumerGroup": "orders"}
        assert other.ask(RequestCode.UNREGISTER_CLIENT, fields).code == ResponseCode.SUCCESS
        assert members(other, "orders") == ["one"]


def test_a_client_that_unregisters_leaves_others_of_its_id_alone(broker, client):
    """Two programs may have one id, such as containers that share an address."""
    client.heartbeat("one", producers=("pg",), orders={"T": "*"})
    with broker.client() as other:
        other.heartbeat("one", producers=("pg",), orders={"T": "*"})
        fields = {"clientID": "one", "consumerGroup": "orders", "producerGroup": "pg"}
        assert other.ask(RequestCode.UNREGISTER_CLIENT, fields).code == ResponseCode.SUCCESS
        clients = broker.broker.clients
        groups = broker.call(lambda: (clients.consumers["orders"].channels, clients.producers["pg"]))
        assert [len(channels) for channels in groups] == [1, 1]
        assert members(other, "orders") == ["one"]


def test_two_connections_of_one_client_are_one_member(broker, client):
    """The member leaves with its last connection."""
    client.heartbeat("one", orders={"T": "*"})
    with broker.client() as other:
        other.heartbeat("one", orders={"T": "*"})
        assert members(client, "orders") == ["one"]
    broker.reaches(lambda: len(broker.broker.clients.consumers["orders"].channels) == 1)
    assert members(client, "orders") == ["one"]


def test_silent_clients_are_dropped(broker, client):
    """After 120 seconds without a heartbeat the connection is ended."""
    client.heartbeat("one", producers=("pg",), orders={"T": "*"})

    def age():
        for channel in broker.broker.clients.all_channels():
            channel.heartbeat_at -= 121
        broker.broker.clients.drop_silent()

    broker.call(age)
    client.others.clear()
    assert client.is_ended()
    broker.reaches(lambda: not broker.broker.clients.consumers and not broker.broker.clients.producers)


def test_the_first_heartbeat_creates_the_retry_topic(client):
    """A consumer subscribes it without being told; its route exists from then on."""
    client.heartbeat("one", orders={"T": "*"})
    answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%orders"})
    assert answer.code == ResponseCode.SUCCESS


def test_a_broadcasting_group_is_told_nothing(client):
    """Each of its members consumes all queues."""
    body = json.loads(heartbeat_body("one", (), {"orders": {"T": "*"}}))
    body["consumerDataSet"][0]["messageModel"] = "BROADCASTING"
    client.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert client.others == []
    # It has a retry topic: mqadmin asks for its route to find the brokers of any group.
    answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%orders"})
    assert answer.code == ResponseCode.SUCCESS


def test_go_leaves_out_what_it_does_not_know(client):
    """Members that are missing are as by default, and an empty kind of expression is TAG."""
    body = {
        "clientID": "go",
        "consumerDataSet": [{"groupName": "orders", "subscriptionDataSet": [{"topic": "T", "expressionType": ""}]}],
    }
    assert client.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode()).code == ResponseCode.SUCCESS
    assert members(client, "orders") == ["go"]


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"clientID":7}', b"\xff"])
def test_a_heartbeat_that_is_none_is_refused(client, body):
    """With code 1; the connection goes on."""
    answer = client.ask(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert client.heartbeat("one").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("kind", "expression", "code"), [("TAG", "a || b", 0), ("SQL92", "a > 1", 1)])
def test_a_client_may_ask_whether_its_expressions_are_taken(client, kind, expression, code):
    """SQL92 is, where property filters are enabled."""
    body = {"clientId": "one", "group": "orders", "subscriptionData": {"topic": "T", "subString": expression}}
    body["subscriptionData"]["expressionType"] = kind
    assert client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode()).code == code
