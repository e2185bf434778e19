"""Connection: one TCP or Unix connection that speaks the remoting protocol. Both sides send requests.

    bytes ──▶ frames ──▶ request ──▶ handler                     response ──▶ future of the request
                                        │ respond, any time later
    bytes ◀── one write per turn of the loop ◀──┘

Memory is bounded. A peer that does not read is not read from, either: no further request is taken until it has read
its answers. The bytes of all unfinished frames together have a limit, see `Limits`.

Source: RocketMQ remoting, NettyRemotingAbstract and NettyDecoder.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import cast

from reput.errors import ReputError
from reput.remoting.remoting_command import (
    FRAME_SIZE_MAX,
    FrameError,
    RemotingCommand,
    decode_frame,
    encode_frame,
    next_opaque,
)

__all__ = ["Connection", "ConnectionLost", "Limits", "Outgoing", "RequestHandler"]

# What one turn of the loop has to send is handed to the transport at this size, so that it can ask for a pause.
WRITE_SIZE = 256 << 10
# A transport that has more than this to send asks for a pause.
WRITE_BUFFER_MAX = 1 << 20
# Answers to held pulls and notifications come without a request being read; a peer that leaves so much unread is gone.
UNREAD_MAX = 64 << 20
# Smaller rests of frames do not count: every connection may have one.
SMALL_REST = 4096

logger = logging.getLogger(__name__)


class ConnectionLost(ReputError):
    """The connection ended before the request was answered. The peer may have done what was asked."""

    advice = "Look whether it was done before you ask again."


class Limits:
    """What all connections of a server may take together.

    Attributes:
        unfinished_size_max: bytes of frames that have not come whole yet.
    """

    def __init__(self, unfinished_size_max: int = 256 << 20) -> None:
        self.unfinished_size_max = unfinished_size_max
        self.unfinished_size = 0


class Outgoing:
    """The connections of one loop that have something to send; they send it at the end of its turn, or earlier."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Let a connection send at the end of the turn."""
        if not self.connections:
            connection.loop.call_soon(self.flush)
        self.connections.append(connection)

    def flush(self) -> None:
        """Let all connections send now."""
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.flush()


# Gets each request, and answers by `Connection.respond`.
RequestHandler = Callable[["Connection", RemotingCommand], None]


# What one read of a socket takes at most. All connections of a thread read into one buffer: its bytes are handled or
# copied before the next read.
READ_SIZE = 256 << 10
read_buffers = threading.local()


class Connection(asyncio.BufferedProtocol):
    """Used in the thread of its loop only.

    Attributes:
        peer: address of the other side, ``host:port``, or the path of a Unix socket.
        local: address of this side.
        last_active: when something was read or written last, in the loop's seconds.
        attachments: what the owner of the connection keeps with it.
    """

    def __init__(
        self,
        handler: RequestHandler,
        on_made: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
        limits: Limits | None = None,
        outgoing: Outgoing | None = None,
    ) -> None:
        self.handler = handler
        self.on_made = on_made
        self.on_lost = on_lost
        self.limits = limits or Limits()
        self.turn = outgoing or Outgoing()
        self.loop = asyncio.get_running_loop()
        self.buffer = read_buffer()
        self.transport: asyncio.Transport | None = None
        self.peer = self.local = ""
        self.last_active = self.loop.time()
        self.attachments: dict[str, object] = {}
        self.closed = False
        self.lost: asyncio.Future[None] = self.loop.create_future()
        # The rest of the bytes that were read, which begins with a frame; how many of it count with the limits.
        self.rest = bytearray()
        self.counted = 0
        # The rest has this size at least once its first frame is whole.
        self.needed = 0
        self.paused = False
        self.outgoing: list[bytes | memoryview] = []
        self.outgoing_size = 0
        self.is_flush_due = False
        self.waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        self.peer = address_text(transport.get_extra_info("peername"))
        self.local = address_text(transport.get_extra_info("sockname"))
        if self.on_made is not None:
            self.on_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End all that waits for an answer."""
        del error
        self.closed = True
        self.count_rest(0)
        self.rest.clear()
        self.outgoing.clear()
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"the connection ended before the answer: peer={self.peer}"))
        self.waiting.clear()
        if not self.lost.done():
            self.lost.set_result(None)
        if self.on_lost is not None:
            self.on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        del sizehint
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read, and handle the frames that are whole now."""
        self.last_active = self.loop.time()
        data = self.buffer[:nbytes]
        if self.rest:
            self.rest += data
            if len(self.rest) >= self.needed:
                self.handle_rest()
            else:
                self.count_rest(len(self.rest))
        else:
            taken = self.handle_frames(data)
            if taken < nbytes:
                self.rest += data[taken:]
                self.count_rest(len(self.rest))

    def eof_received(self) -> bool:
        """The peer sends no more; it reads no more, either."""
        return False

    def pause_writing(self) -> None:
        """The peer does not read: take no further request from it."""
        self.paused = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has read: go on."""
        self.paused = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            self.loop.call_soon(self.handle_rest)

    # Reading.

    def handle_rest(self) -> None:
        """Handle what was read before."""
        if not self.rest or self.closed:
            return
        taken = self.handle_frames(memoryview(bytes(self.rest)))
        del self.rest[:taken]
        self.count_rest(len(self.rest))

    def handle_frames(self, view: memoryview) -> int:
        """Handle the whole frames of *view*; return where the first that is not whole begins."""
        at, end = 0, len(view)
        while not (self.paused or self.closed):
            if end - at < 4:
                self.needed = 4
                break
            size = int.from_bytes(view[at : at + 4], "big")
            if not 4 <= size <= FRAME_SIZE_MAX - 4:
                self.refuse(f"a frame has an impossible size: frame_size={size} frame_size_max={FRAME_SIZE_MAX}")
                return end
            if end - at < size + 4:
                self.needed = size + 4
                break
            try:
                command = decode_frame(view[at + 4 : at + 4 + size])
            except FrameError as error:
                self.refuse(str(error))
                return end
            at += 4 + size
            self.take(command)
        else:
            self.needed = 0
        return at

    def count_rest(self, size: int) -> None:
        """Count the rest of the bytes with the limits; end the connection if there are too many."""
        size = size if size > SMALL_REST else 0
        self.limits.unfinished_size += size - self.counted
        self.counted = size
        if size and self.limits.unfinished_size > self.limits.unfinished_size_max:
            self.refuse(
                f"unfinished frames take too much memory: unfinished_size_max={self.limits.unfinished_size_max}"
            )

    def take(self, command: RemotingCommand) -> None:
        """Hand over one command."""
        if not command.is_response:
            self.handler(self, command)
            return
        future = self.waiting.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)

    def refuse(self, reason: str) -> None:
        """End a connection whose peer breaks the protocol."""
        logger.warning("a connection is closed: peer=%s reason=%s", self.peer, reason)
        self.abort()

    # Writing.

    def send(self, command: RemotingCommand) -> None:
        """Send a command; a connection that has ended drops it.

        Raises:
            FrameError: it is larger than any peer takes.
        """
        if self.closed or self.transport is None:
            return
        pieces = encode_frame(command)
        self.outgoing += pieces
        self.outgoing_size += sum(map(len, pieces))
        if self.outgoing_size >= WRITE_SIZE:
            self.flush()
        elif not self.is_flush_due:
            self.is_flush_due = True
            self.turn.add(self)

    def flush(self) -> None:
        """Hand all that is to be sent to the transport."""
        self.is_flush_due = False
        if not self.outgoing or self.closed or self.transport is None:
            return
        pieces, self.outgoing, self.outgoing_size = self.outgoing, [], 0
        self.last_active = self.loop.time()
        self.transport.writelines(pieces)
        if self.paused and self.transport.get_write_buffer_size() > UNREAD_MAX:
            self.refuse(f"the peer does not read: unread_max={UNREAD_MAX}")

    def respond(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer *request*, unless nobody waits for an answer."""
        if not request.is_oneway:
            self.send(response.response_to(request))

    def notify(self, command: RemotingCommand) -> None:
        """Send a request that has no answer."""
        command.opaque = next_opaque()
        command.flag = 2
        self.send(command)

    async def invoke(self, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Send a request and return its response.

        Raises:
            ConnectionLost: the connection ended before.
            TimeoutError: it was not answered in *timeout* seconds.
        """
        if self.closed:
            raise ConnectionLost(f"the connection has ended: peer={self.peer}")
        command.opaque = next_opaque()
        future: asyncio.Future[RemotingCommand] = self.loop.create_future()
        self.waiting[command.opaque] = future
        try:
            self.send(command)
            async with asyncio.timeout(timeout):
                return await future
        finally:
            self.waiting.pop(command.opaque, None)

    # The end.

    def close(self) -> None:
        """Send what is to be sent, then end the connection."""
        if self.transport is not None:
            self.flush()
            self.transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()


def read_buffer() -> memoryview:
    """Return the buffer into which the connections of this thread read."""
    buffer: memoryview | None = getattr(read_buffers, "buffer", None)
    if buffer is None:
        buffer = read_buffers.buffer = memoryview(bytearray(READ_SIZE))
    return buffer


def address_text(address: object) -> str:
    """Return the address of a socket as text."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address or "")
