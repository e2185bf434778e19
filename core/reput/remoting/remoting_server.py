"""RemotingServer: accepts connections, and hands each request to the processor registered for its code.

    request ──▶ processor of its code ──┬─▶ response, at once
                                        ├─▶ nothing: the processor responds later
                                        └─▶ error ──▶ response with its code

Processors that only touch memory run in the loop. Processors that may wait for the disk run in a fixed number of
threads, a few of one connection at a time: others wait behind them, and the loop goes on between them. When too many
requests are queued, further ones are refused with SYSTEM_BUSY.

Source: RocketMQ remoting, NettyRemotingServer and NettyRemotingAbstract.processRequestCommand.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

from reput.errors import ReputError, RequestRefused
from reput.remoting.connection import Connection, FrameTaker, Limits
from reput.remoting.listener import Listener
from reput.remoting.peer_credentials import is_trusted, peer_uid
from reput.remoting.remoting_command import FrameError, RemotingCommand
from reput.remoting.response_code import ADVICE_FIELD, AWAY_FIELD, ResponseCode
from reput.remoting.tls import ServerTls
from reput.remoting.turn import Turn

__all__ = ["WAITING_MAX", "Processor", "RemotingServer", "refusal", "unsupported"]

# Connections without reads and writes for this long are closed.
IDLE_MAX_S = 120.0
IDLE_LOOK_S = 10.0
BACKLOG = 1024
THREADS = 4
# Of one connection. A client that asks for much at once would otherwise take all threads, and the interpreter's lock.
THREADS_OF_CONNECTION = 2
WAITING_MAX = 1000
WAITING_OF_CONNECTION_MAX = 250
# Bytes of the bodies of requests that run in threads, or wait for one.
QUEUED_SIZE_MAX = 256 << 20
SETTLE_MAX_S = 5.0
# The time in which pending output is sent at the end.
CLOSE_MAX_S = 1.0
CONNECTIONS_MAX = 1 << 20

# Called with each request before its processor. Raises RequestRefused if the peer is not allowed to send it.
Guard: TypeAlias = Callable[[Connection, RemotingCommand], None]

logger = logging.getLogger(__name__)


class Processor(NamedTuple):
    """Answers requests of one code.

    Attributes:
        process: returns the response, or None if there is none or `Connection.respond` sends it later.
        in_thread: whether the processor may wait for the disk, and therefore runs outside the loop; a function tells
            it for each request.
    """

    process: Callable[[RemotingCommand, Connection], RemotingCommand | None]
    in_thread: bool | Callable[[], bool] = False


class ThreadQueue:
    """The requests of one connection that run in threads, or wait for one.

    Attributes:
        waiting: in the order of their arrival.
        running: how many run.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[Processor, RemotingCommand]] = deque()
        self.running = 0


class RemotingServer:
    """One table of processors behind any number of listening sockets. Used in the loop's thread only."""

    def __init__(
        self,
        processors: Mapping[int, Processor],
        *,
        on_closed: Callable[[Connection], None] | None = None,
        answer_of: Callable[[Exception], RemotingCommand] | None = None,
        turn: Turn | None = None,
        guard: Guard | None = None,
        tls: ServerTls | None = None,
        connections_max: int = CONNECTIONS_MAX,
        admit: Callable[[Connection], str | None] | None = None,
        frame_taker: FrameTaker | None = None,
    ) -> None:
        """*on_closed* is called with each connection that has ended; *answer_of* converts an error to a response.

        Args:
            guard: may refuse each request; None: no request is refused before its processor.
            tls: the certificate of the ports; None: connections are not encrypted. Unix sockets never are.
            connections_max: further ones are closed as soon as they are accepted. Those that have sent nothing yet, or
                are in their TLS handshake, count as well.
            admit: returns why a new connection is closed, None to keep it.
            frame_taker: takes requests before they are decoded, without guard and processors.
        """
        self.processors = processors
        self.guard = guard
        self.tls = tls
        self.connections_max = connections_max
        self.admit = admit
        self.frame_taker = frame_taker
        self.is_full = False
        self.on_closed = on_closed
        self.answer_of = answer_of or refusal
        self.loop = asyncio.get_running_loop()
        self.connections: dict[Connection, None] = {}
        self.limits = Limits()
        self.turn = turn or Turn()
        self.listeners: list[Listener] = []
        self.executor = ThreadPoolExecutor(THREADS, "reput-request")
        self.queues: dict[Connection, ThreadQueue] = {}
        # Requests that run in threads, and with those that wait for one.
        self.running: set[asyncio.Future[RemotingCommand | None]] = set()
        self.queued_count = self.queued_size = 0
        self.timer = self.loop.call_later(IDLE_LOOK_S, self.close_idle)

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket."""
        listener.setblocking(False)
        listener.listen(BACKLOG)
        tls = None if listener.family == socket.AF_UNIX else self.tls
        self.listeners.append(Listener(listener, tls, self.new_connection, self.admits_more))

    def admits_more(self) -> bool:
        """Return whether one more connection is served: those that are not made yet take descriptors as well."""
        count = len(self.connections) + sum(listener.pending_count for listener in self.listeners)
        if count < self.connections_max:
            return True
        if not self.is_full:
            self.is_full = True
            logger.warning("further connections are closed: connections_max=%d", self.connections_max)
        return False

    def new_connection(self) -> Connection:
        """Return the protocol for an accepted connection."""
        handle = self.handle if self.guard is None else self.handle_guarded
        return Connection(handle, self.connected, self.disconnected, self.limits, self.turn, self.frame_taker)

    def connected(self, connection: Connection) -> None:
        """Register a connection. Close it if it is not admitted, or if another user made it through a Unix socket."""
        assert connection.transport is not None
        for listener in self.listeners:
            listener.made(connection)
        uid = peer_uid(connection.transport)
        if uid is not None and not is_trusted(uid):
            connection.refuse(f"the peer belongs to another user: uid={uid}")
            return
        self.connections[connection] = None
        reason = None if self.admit is None else self.admit(connection)
        if reason is not None:
            connection.refuse(reason)

    def disconnected(self, connection: Connection) -> None:
        """Unregister a connection."""
        self.connections.pop(connection, None)
        if self.is_full and len(self.connections) < self.connections_max:
            self.is_full = False
        if self.on_closed is not None:
            self.on_closed(connection)

    def close_idle(self) -> None:
        """Close idle connections."""
        self.timer = self.loop.call_later(IDLE_LOOK_S, self.close_idle)
        before = self.loop.time() - IDLE_MAX_S
        for connection in list(self.connections):
            if connection.last_active < before:
                logger.info("an idle connection is closed: peer=%s", connection.peer)
                connection.abort()

    # Requests.

    def handle_guarded(self, connection: Connection, request: RemotingCommand) -> None:
        """Answer one request, if the guard lets it pass."""
        assert self.guard is not None
        try:
            self.guard(connection, request)
        except Exception as error:
            connection.respond(request, self.answer(request, connection, error))
        else:
            self.handle(connection, request)

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        """Answer one request."""
        processor = self.processors.get(request.code)
        if processor is None:
            connection.respond(request, unsupported(request))
        elif processor.in_thread and (processor.in_thread is True or processor.in_thread()):
            self.handle_in_thread(processor, connection, request)
        else:
            self.finish(connection, request, self.processed(processor, connection, request))

    def processed(
        self, processor: Processor, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Return the processor's response, or the response to its error."""
        try:
            return processor.process(request, connection)
        except Exception as error:
            return self.answer(request, connection, error)

    def answer(self, request: RemotingCommand, connection: Connection, error: Exception) -> RemotingCommand:
        """Return the response for an error."""
        if not isinstance(error, ReputError):
            logger.exception("a request failed: code=%d peer=%s", request.code, connection.peer, exc_info=error)
        return self.answer_of(error)

    def finish(self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None) -> None:
        """Send a response, if there is one."""
        if response is not None:
            try:
                connection.respond(request, response)
            except FrameError as error:
                connection.respond(request, self.answer(request, connection, error))

    def handle_in_thread(self, processor: Processor, connection: Connection, request: RemotingCommand) -> None:
        """Answer one request in a thread, or refuse it if too many are queued."""
        queue = self.queues.get(connection) or ThreadQueue()
        # Nobody is told that a one-way request was refused, such as the end of a transaction.
        is_greedy = len(queue.waiting) >= WAITING_OF_CONNECTION_MAX and not request.is_oneway
        size = len(request.body_bytes)
        if is_greedy or self.queued_count >= WAITING_MAX or self.queued_size + size > QUEUED_SIZE_MAX:
            response = RemotingCommand(
                ResponseCode.SYSTEM_BUSY, remark="[OVERLOAD]system busy, start flow control for a while"
            )
            connection.respond(request, response)
            return
        self.queues[connection] = queue
        queue.waiting.append((processor, request))
        self.queued_count += 1
        self.queued_size += size
        if queue.running < THREADS_OF_CONNECTION:
            self.start_next(connection, queue)

    def start_next(self, connection: Connection, queue: ThreadQueue) -> None:
        """Answer the next queued request of a connection in a thread."""
        processor, request = queue.waiting.popleft()
        size = len(request.body_bytes)
        queue.running += 1
        future = self.loop.run_in_executor(self.executor, self.processed, processor, connection, request)

        def done(answered: asyncio.Future[RemotingCommand | None]) -> None:
            self.running.discard(answered)
            self.queued_count -= 1
            self.queued_size -= size
            queue.running -= 1
            if not answered.cancelled():
                self.finish(connection, request, answered.result())
            if queue.waiting:
                self.start_next(connection, queue)
            elif not queue.running:
                self.queues.pop(connection, None)

        self.running.add(future)
        future.add_done_callback(done)

    # The end.

    async def stop_listening(self) -> None:
        """Stop accepting connections."""
        while self.listeners:
            await self.listeners.pop().close()

    async def settled(self) -> None:
        """Return once the requests that are queued for threads are answered, or after `SETTLE_MAX_S`."""
        end = self.loop.time() + SETTLE_MAX_S
        while self.running and (left := end - self.loop.time()) > 0:
            await asyncio.wait(set(self.running), timeout=left)

    async def close(self) -> None:
        """End all connections, after sending their pending output."""
        await self.stop_listening()
        self.timer.cancel()
        for queue in self.queues.values():
            queue.waiting.clear()
        connections = list(self.connections)
        for connection in connections:
            connection.close()
        if connections:
            _, late = await asyncio.wait([connection.lost for connection in connections], timeout=CLOSE_MAX_S)
            for connection in list(self.connections):
                connection.abort()
            if late:
                await asyncio.wait(late, timeout=CLOSE_MAX_S)
        # Connections that were refused, or cancelled in their handshake, close their sockets in the loop's next turn.
        await asyncio.sleep(0)
        self.executor.shutdown(wait=True, cancel_futures=True)


def unsupported(request: RemotingCommand) -> RemotingCommand:
    """Return the response to a request that has no processor."""
    remark = f" request type {request.code} not supported"
    return RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


def refusal(error: Exception) -> RemotingCommand:
    """Return the response for an error."""
    remark = str(error) or type(error).__name__
    if not isinstance(error, RequestRefused):
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=remark)
    # RocketMQ's clients ignore fields that they do not know.
    fields = {ADVICE_FIELD: error.advice} if error.advice else {}
    if error.response_code == ResponseCode.SERVICE_NOT_AVAILABLE:
        # Errors of the store, such as a full disk, have this code as well, but no client is to wait for their end.
        fields[AWAY_FIELD] = "true"
    return RemotingCommand(error.response_code, fields, remark=remark)
