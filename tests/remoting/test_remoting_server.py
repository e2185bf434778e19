"""The server: processors by code, errors as answers, threads, silent connections and the end."""

from __future__ import annotations

import logging
import socket
import threading

from remoting.asking import ECHO, Peer, begin_server, in_loop, until
from reput.errors import RequestRefused
from reput.remoting import remoting_server as module
from reput.remoting.remoting_client import RemotingClient
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.response_code import ResponseCode


@in_loop
async def test_an_unknown_code_is_answered_and_the_connection_stays():
    """With the code in the remark, as RocketMQ says it."""
    _server, port = await begin_server()
    peer = await Peer.of(port)
    for code in (99, -1, 2**31 - 1):
        peer.write(RemotingCommand(code, opaque=1))
        answer = await peer.read()
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
    peer.write(RemotingCommand(ECHO, opaque=2))
    assert (await peer.read()).code == 0


def test_errors_are_answers(caplog):
    """A refusal has its code; any other error has code 1, and is logged if it is not one of ours."""

    def refuse(command, connection):
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    def fail(command, connection):
        raise ValueError("failed")

    def fail_without_text(command, connection):
        raise ValueError

    @in_loop
    async def answered():
        table = {2: refuse, 3: fail, 4: fail_without_text}
        _server, port = await begin_server(
            {
                **{code: Processor(process) for code, process in table.items()},
                **{code + 10: Processor(process, in_thread=True) for code, process in table.items()},
            }
        )
        peer = await Peer.of(port)
        for code in (2, 12):
            peer.write(RemotingCommand(code, opaque=1))
            answer = await peer.read()
            assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        for code, remark in ((3, "failed"), (4, "ValueError"), (13, "failed"), (14, "ValueError")):
            peer.write(RemotingCommand(code, opaque=1))
            answer = await peer.read()
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)

    with caplog.at_level(logging.ERROR):
        answered()
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 4


def test_too_many_requests_for_the_threads_are_refused(monkeypatch):
    """With SYSTEM_BUSY at once; those that wait are answered when their turn comes."""
    monkeypatch.setattr(module, "WAITING_MAX", 10)
    go_on = threading.Event()

    def slow(command, connection):
        go_on.wait()
        return RemotingCommand(0)

    @in_loop
    async def refused():
        _server, port = await begin_server({2: Processor(slow, in_thread=True)})
        peer = await Peer.of(port)
        peer.write(*(RemotingCommand(2, opaque=number) for number in range(15)))
        busy = [await peer.read() for _ in range(5)]
        assert [answer.opaque for answer in busy] == [10, 11, 12, 13, 14]
        assert {answer.code for answer in busy} == {ResponseCode.SYSTEM_BUSY}
        assert all(answer.remark.startswith("[OVERLOAD]") for answer in busy)
        go_on.set()
        assert sorted([(await peer.read()).opaque for _ in range(10)]) == list(range(10))

    refused()


def test_requests_for_the_threads_are_bounded_by_their_bytes(monkeypatch):
    """A few with large bodies take as much memory as many without."""
    monkeypatch.setattr(module, "QUEUED_SIZE_MAX", 1000)
    go_on = threading.Event()

    def slow(command, connection):
        go_on.wait()
        return RemotingCommand(0)

    @in_loop
    async def refused():
        server, port = await begin_server({2: Processor(slow, in_thread=True)})
        peer = await Peer.of(port)
        peer.write(*(RemotingCommand(2, body=bytes(300), opaque=number) for number in range(4)))
        busy = await peer.read()
        assert (busy.opaque, busy.code) == (3, ResponseCode.SYSTEM_BUSY)
        peer.write(RemotingCommand(2, opaque=4))
        go_on.set()
        assert sorted([(await peer.read()).opaque for _ in range(4)]) == [0, 1, 2, 4]
        assert server.queued_size == 0
        peer.write(RemotingCommand(2, body=bytes(300), opaque=5))
        assert (await peer.read()).code == 0

    refused()


def test_a_connection_does_not_take_all_threads():
    """However much it asks for at once: another connection is answered meanwhile, and then all are."""
    go_on = threading.Event()

    def slow(command, connection):
        go_on.wait()
        return RemotingCommand(0)

    @in_loop
    async def answered():
        server, port = await begin_server(
            {2: Processor(slow, in_thread=True), 3: Processor(lambda *_: RemotingCommand(0), in_thread=True)}
        )
        greedy, modest = await Peer.of(port), await Peer.of(port)
        greedy.write(*(RemotingCommand(2, opaque=number) for number in range(20)))
        # The server has read them once it refuses what follows them.
        greedy.write(RemotingCommand(99, opaque=99))
        assert (await greedy.read()).opaque == 99
        modest.write(RemotingCommand(3, opaque=1))
        assert (await modest.read()).opaque == 1
        go_on.set()
        assert sorted([(await greedy.read()).opaque for _ in range(20)]) == list(range(20))
        await server.settled()
        assert (server.queues, server.queued_count) == ({}, 0)

    answered()


@in_loop
async def test_a_connection_on_which_nothing_happens_is_closed():
    """After 120 seconds; one that says something now and then is not."""
    server, port = await begin_server()
    silent, busy = await Peer.of(port), await Peer.of(port)
    for peer in (silent, busy):
        peer.write(RemotingCommand(ECHO, opaque=1))
        await peer.read()
    for connection in server.connections:
        connection.last_active -= 100
    busy.write(RemotingCommand(ECHO, opaque=2))
    await busy.read()
    for connection in server.connections:
        connection.last_active -= 21
    server.close_idle()
    assert await silent.is_ended()
    busy.write(RemotingCommand(ECHO, opaque=3))
    assert (await busy.read()).opaque == 3
    await busy.close()


@in_loop
async def test_the_owner_is_told_of_connections_that_end():
    """Whichever side ends them."""
    ended = []
    server, port = await begin_server(on_closed=lambda connection: ended.append(connection.peer))
    peer = await Peer.of(port)
    await until(lambda: bool(server.connections))
    await peer.close()
    await until(lambda: len(ended) == 1)
    assert server.connections == {}


@in_loop
async def test_a_unix_socket_is_served_as_well():
    """Its name may lie in the abstract namespace."""
    server, _ = await begin_server()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0reput-test-remoting-server")
    await server.listen(listener)
    client = RemotingClient()
    answer = await client.invoke("unix:\0reput-test-remoting-server", RemotingCommand(ECHO, {"a": "b"}))
    assert answer.ext_fields == {"a": "b"}
    await client.close()


@in_loop
async def test_a_server_that_ends_sends_what_it_has_to_say():
    """Then it ends its connections, and accepts no other."""
    server, port = await begin_server()
    peer = await Peer.of(port)
    peer.write(RemotingCommand(ECHO, {}, bytes(100_000), opaque=1))
    await until(lambda: any(connection.outgoing or connection.last_active for connection in server.connections))
    assert (await peer.read()).opaque == 1
    await server.close()
    assert await peer.is_ended()


@in_loop
async def test_a_server_that_ends_closes_the_connections_that_it_has_just_accepted():
    """Those too whose first bytes it has not seen: the peer is not left with a connection that nobody serves."""
    server, port = await begin_server()
    peers = []
    for _ in range(8):
        peer = socket.socket()
        peer.connect(("127.0.0.1", port))
        peers.append(peer)
        server.listeners[0].accept()
    await server.close()
    assert not server.connections
    for peer in peers:
        peer.settimeout(60)
        try:
            assert peer.recv(1) == b""
        except ConnectionResetError:
            pass
        finally:
            peer.close()
