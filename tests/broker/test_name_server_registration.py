"""What a broker tells name servers elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from functools import partial

import pytest

from certificates import write_certificate
from delivering import wait_until
from reput.access.credentials import Credentials
from reput.broker import name_server_registration
from reput.broker.broker import Broker
from reput.errors import BrokerError
from reput.namesrv.route_info import readable_queues
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.remoting.tls import client_context
from serving import served


def registered(broker):
    """Return the registered topics by name: queues to read, and permission."""
    wrapper = json.loads(broker.call(broker.broker.registration.body))["topicConfigSerializeWrapper"]
    return {name: (topic["readQueueNums"], topic["perm"]) for name, topic in wrapper["topicConfigTable"].items()}


def set_topic(client, topic, queues):
    """Create or change a topic."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    nums = {"readQueueNums": queues, "writeQueueNums": queues}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | nums).code == ResponseCode.SUCCESS


def test_every_change_of_a_topic_is_registered(broker, client):
    """Although the text of a topic is kept until it changes."""
    set_topic(client, "orders", "2")
    set_topic(client, "mails", "1")
    assert registered(broker)["orders"] == (2, 6)
    set_topic(client, "orders", "5")
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "mails"}).code == ResponseCode.SUCCESS
    found = registered(broker)
    assert found["orders"] == (5, 6)
    assert "mails" not in found
    changed = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
    assert changed.code == ResponseCode.SUCCESS
    assert registered(broker)["orders"] == (5, 4)


def test_a_name_server_that_hangs_delays_no_other(broker, client, tmp_path, monkeypatch):
    """The others have the route of a new topic at once."""
    monkeypatch.setattr(name_server_registration, "FIRST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(name_server_registration, "TIMEOUT_S", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        servers = ["{}:{}".format(*hanging.getsockname()), "{}:{}".format(*broker.address)]
        make = partial(Broker, embeds_name_server=False, name_servers=servers)
        with served(tmp_path / "b", make=make, broker_name="broker-b") as other, other.client() as sender:
            registration = other.broker.registration
            asyncio.run_coroutine_threadsafe(registration.start(), other.loop).result(20)
            for topic in ("orders", "mails"):
                assert sender.send_message(topic).code == ResponseCode.SUCCESS
                wait_until(
                    lambda topic=topic: (
                        client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == ResponseCode.SUCCESS
                    )
                )
            asyncio.run_coroutine_threadsafe(registration.end(), other.loop).result(20)


def test_a_name_server_that_is_started_again_knows_the_broker_soon(tmp_path, monkeypatch):
    """Not only when the broker would have registered anyway."""
    monkeypatch.setattr(name_server_registration, "INTERVAL_S", 3600.0)
    monkeypatch.setattr(name_server_registration, "AGAIN_S", 0.1)
    with contextlib.ExitStack() as first:
        broker = first.enter_context(served(tmp_path / "a"))
        servers = ["{}:{}".format(*broker.address)]
        make = partial(Broker, embeds_name_server=False, name_servers=servers)
        with served(tmp_path / "b", make=make, broker_name="broker-b") as other:
            registration = other.broker.registration
            asyncio.run_coroutine_threadsafe(registration.start(), other.loop).result(20)
            first.close()
            with served(tmp_path / "a", port=broker.address[1]) as again, again.client() as client:
                wait_until(lambda: b'"broker-b"' in client.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body_bytes)
            asyncio.run_coroutine_threadsafe(registration.end(), other.loop).result(20)


def test_a_broker_registers_with_its_account_and_encrypted(tmp_path):
    """A name server that enforces TLS takes nothing else."""
    certificate = write_certificate(tmp_path, "server")
    files = {"tls_server_cert_path": str(certificate.cert), "tls_server_key_path": str(certificate.key)}
    context, signed = client_context(trust_cert_path=str(certificate.cert)), []
    with served(tmp_path / "a", tls_server_mode="enforcing", **files) as broker:
        servers = ["{}:{}".format(*broker.address)]
        known = Credentials(context, signed.append)
        make = partial(Broker, embeds_name_server=False, name_servers=servers, credentials=known)
        with served(tmp_path / "b", make=make, broker_name="broker-b") as other:
            registration = other.broker.registration
            asyncio.run_coroutine_threadsafe(registration.start(), other.loop).result(20)
            with broker.client(wrap=context.wrap_socket) as client:
                assert b'"broker-b"' in client.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body_bytes
            asyncio.run_coroutine_threadsafe(registration.end(), other.loop).result(20)
    assert [request.code for request in signed] == [RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER]


OLD_ROUTE = b"""{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a","cluster":"c"}],
"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":2,"writeQueueNums":2}]}"""


@pytest.mark.parametrize(
    ("body", "queue_count"),
    [(OLD_ROUTE, 2), (b"{", None), (b"\xff", None), (b'{"brokerDatas":[{"brokerName":"\xff"}]}', None)],
)
def test_a_route_of_any_name_server_is_read_or_refused(broker, monkeypatch, body, queue_count):
    """Before RocketMQ 4.9.4 name servers leave quotes out; what is no route is an error, as for clients."""
    registration = broker.broker.registration

    async def invoke(address, command, timeout):
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    monkeypatch.setattr(registration.client, "invoke", invoke)
    monkeypatch.setattr(registration, "addresses", ["10.0.0.9:9876"])
    asked = asyncio.run_coroutine_threadsafe(registration.route("orders"), broker.loop)
    if queue_count is None:
        with pytest.raises(BrokerError, match="a name server's route cannot be read"):
            asked.result(20)
    else:
        assert len(readable_queues(asked.result(20), "orders")) == queue_count
