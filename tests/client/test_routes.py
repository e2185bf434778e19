"""Routes: what a client keeps of the answers of name servers."""

from __future__ import annotations

import asyncio
import json

import pytest

import reput
from reput import Message
from reput.client import session
from reput.client.routes import Routes
from reput.client.target import parse_target
from reput.errors import BrokerError
from reput.remoting.remoting_command import RemotingCommand


def answer(topic, address, *, quotes='"'):
    """Return a name server's answer: *topic* has a queue at the broker with *address*."""
    data = {
        "brokerDatas": [{"brokerAddrs": {"0": address}, "brokerName": "a", "cluster": "c"}],
        "queueDatas": [{"brokerName": "a", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}],
    }
    return RemotingCommand(0, {}, json.dumps(data).replace('"0"', f"{quotes}0{quotes}").encode())


def test_after_a_fail_over_the_latest_route_names_the_master():
    """Topics whose routes were not asked for again do not lead to the former one."""

    async def asked():
        addresses = iter(("10.0.0.1:1", "10.0.0.1:1", "10.0.0.2:1"))

        async def invoke(server, command):
            return answer(command.ext_fields["topic"], next(addresses))

        routes = Routes(parse_target("10.0.0.9:9876"), invoke)
        for topic in ("T", "U", "U"):
            await routes.refresh(topic)
        return routes.master("a"), routes.broker("a", 0)

    assert asyncio.run(asked()) == ("10.0.0.2:1", "10.0.0.2:1")


def test_a_name_server_that_is_started_again_does_not_take_routes_away(client, broker, monkeypatch):
    """It knows no broker until each has registered again; producers and consumers go on as they know. Not for ever."""
    client.put(Message("orders", b"before", queue_id=0))
    settings = broker.broker.settings
    with client.consumer("billing", "orders") as consumer:
        consumer.ack(consumer.receive(20))
        broker.call(
            lambda: broker.broker.routes.unregister(settings.broker_name, settings.broker_id, broker.broker.address)
        )
        assert client.queue_ids("orders") == []
        client.put(Message("orders", b"meanwhile", queue_id=0))
        record = consumer.receive(20)
        assert record is not None
        assert record.body == b"meanwhile"
    monkeypatch.setattr(reput.client.routes, "UNKNOWN_KEPT_S", 0.0)
    assert client.queue_ids("orders") == []
    with pytest.raises(reput.RequestRefused, match="no broker takes messages of the topic"):
        client.put(Message("orders", b"too late"))


def test_name_servers_before_rocketmq_4_9_4_write_ids_without_quotes():
    """As fastjson writes the keys of a map of numbers."""

    async def asked():
        async def invoke(server, command):
            return answer("T", "10.0.0.1:1", quotes="")

        routes = Routes(parse_target("10.0.0.9:9876"), invoke)
        await routes.refresh("T")
        return routes.master("a")

    assert asyncio.run(asked()) == "10.0.0.1:1"


def test_a_name_server_that_hangs_delays_no_heartbeat(broker, client, monkeypatch):
    """Routes are asked for at the same time: one after the other, those of many topics would take too long."""
    asked: set[str] = set()

    async def refresh(routes, topic):
        asked.add(topic)
        while len(asked) < 2:
            await asyncio.sleep(0.01)

    client.put_batch([Message(topic, b"x") for topic in ("T", "U")])
    monkeypatch.setattr(session, "KEEP_INTERVAL_S", 0.05)
    with client.consumer("g", ["T", "U"]):
        channels = broker.call(lambda: broker.broker.clients.consumers["g"].channels)
        monkeypatch.setattr(Routes, "refresh", refresh)
        first = next(iter(channels.values())).heartbeat_at
        broker.reaches(lambda: next(iter(channels.values())).heartbeat_at > first)


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
def test_a_route_that_is_none_is_an_error(body):
    """The client tries again, as if the name server had not answered."""

    async def asked():
        async def invoke(server, command):
            return RemotingCommand(0, {}, body)

        await Routes(parse_target("10.0.0.9:9876"), invoke).refresh("T")

    with pytest.raises(BrokerError, match="a name server's route cannot be read"):
        asyncio.run(asked())
