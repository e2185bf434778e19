"""Connections: requests in pieces and in bulk, answers in any order, peers that break the protocol or do not read."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from remoting.asking import ECHO, Peer, begin_server, in_loop, until
from reput.remoting import connection as module
from reput.remoting.connection import Connection, ConnectionLost, address_text
from reput.remoting.remoting_client import RemotingClient, Unreachable, parse_address
from reput.remoting.remoting_command import FRAME_SIZE_MAX, RemotingCommand, SerializeType, encode_frame
from reput.remoting.remoting_server import Processor


def request(opaque: int, body: bytes = b"", **fields: object) -> RemotingCommand:
    """Return a request that is echoed."""
    return RemotingCommand(ECHO, {"n": str(opaque)}, body, opaque=opaque, **fields)


@in_loop
async def test_an_answer_has_the_number_of_its_request():
    """And the flag of a response."""
    _server, port = await begin_server()
    peer = await Peer.of(port)
    peer.write(request(7, b"body"))
    answer = await peer.read()
    assert (answer.opaque, answer.is_response, answer.body) == (7, True, b"body")


@in_loop
async def test_requests_that_come_in_one_piece_are_all_answered():
    """In their order, if the processor answers at once; both forms of the header may be mixed."""
    _server, port = await begin_server()
    peer = await Peer.of(port)
    kinds = (SerializeType.JSON, SerializeType.ROCKETMQ)
    peer.write(*(request(number, serialize_type=kinds[number % 2]) for number in range(1000)))
    answers = [await peer.read() for _ in range(1000)]
    assert [answer.opaque for answer in answers] == list(range(1000))
    assert [answer.serialize_type for answer in answers] == [kinds[number % 2] for number in range(1000)]


@in_loop
async def test_a_request_may_come_byte_by_byte():
    """It is answered when its last byte is there; the rest of the next one waits."""
    _server, port = await begin_server()
    peer = await Peer.of(port)
    data = b"".join(encode_frame(request(1, b"x" * 50))) + b"".join(encode_frame(request(2)))
    for position in range(len(data)):
        peer.writer.write(data[position : position + 1])
        await peer.writer.drain()
        await asyncio.sleep(0)
    assert [(await peer.read()).opaque for _ in range(2)] == [1, 2]


@in_loop
async def test_answers_may_come_in_another_order():
    """The processor keeps a request, and answers it after a later one."""
    kept = []

    def keep(command: RemotingCommand, connection: Connection) -> None:
        kept.append(command)
        if len(kept) == 2:
            for one in reversed(kept):
                connection.respond(one, RemotingCommand(0))

    _server, port = await begin_server({2: Processor(keep)})
    peer = await Peer.of(port)
    peer.write(RemotingCommand(2, opaque=1), RemotingCommand(2, opaque=2))
    assert [(await peer.read()).opaque for _ in range(2)] == [2, 1]


@in_loop
async def test_a_request_without_answer_has_none():
    """Not even if its code is unknown, or its processor fails."""

    def fail(command: RemotingCommand, connection: Connection) -> None:
        raise ValueError("failed")

    server, port = await begin_server({2: Processor(fail), 3: Processor(fail, in_thread=True)})
    peer = await Peer.of(port)
    peer.write(*(RemotingCommand(code, opaque=code, flag=2) for code in (ECHO, 2, 3, 99)), request(8))
    assert (await peer.read()).opaque == 8
    await until(lambda: not server.running)
    peer.write(request(9))
    assert (await peer.read()).opaque == 9


@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        b"\0\0\0\3abc",
        b"\xff\xff\xff\xff",
        (FRAME_SIZE_MAX - 3).to_bytes(4, "big"),
        b"\0\0\0\x06\0\0\0\x09{}",
        b"\0\0\0\x06\x07\0\0\x02{}",
        b"\0\0\0\x06\0\0\0\x02{}",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["zero", "short", "negative", "huge", "long-header", "form", "no-code", "http", "tls"],
)
def test_what_is_no_frame_ends_the_connection(data, caplog):
    """With one line in the log; other connections go on."""

    @in_loop
    async def ends():
        _server, port = await begin_server()
        peer, other = await Peer.of(port), await Peer.of(port)
        peer.write(request(1))
        await peer.read()
        peer.writer.write(data)
        assert await peer.is_ended()
        other.write(request(2))
        assert (await other.read()).opaque == 2
        await other.close()

    with caplog.at_level(logging.WARNING):
        ends()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a connection is closed" in caplog.text


@in_loop
async def test_the_largest_frame_is_taken():
    """Of 16 MiB, its length included."""
    _server, port = await begin_server(
        {2: Processor(lambda command, _: RemotingCommand(0, {"n": str(len(command.body))}))}
    )
    peer = await Peer.of(port)
    command = RemotingCommand(2, {}, b"", opaque=1)
    command.body = bytes(FRAME_SIZE_MAX - len(encode_frame(command)[0]))
    peer.write(command)
    assert (await peer.read()).ext_fields == {"n": str(len(command.body))}


@in_loop
async def test_an_answer_that_is_too_large_is_an_error():
    """The peer would close the connection; it gets code 1 instead."""
    _server, port = await begin_server({2: Processor(lambda *_: RemotingCommand(0, {}, bytes(FRAME_SIZE_MAX)))})
    peer = await Peer.of(port)
    peer.write(RemotingCommand(2, opaque=1))
    answer = await peer.read()
    assert answer.code == 1
    assert "too large" in answer.remark


@in_loop
async def test_a_peer_that_does_not_read_is_not_read():
    """Its requests wait in its own memory; when it reads again, all are answered."""
    taken = 0

    def large(command: RemotingCommand, connection: Connection) -> RemotingCommand:
        nonlocal taken
        taken += 1
        return RemotingCommand(0, {}, bytes(256 << 10))

    server, port = await begin_server({2: Processor(large)})
    peer = await Peer.of(port)
    peer.reader._transport.pause_reading()
    peer.write(*(RemotingCommand(2, opaque=number) for number in range(200)))
    await until(lambda: any(connection.paused for connection in server.connections))
    (connection,) = server.connections
    assert taken < 200
    assert connection.transport.get_write_buffer_size() < 4 << 20
    peer.reader._transport.resume_reading()
    assert [(await peer.read()).opaque for _ in range(200)] == list(range(200))


@in_loop
async def test_requests_of_one_peer_do_not_hold_up_another():
    """Of many requests that came together, a few are answered at a time, in their order."""
    order: list[int] = []

    def note(command: RemotingCommand, _: Connection) -> RemotingCommand:
        order.append(command.opaque)
        return RemotingCommand(0)

    _server, port = await begin_server({2: Processor(note)})
    greedy, other = await Peer.of(port), await Peer.of(port)
    greedy.write(*(RemotingCommand(2, opaque=number) for number in range(100)))
    other.write(RemotingCommand(2, opaque=100))
    assert (await other.read()).opaque == 100
    assert order.index(100) <= module.ANSWERS_OF_TURN_MAX
    assert [(await greedy.read()).opaque for _ in range(100)] == list(range(100))


def test_a_peer_that_leaves_too_much_unread_is_given_up(monkeypatch, caplog):
    """Answers to held requests and notifications come without a request being read."""
    monkeypatch.setattr(module, "UNREAD_MAX", 1 << 20)

    @in_loop
    async def given_up():
        server, port = await begin_server()
        peer = await Peer.of(port)
        peer.write(request(1))
        await peer.read()
        peer.reader._transport.pause_reading()
        (connection,) = server.connections
        while server.connections:
            connection.notify(RemotingCommand(40, {}, bytes(256 << 10)))
            await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        given_up()
    assert "the peer does not read" in caplog.text


def test_unfinished_frames_of_all_connections_have_a_limit(caplog):
    """The connection that holds most is ended, whoever goes beyond it; what it held counts no longer."""

    @in_loop
    async def limited():
        server, port = await begin_server()
        unfinished = server.limits.unfinished
        unfinished.size_max = 1 << 20
        peers = [await Peer.of(port) for _ in range(3)]
        sizes = [900 << 10, 100 << 10, 50 << 10]
        for number, size in enumerate(sizes):
            peers[number].writer.write((8 << 20).to_bytes(4, "big") + bytes(size))
            # With the third it is too much, and the first one goes.
            expected = sum(4 + size for size in sizes[number == 2 : number + 1])
            await until(lambda expected=expected: unfinished.size == expected)
        assert len(server.connections) == 2
        for peer in peers:
            await peer.close()
        await until(lambda: not server.connections)
        assert unfinished.size == 0

    with caplog.at_level(logging.WARNING):
        limited()
    assert "unfinished frames take too much memory" in caplog.text


@in_loop
async def test_a_client_matches_answers_with_its_requests():
    """Several requests are under way at once over one connection."""
    server, port = await begin_server()
    client = RemotingClient()
    address = f"127.0.0.1:{port}"
    commands = [RemotingCommand(ECHO, {"n": str(number)}) for number in range(100)]
    answers = await asyncio.gather(*(client.invoke(address, command) for command in commands))
    assert [answer.ext_fields["n"] for answer in answers] == [str(number) for number in range(100)]
    assert len(server.connections) == 1
    await client.close()


@in_loop
async def test_a_request_of_the_server_is_answered_by_the_client():
    """Both sides ask; one without a handler says that it supports nothing."""
    server, port = await begin_server()
    client = RemotingClient()
    await client.connection(f"127.0.0.1:{port}")
    await until(lambda: bool(server.connections))
    (connection,) = server.connections
    answer = await connection.invoke(RemotingCommand(307), 10)
    assert (answer.code, answer.remark) == (3, " request type 307 not supported")
    await client.close()


@in_loop
async def test_an_answer_that_does_not_come_is_waited_for_so_long():
    """One that comes later, or was not asked for, is dropped."""
    kept = []
    _server, port = await begin_server({2: Processor(lambda command, connection: kept.append((command, connection)))})
    client = RemotingClient()
    address = f"127.0.0.1:{port}"
    with pytest.raises(TimeoutError):
        await client.invoke(address, RemotingCommand(2), timeout=0.05)
    (late, connection) = kept[0]
    connection.respond(late, RemotingCommand(0))
    assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
    assert (await client.connection(address)).waiting == {}
    await client.close()


@in_loop
async def test_the_end_of_a_connection_ends_what_waits_for_an_answer():
    """The server may have done what was asked."""
    _server, port = await begin_server({2: Processor(lambda command, connection: connection.abort())})
    client = RemotingClient()
    with pytest.raises(ConnectionLost):
        await client.invoke(f"127.0.0.1:{port}", RemotingCommand(2))
    assert (await client.invoke(f"127.0.0.1:{port}", RemotingCommand(ECHO))).code == 0
    await client.close()


@in_loop
async def test_a_request_after_the_end_of_its_connection_was_not_sent():
    """The caller may repeat it without a look."""
    _server, port = await begin_server()
    client = RemotingClient()
    connection = await client.connection(f"127.0.0.1:{port}")
    connection.abort()
    with pytest.raises(ConnectionLost, match="ended before the request was sent") as ended:
        connection.request(RemotingCommand(ECHO))
    assert ended.value.advice == "Repeat the request: the peer has not seen it."
    await client.close()


@in_loop
async def test_nothing_listens():
    """One sentence with the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        await RemotingClient().invoke(f"127.0.0.1:{port}", RemotingCommand(ECHO))


NO_ADDRESSES = ("", "host", ":1", "host:", "host:x", "host:65536", "host:٣", "host:-1", "a..b:1", f"{'a' * 64}:1")


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_an_address_that_is_none_is_refused(address):
    """Before anything is looked up."""
    with pytest.raises(Unreachable, match="host:port"):
        parse_address(address)


def test_addresses_as_text():
    """Those of IPv6 have brackets."""
    assert parse_address("[::1]:9876") == ("::1", 9876)
    assert address_text(("::1", 9876, 0, 0)) == "[::1]:9876"
    assert address_text(("127.0.0.1", 9876)) == "127.0.0.1:9876"
    assert address_text(None) == ""
