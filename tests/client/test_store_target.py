"""A local program connects through the Unix socket that the store names."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
from functools import partial

import pytest

import reput
import reput.client.target
from delivering import wait_until
from reput import Message
from reput.broker.broker import Broker
from reput.remoting import peer_credentials
from reput.store.state.broker_place import BrokerPlace, read_broker_place, write_broker_place
from serving import served


@pytest.fixture
def place(broker):
    """The broker listens on a Unix socket, too, and the store says so."""
    return placed(broker)


def placed(broker):
    """Let a broker listen on a Unix socket, and return what the store says of it."""
    name = f"reput-test-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    asyncio.run_coroutine_threadsafe(broker.broker.listen(listener), broker.loop).result(20)
    place = BrokerPlace(name, os.getpid(), "{}:{}".format(*broker.address), None)
    write_broker_place(broker.engine.directory, place)
    return place


def test_the_path_of_a_store_leads_to_its_broker(broker, place):
    """Routes, puts and pulls go through the socket: neither port nor name server is needed."""
    with reput.connect(broker.engine.directory) as client:
        client.put(Message("orders", b"x"))
        with client.consumer("billing", "orders") as consumer:
            record = consumer.receive(20)
            consumer.ack(record)
        peers = broker.call(lambda: [connection.peer for connection in broker.broker.server.connections])
        assert peers
        assert all(":" not in peer for peer in peers)


def test_a_unix_address_leads_to_the_broker(broker, place):
    """``unix:@name`` is the socket itself."""
    with reput.connect(f"unix:@{place.socket}") as client:
        client.put(Message("orders", b"x"))


def test_a_broker_without_a_name_server_answers_for_its_topics_on_its_socket_only(tmp_path):
    """Its store and its socket lead to all that a client does; its port is no name server, as with RocketMQ."""
    with served(tmp_path / "store", make=partial(Broker, embeds_name_server=False)) as broker:
        place = placed(broker)
        with reput.connect(f"unix:@{place.socket}") as client:
            client.put(Message("orders", b"x", queue_id=0))
        with reput.connect(broker.engine.directory) as client:
            wait_until(lambda: [record.body for record in client.get("orders")] == [b"x"])
            with client.consumer("billing", "orders") as consumer:
                record = consumer.receive(20)
                consumer.ack(record)
            assert record.body == b"x"
            assert "orders" in client.administration.topic_names()
            client.administration.delete_topic("orders")
            assert client.queue_ids("orders") == []
        with reput.connect("{}:{}".format(*broker.address)) as client:
            with pytest.raises(reput.RequestRefused) as refused:
                client.put(Message("orders", b"x"))
            assert refused.value.response_code == reput.ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_process_of_another_user_is_not_let_in(broker, place, monkeypatch):
    """The broker asks the kernel who connects; only its own user and root may."""
    monkeypatch.setattr(peer_credentials.os, "geteuid", lambda: 12345)
    monkeypatch.setattr(peer_credentials, "ROOT", 12346)
    with (
        reput.connect(f"unix:@{place.socket}", timeout=2) as client,
        pytest.raises(reput.BrokerError, match="connection ended"),
    ):
        client.put(Message("orders", b"x"))


def test_a_socket_that_another_user_has_taken_is_not_trusted(broker, place, monkeypatch):
    """A name that a broker has left is free for anybody: the client asks the kernel, too."""
    monkeypatch.setattr(reput.client.target, "is_trusted", lambda uid: False)
    monkeypatch.setattr(reput.client.target, "broker_place_owner", lambda directory: 12345)
    with (
        reput.connect(broker.engine.directory, timeout=2) as client,
        pytest.raises(reput.BrokerError, match="the peer is not the store's broker"),
    ):
        client.put(Message("orders", b"x"))


@pytest.mark.processes
def test_nothing_but_a_delay_is_noticed_of_a_broker_that_is_killed(reput_broker):
    """Killed under load and started again: every put returns, nothing is lost, the consumer goes on."""
    with reput.connect(reput_broker.store) as client, reput.connect(reput_broker.name_server) as other:
        count = 300
        stored = []

        def put_all(using, text):
            for number in range(count):
                stored.append(using.put(Message("orders", b"%s-%d" % (text, number))))

        threads = [
            threading.Thread(target=put_all, args=(client, b"local")),
            threading.Thread(target=put_all, args=(other, b"network")),
        ]
        seen = set()
        with other.consumer("billing", "orders") as consumer:
            for thread in threads:
                thread.start()
            wait_until(lambda: len(stored) > 50)
            os.kill(read_broker_place(reput_broker.store).pid, signal.SIGKILL)
            while len(seen) < 2 * count:
                record = consumer.receive(30)
                assert record is not None
                seen.add(record.body)
                consumer.ack(record)
            for thread in threads:
                thread.join(30)
        assert len(stored) == 2 * count
        assert seen == {b"%s-%d" % (text, number) for text in (b"local", b"network") for number in range(count)}
