"""Connection: one TCP or Unix connection that speaks the remoting protocol. Either side may send requests.

    bytes ──▶ frames ──▶ request ──▶ handler                     response ──▶ future of the request
                                        │ respond, any time later
    bytes ◀── one write per turn of the loop ◀──┘

Memory is bounded. While a peer does not read its answers, no further requests are read from it (backpressure). The
bytes of all unfinished frames together have a limit, see `Limits`.

Source: RocketMQ remoting, NettyRemotingAbstract and NettyDecoder.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import cast

from reput.errors import BrokerError
from reput.remoting.remoting_command import (
    FRAME_SIZE_MAX,
    FrameError,
    RemotingCommand,
    decode_frame,
    encode_frame,
    next_opaque,
)
from reput.remoting.turn import Turn

__all__ = ["Connection", "ConnectionLost", "FrameTaker", "Limits", "RequestHandler"]

# Within one turn of the loop, output is handed to the transport in pieces of this size, so that it can request a pause.
WRITE_SIZE = 256 << 10
# A transport with more unsent bytes than this requests a pause.
WRITE_BUFFER_MAX = 1 << 20
# Answers to held pulls and notifications are sent without reading a request; a peer with this much unread is cut off.
UNREAD_MAX = 64 << 20
# Smaller incomplete frames do not count: every connection may have one.
SMALL_REST = 4096
# Within one turn of the loop, so many requests of a connection are answered at once. Its next ones wait for the next
# turn, so that a connection that sends many costs the others a tenth of a millisecond and not all their time.
ANSWERS_OF_TURN_MAX = 8
NOT_SENT_ADVICE = "Repeat the request: the peer has not seen it."

logger = logging.getLogger(__name__)


class ConnectionLost(BrokerError):
    """The connection ended before the request was answered. If it was sent, the peer may have executed it."""

    advice = "Check whether the request was executed before you repeat it."


class SharedSize:
    """Bytes that all connections of a server hold together.

    Attributes:
        size_max: beyond it, the connection that holds most has to end.
        size: what they hold now.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.size = 0
        self.held: dict[Connection, int] = {}

    def count(self, connection: Connection, size: int) -> Connection | None:
        """Note that *connection* holds *size* bytes now; return the one that has to end, None: all have room."""
        self.size += size - self.held.pop(connection, 0)
        if size:
            self.held[connection] = size
        if self.size <= self.size_max:
            return None
        return max(self.held, key=self.held.__getitem__)


class Limits:
    """Limits shared by all connections of a server.

    Attributes:
        unfinished: bytes of incomplete frames.
        unread: bytes of output that peers do not read.
    """

    def __init__(self) -> None:
        self.unfinished = SharedSize(256 << 20)
        self.unread = SharedSize(256 << 20)


# Receives each request; answers through `Connection.respond`.
RequestHandler = Callable[["Connection", RemotingCommand], None]
# Receives the bytes that begin with a frame; returns the bytes of those frames that it has taken, 0: of none.
FrameTaker = Callable[["Connection", memoryview], int]


# The most that one read of a socket returns. All connections of a thread read into one buffer: its bytes are handled
# or copied before the next read.
READ_SIZE = 256 << 10
read_buffers = threading.local()


class Connection(asyncio.BufferedProtocol):
    """Used in the thread of its loop only.

    Attributes:
        peer: address of the other side, ``host:port``, or the path of a Unix socket.
        local: address of this side.
        last_read, last_active: time of the last read, and of the last read or write, in seconds of the loop's clock.
        attachments: data that the connection's owner keeps with it.
    """

    def __init__(
        self,
        handler: RequestHandler,
        on_made: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
        limits: Limits | None = None,
        turn: Turn | None = None,
        frame_taker: FrameTaker | None = None,
    ) -> None:
        self.handler = handler
        self.frame_taker = frame_taker
        self.on_made = on_made
        self.on_lost = on_lost
        self.limits = limits or Limits()
        self.turn = turn or Turn()
        self.loop = asyncio.get_running_loop()
        self.buffer = read_buffer()
        self.transport: asyncio.Transport | None = None
        self.peer = self.local = ""
        self.last_read = self.last_active = self.loop.time()
        self.attachments: dict[str, object] = {}
        self.closed = False
        self.lost: asyncio.Future[None] = self.loop.create_future()
        # The unprocessed bytes, beginning at a frame boundary.
        self.rest = bytearray()
        # `rest` has at least this size once its first frame is complete.
        self.needed = 0
        self.paused = False
        # How many requests were answered, and whether the next ones wait for the next turn.
        self.answered = 0
        self.is_postponed = False
        self.is_reading = True
        self.outgoing: list[bytes | memoryview] = []
        self.outgoing_size = 0
        self.is_flush_due = False
        self.waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start reading."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        self.peer = address_text(transport.get_extra_info("peername"))
        self.local = address_text(transport.get_extra_info("sockname"))
        if self.on_made is not None:
            self.on_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all requests that wait for an answer."""
        del error
        self.closed = True
        self.count_rest(0)
        self.count_unread(0)
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
        """Return the buffer for the next bytes."""
        del sizehint
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Accept the bytes that were read, and handle the frames that are now complete."""
        self.last_read = self.last_active = self.loop.time()
        self.turn.begin_read()
        try:
            self.handle_bytes(self.buffer[:nbytes])
        finally:
            self.turn.end_read()

    def eof_received(self) -> bool:
        """The peer has stopped sending. It also stops reading then, so the connection ends."""
        return False

    def pause_writing(self) -> None:
        """The peer does not read: stop reading its requests."""
        self.paused = True
        self.read_or_not()

    def resume_writing(self) -> None:
        """The peer has read: resume reading its requests."""
        self.paused = False
        self.count_unread(0)
        self.read_or_not()
        self.loop.call_soon(self.handle_rest)

    def read_or_not(self) -> None:
        """Read from the socket, unless requests that were read must wait."""
        wanted = not (self.paused or self.is_postponed)
        if wanted != self.is_reading and self.transport is not None and not self.transport.is_closing():
            self.is_reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # Reading.

    def handle_bytes(self, data: memoryview) -> None:
        """Handle bytes that follow those received earlier."""
        if self.rest:
            self.rest += data
            if len(self.rest) >= self.needed:
                self.handle_rest()
            else:
                self.count_rest(len(self.rest))
        else:
            taken = self.handle_frames(data)
            if taken < len(data):
                self.rest += data[taken:]
                self.count_rest(len(self.rest))

    def handle_rest(self) -> None:
        """Handle bytes that were received earlier."""
        if not self.rest or self.closed or self.transport is None or self.transport.is_closing():
            return
        taken = self.handle_frames(memoryview(bytes(self.rest)))
        del self.rest[:taken]
        self.count_rest(len(self.rest))

    def handle_frames(self, view: memoryview) -> int:
        """Handle the complete frames of *view*; return where the first incomplete frame begins."""
        at, end = 0, len(view)
        answered_before = self.answered
        while not (self.paused or self.closed):
            if self.answered - answered_before >= ANSWERS_OF_TURN_MAX and at < end:
                self.postpone()
                break
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
            if self.frame_taker is not None and (taken := self.frame_taker(self, view[at:])):
                at += taken
                continue
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

    def postpone(self) -> None:
        """Handle the next requests in the next turn."""
        self.needed = 0
        if not self.is_postponed:
            self.is_postponed = True
            self.read_or_not()
            self.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """Handle the requests that were postponed."""
        self.is_postponed = False
        self.handle_rest()
        self.read_or_not()

    def count_rest(self, size: int) -> None:
        """Count the unprocessed bytes in the limits; if they exceed them, end the connection that holds most."""
        unfinished = self.limits.unfinished
        greedy = unfinished.count(self, size if size > SMALL_REST else 0)
        if greedy is not None:
            greedy.refuse(f"unfinished frames take too much memory: unfinished_size_max={unfinished.size_max}")

    def take(self, command: RemotingCommand) -> None:
        """Dispatch one command: a response to its waiter, a request to the handler."""
        if not command.is_response:
            self.handler(self, command)
            return
        future = self.waiting.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)

    def refuse(self, reason: str) -> None:
        """End a connection whose peer violates the protocol."""
        logger.warning("a connection is closed: peer=%s reason=%s", self.peer, reason)
        self.abort()

    # Writing.

    def send(self, command: RemotingCommand) -> None:
        """Send a command; if the connection has ended, drop the command.

        Raises:
            FrameError: the command exceeds the largest frame that peers accept.
        """
        if self.closed or self.transport is None:
            return
        self.send_pieces(encode_frame(command))

    def send_frames(self, frames: bytes) -> None:
        """Send whole frames; if the connection has ended, drop them."""
        if frames and not self.closed and self.transport is not None:
            self.send_pieces([frames])

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send bytes at the end of the turn, or now if there are many."""
        self.outgoing += pieces
        self.outgoing_size += sum(map(len, pieces))
        if self.outgoing_size >= WRITE_SIZE:
            self.flush()
        elif not self.is_flush_due:
            self.is_flush_due = True
            self.turn.send_at_end(self)

    def flush(self) -> None:
        """Hand all pending output to the transport."""
        self.is_flush_due = False
        if not self.outgoing or self.closed or self.transport is None:
            return
        pieces, self.outgoing, self.outgoing_size = self.outgoing, [], 0
        self.last_active = self.loop.time()
        # Not writelines: up to Python 3.12.8 and 3.13.1, that method never requests a pause (CVE-2024-12254).
        self.transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self.paused:
            self.count_unread(self.transport.get_write_buffer_size())

    def count_unread(self, size: int) -> None:
        """Count the output that the peer does not read in the limits; end the connection that exceeds them."""
        unread = self.limits.unread
        greedy = unread.count(self, size)
        if size > UNREAD_MAX:
            greedy = self
        if greedy is not None:
            greedy.refuse(
                f"the peer does not read: unread_size={unread.held[greedy]} unread_max={UNREAD_MAX} "
                f"unread_of_all={unread.size} unread_of_all_max={unread.size_max}"
            )

    def respond(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer *request*, unless it is one-way."""
        self.answered += 1
        if not request.is_oneway:
            self.send(response.response_to(request))

    def notify(self, command: RemotingCommand) -> None:
        """Send a one-way request."""
        command.opaque = next_opaque()
        command.flag = 2
        self.send(command)

    async def invoke(self, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Send a request and return its response.

        Raises:
            ConnectionLost: the connection ended before the response.
            TimeoutError: no response within *timeout* seconds.
        """
        future = self.request(command)
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            self.waiting.pop(command.opaque, None)

    def request(self, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """Send a request and return the future of its response, for which there is no time limit.

        Raises:
            ConnectionLost: the connection has ended; nothing was sent.
            FrameError: the request is larger than any peer accepts.
        """
        if self.closed:
            raise ConnectionLost(f"the connection ended before the request was sent: peer={self.peer}", NOT_SENT_ADVICE)
        command.opaque = next_opaque()
        self.send(command)
        future: asyncio.Future[RemotingCommand] = self.loop.create_future()
        self.waiting[command.opaque] = future
        return future

    # The end.

    def close(self) -> None:
        """Send pending output, then end the connection."""
        if self.transport is not None:
            self.flush()
            self.transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self.closed = True
        self.rest.clear()
        self.count_rest(0)
        self.count_unread(0)
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
