"""SYNC_MASTER: what producers are told, depending on what followers have acknowledged."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import Mock

import pytest

import reput
from command_line import run_reput
from delivering import wait_until
from reput.broker.broker import Broker
from reput.broker.requests.sync_replicas import SyncReplicas
from reput.kernel import kernel
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.remoting.turn import Turn
from reput.replication.ha_server import HaServer
from reput.replication.master_stream import MasterStream
from reput.settings import Settings
from reput.store.record.message import PutMessageStatus
from serving import ServedBroker, send_fields, served

TIMEOUT_MS = 300
SEGMENT = 1 << 20
# Messages with a key of their own are stored by the kernel, where it is installed.
KEYED = {"UNIQ_KEY": "AC" + "0" * 30}


class Followers:
    """Makes a broker with an HA port."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()

    def make(self, engine, address) -> Broker:
        """Return the broker."""
        self.server = HaServer(engine, self.listener)
        broker = Broker(engine, address, ha_server=self.server, ha_address="{}:{}".format(*self.address))
        self.server.start(broker.turn)
        return broker


@contextmanager
def sync_master(path, **settings) -> Iterator[tuple[ServedBroker, Followers]]:
    """Serve a SYNC_MASTER."""
    followers = Followers()
    given = {"broker_role": "SYNC_MASTER", "slave_timeout": TIMEOUT_MS, **settings}
    with served(path / "store", make=followers.make, **given) as broker:
        yield broker, followers
        followers.server.stop()


def test_without_a_follower_the_answer_comes_at_once(tmp_path):
    """The message is stored; SLAVE_NOT_AVAILABLE says that there is no second copy."""
    with sync_master(tmp_path) as (broker, _), broker.client() as client:
        assert client.send_message("orders").code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert client.send_message("orders", properties={"WAIT": "false"}).code == ResponseCode.SUCCESS
        assert broker.engine.next_queue_offset("orders", 0) == 2


def test_what_was_stored_without_a_copy_is_told_by_the_command_line(tmp_path):
    """`reput send` says how many messages have no second copy; a script reads it from each row."""
    with sync_master(tmp_path) as (broker, _):
        address = "{}:{}".format(*broker.address)
        sent = run_reput("send", address, "orders", "--count", "2")
        assert sent.code == 0
        assert sent.stdout.endswith("; stored, but not confirmed: 2 SLAVE_NOT_AVAILABLE\n")


def test_a_silent_follower_is_waited_for_and_then_reported(tmp_path):
    """FLUSH_SLAVE_TIMEOUT after slave_timeout; a connection without a report is no follower."""
    with sync_master(tmp_path) as (broker, followers), broker.client() as client:
        client.send_message("orders")
        bare = socket.create_connection(followers.address)
        assert client.send_message("orders").code == ResponseCode.SLAVE_NOT_AVAILABLE
        end = broker.engine.appended
        bare.sendall(struct.pack(">q", end))
        wait_until(lambda: followers.server.in_sync_count() == 1)
        began = time.monotonic()
        assert client.send_message("orders").code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert time.monotonic() - began >= TIMEOUT_MS / 1000
        bare.close()
        wait_until(lambda: followers.server.in_sync_count() == 0)
        # What it once acknowledged is not kept for another.
        assert client.send_message("orders").code == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_an_acknowledged_message_is_answered_with_success(tmp_path, flush):
    """As soon as the follower has it, singly and in a batch, in every flush mode."""
    with (
        sync_master(tmp_path, slave_timeout=30_000, flush_disk_type=flush) as (broker, followers),
        broker.client() as client,
        socket.create_connection(followers.address) as follower,
    ):
        client.send_message("orders", properties={"WAIT": "false"})
        wait_until(lambda: broker.engine.log_end() == broker.engine.appended)
        follower.sendall(struct.pack(">q", broker.engine.appended))
        wait_until(lambda: followers.server.in_sync_count() == 1)
        opaque = client.begin(*send_request())
        wait_until(lambda: broker.engine.next_queue_offset("orders", 0) == 2)
        follower.sendall(struct.pack(">q", received(follower, broker.engine.appended)))
        assert client.answer_to(opaque).code == ResponseCode.SUCCESS


def test_what_a_follower_asks_for_confirms_nothing(tmp_path):
    """A place in its own log, which may have diverged below: an old master compares its log like this."""
    with sync_master(tmp_path, slave_timeout=1000) as (broker, followers), broker.client() as client:
        client.send_message("orders")
        connect = partial(socket.create_connection, followers.address)
        with connect() as silent, connect() as slave:
            silent.sendall(struct.pack(">q", broker.engine.appended))
            wait_until(lambda: followers.server.in_sync_count() == 1)
            sent = [client.begin(*send_request())]
            wait_until(lambda: broker.engine.next_queue_offset("orders", 0) == 2)
            end = broker.engine.appended
            slave.sendall(struct.pack(">q", end))
            with MasterStream("{}:{}".format(*followers.address), end, SEGMENT, is_reput=True):
                wait_until(lambda: len(followers.server.followers()) == 3)
                sent.append(client.begin(*send_request()))
                with connect() as beyond:
                    beyond.sendall(struct.pack(">q", 1 << 40))
                    assert beyond.recv(1) == b""
                for opaque in sent:
                    assert client.answer_to(opaque).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            # What was sent to it, and is reported, counts.
            slave.sendall(struct.pack(">q", received(slave, broker.engine.appended)))
            wait_until(lambda: followers.server.acknowledged_by_count(1) == broker.engine.appended)


def test_two_followers_are_needed_if_the_settings_say_so(tmp_path):
    """in_sync_replicas counts the master."""
    with sync_master(tmp_path, in_sync_replicas=3) as (broker, followers), broker.client() as client:
        client.send_message("orders")
        with socket.create_connection(followers.address) as one, socket.create_connection(followers.address) as two:
            one.sendall(struct.pack(">q", broker.engine.appended))
            wait_until(lambda: followers.server.in_sync_count() == 1)
            assert client.send_message("orders").code == ResponseCode.SLAVE_NOT_AVAILABLE
            two.sendall(struct.pack(">q", broker.engine.appended))
            wait_until(lambda: followers.server.in_sync_count() == 2)
            opaque = client.begin(*send_request())
            wait_until(lambda: broker.engine.next_queue_offset("orders", 0) == 3)
            one.sendall(struct.pack(">q", received(one, broker.engine.appended)))
            two.sendall(struct.pack(">q", received(two, broker.engine.appended)))
            assert client.answer_to(opaque).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("waits", [{}, {"WAIT": "true"}], ids=["silent", "said"])
def test_what_the_kernel_stores_waits_for_followers_as_well(tmp_path, waits):
    """Each outcome is told, to all messages of a read; what asks to wait for no follower is answered at once."""
    with sync_master(tmp_path) as (broker, followers), broker.client() as client:
        client.send_message("orders", properties=KEYED)
        stored = sent_by_kernel()
        assert client.send_message("orders", properties=KEYED | waits).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert client.send_message("orders", properties=KEYED | {"WAIT": "false"}).code == ResponseCode.SUCCESS
        with socket.create_connection(followers.address) as follower:
            follower.sendall(struct.pack(">q", broker.engine.appended))
            wait_until(lambda: followers.server.in_sync_count() == 1)
            request = RequestCode.SEND_MESSAGE_V2, send_fields("orders", KEYED | waits), b"body"
            late = [client.begin(*request) for _ in range(3)]
            answers = [client.answer_to(opaque) for opaque in late]
            assert [answer.code for answer in answers] == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
            assert [answer.ext_fields["queueOffset"] for answer in answers] == ["3", "4", "5"]
            opaque = client.begin(*request)
            wait_until(lambda: broker.engine.next_queue_offset("orders", 0) == 7)
            follower.sendall(struct.pack(">q", received(follower, broker.engine.appended)))
            assert client.answer_to(opaque).code == ResponseCode.SUCCESS
        assert kernel() is None or sent_by_kernel() - stored == 5


def test_the_loop_serves_followers_that_are_near_and_a_thread_those_that_are_not(tmp_path):
    """A follower that is far behind, and does not read, is left to the thread; the near one confirms all the while."""
    with (
        sync_master(tmp_path, slave_timeout=30_000) as (broker, followers),
        broker.client() as client,
        socket.create_connection(followers.address) as follower,
    ):
        server = followers.server
        client.send_message("orders", properties={"WAIT": "false"})
        follower.sendall(struct.pack(">q", broker.engine.appended))
        wait_until(lambda: server.in_sync_count() == 1 and server.is_in_loop)

        def confirm() -> None:
            opaque = client.begin(*send_request())
            follower.sendall(struct.pack(">q", received(follower, broker.engine.appended)))
            assert client.answer_to(opaque).code == ResponseCode.SUCCESS

        confirm()
        assert server.is_in_loop
        large = [reput.Message("orders", bytes(1 << 19)) for _ in range(40)]
        broker.engine.writer.put_batch(large)
        follower.sendall(struct.pack(">q", received(follower, broker.engine.appended)))
        wait_until(lambda: server.acknowledged_by_count(1) == broker.engine.appended and server.is_in_loop)
        with socket.create_connection(followers.address) as far:
            far.sendall(struct.pack(">q", 1))
            wait_until(lambda: not server.is_in_loop)
            confirm()
            assert not server.is_in_loop
        wait_until(lambda: server.is_in_loop)
        confirm()


def test_a_message_is_answered_before_an_earlier_one_that_lies_behind_it_in_the_log():
    """Threads bring messages in another order than that of the log; none waits for one that its follower lacks."""
    answered: list[tuple[int, PutMessageStatus]] = []
    server = Mock(spec=HaServer)
    server.in_sync_count.return_value = 1
    server.acknowledged_by_count.return_value = 0

    async def run() -> None:
        replicas = SyncReplicas(server, Settings(broker_role="SYNC_MASTER", slave_timeout=20), Turn())
        for end in (300, 100, 200):
            replicas.wait(end, lambda status, end=end: answered.append((end, status)))
        server.acknowledged_by_count.return_value = 200
        replicas.settle()
        assert answered == [(100, PutMessageStatus.PUT_OK), (200, PutMessageStatus.PUT_OK)]
        await replicas.settled()

    asyncio.run(run())
    assert answered[2:] == [(300, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)]


def sent_by_kernel() -> int:
    """Return how many sent messages the kernel has stored in this process."""
    found = kernel()
    return 0 if found is None else found.counts()["sent"]


def received(follower: socket.socket, end: int) -> int:
    """Read frames until one ends at *end*, and return that."""
    at = -1
    while at < end:
        offset, size = struct.unpack(">qi", follower.recv(12, socket.MSG_WAITALL))
        follower.recv(size, socket.MSG_WAITALL)
        at = offset + size
    return at


def send_request():
    """Return code, fields and body of a send."""
    return RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"body"
