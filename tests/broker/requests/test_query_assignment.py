"""QUERY_ASSIGNMENT: the broker shares a group's queues for Java clients with `setClientRebalance(false)`."""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial

import pytest

from reput.broker.broker import Broker
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import served


def ask(client, client_id, strategy="AVG", model="CLUSTERING", topic="orders"):
    """Ask for the queues of a client; return the answer."""
    body = {"topic": topic, "consumerGroup": "g", "clientId": client_id, "strategyName": strategy}
    return client.ask(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body | {"messageModel": model}).encode())


def assigned(client, *arguments, **options):
    """Return the queues that are assigned to a client: broker names and ids."""
    answer = ask(client, *arguments, **options)
    assert answer.code == ResponseCode.SUCCESS
    rows = json.loads(answer.body_bytes)["messageQueueAssignments"]
    assert {row["mode"] for row in rows} <= {"PULL"}
    return [(row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"]) for row in rows]


@pytest.mark.parametrize(("strategy", "first"), [("AVG", [0, 1, 2]), ("AVG_BY_CIRCLE", [0, 2])])
def test_the_members_of_a_group_share_its_queues(broker, client, strategy, first):
    """Each gets those that it would compute itself; a broadcasting consumer gets all, and a stranger none."""
    fields = {"readQueueNums": "5", "writeQueueNums": "5", "perm": "6"}
    names = {"topic": "orders", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | names).code == ResponseCode.SUCCESS
    with broker.client() as other:
        client.heartbeat("a", g={"orders": "*"})
        other.heartbeat("b", g={"orders": "*"})
        shares = [assigned(client, client_id, strategy) for client_id in ("a", "b")]
    assert sorted(queue_id for share in shares for _, queue_id in share) == [0, 1, 2, 3, 4]
    assert {queue_id for _, queue_id in shares[0]} >= set(first)
    assert assigned(client, "stranger") == []
    assert len(assigned(client, "stranger", model="BROADCASTING")) == 5


def test_what_the_broker_cannot_share_the_client_shares_itself(client):
    """After an error Java's client does it; without a route it keeps the queues that it has."""
    assert ask(client, "a", "MACHINE_ROOM").code == ResponseCode.SYSTEM_ERROR
    answer = ask(client, "a", topic="unknown")
    assert (answer.code, json.loads(answer.body_bytes)) == (ResponseCode.SUCCESS, {})
    assert client.ask(RequestCode.QUERY_ASSIGNMENT, body=b"{}").code == ResponseCode.SYSTEM_ERROR


def test_queues_of_other_brokers_are_shared_too(tmp_path):
    """The route comes from the name servers, of which one may be away."""
    with served(tmp_path / "a") as first, socket.create_server(("127.0.0.1", 0)) as listener:
        away = "{}:{}".format(*listener.getsockname())
        listener.close()
        make = partial(Broker, embeds_name_server=False, name_servers=[away, "{}:{}".format(*first.address)])
        with (
            served(tmp_path / "b", make=make, broker_name="broker-b") as second,
            first.client() as client,
            second.client() as other,
        ):
            # Clients register the topic at both; broker-a is the name server.
            for one in (client, other):
                assert one.send_message("orders").code == ResponseCode.SUCCESS
            registration = second.broker.registration
            asyncio.run_coroutine_threadsafe(registration.start(), second.loop).result(20)
            other.heartbeat("a", g={"orders": "*"})
            assert {name for name, _ in assigned(other, "a")} == {"broker-a", "broker-b"}
            asyncio.run_coroutine_threadsafe(registration.end(), second.loop).result(20)
