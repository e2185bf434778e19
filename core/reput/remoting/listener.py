"""Listener: accepts the connections of one listening socket, with TLS where it is possible.

    accept ──┬─ without TLS ────────────────────────────▶ Connection
             └─ peek at the first byte ──┬─ 0x16 ──▶ handshake ──▶ Connection
                                         └─ other ─▶ Connection; with enforcing mode, the connection ends

The byte is peeked at before the loop takes the socket, so the loop's own TLS reads the handshake from its beginning.
Not asyncio's Server: up to Python 3.11, it does not tell when the connections that it has accepted are made, so some
may be left open at the end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from reput.remoting.connection import Connection, address_text
from reput.remoting.tls import HANDSHAKE_BYTE, ServerTls

__all__ = ["Listener"]

# Seconds that a client has for its first byte on a port with TLS, and then for the handshake.
FIRST_BYTE_TIMEOUT_S = 10.0
HANDSHAKE_TIMEOUT_S = 10.0
# Maximum number of connections that one turn of the loop accepts.
ACCEPT_MAX = 128
# Seconds until the next attempt when the system has no descriptors or memory left.
SHORTAGE_PAUSE_S = 1.0

logger = logging.getLogger(__name__)


class Listener:
    """Accepts on one socket. Used in the thread of its loop only."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ServerTls | None,
        new_connection: Callable[[], Connection],
        admits: Callable[[], bool],
    ) -> None:
        """Start accepting on the non-blocking *listener*.

        Args:
            tls: None: connections are not encrypted.
            admits: returns whether one more connection is served; otherwise it is closed.
        """
        self.listener = listener
        self.tls = tls
        self.new_connection = new_connection
        self.admits = admits
        self.loop = asyncio.get_running_loop()
        # Connections that have sent nothing yet, and connections that are being made, such as by a TLS handshake.
        self.silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self.begun: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.pause: asyncio.TimerHandle | None = None
        self.loop.add_reader(listener, self.accept)

    @property
    def pending_count(self) -> int:
        """How many accepted connections are not made yet."""
        return len(self.silent) + len(self.begun)

    def made(self, connection: Connection) -> None:
        """Count a connection no more, because it is made; it may be another listener's."""
        self.begun.discard(connection)

    def accept(self) -> None:
        """Accept the waiting connections."""
        for _ in range(ACCEPT_MAX):
            try:
                accepted, _ = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("connections cannot be accepted for now: reason=%s", error)
                self.loop.remove_reader(self.listener)
                self.pause = self.loop.call_later(SHORTAGE_PAUSE_S, self.resume)
                return
            if not self.admits():
                accepted.close()
                continue
            accepted.setblocking(False)
            if self.tls is None:
                self.make(accepted, None)
                continue
            self.silent[accepted] = self.loop.call_later(FIRST_BYTE_TIMEOUT_S, self.drop, accepted)
            self.loop.add_reader(accepted, self.peek, accepted, self.tls)

    def resume(self) -> None:
        """Accept again."""
        self.pause = None
        self.loop.add_reader(self.listener, self.accept)

    def peek(self, accepted: socket.socket, tls: ServerTls) -> None:
        """Read the first byte, and start TLS or the plain protocol."""
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self.silent.pop(accepted).cancel()
        self.loop.remove_reader(accepted)
        is_encrypted = first == HANDSHAKE_BYTE
        if not first:
            accepted.close()
        elif not is_encrypted and tls.options.mode == "enforcing":
            logger.warning("a connection without TLS is closed: peer=%s tls_server_mode=enforcing", peer_of(accepted))
            accepted.close()
        else:
            self.make(accepted, tls.context if is_encrypted else None)

    def make(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Make the connection of an accepted socket."""
        connection = self.new_connection()
        self.begun.add(connection)
        task = self.loop.create_task(self.begin(connection, accepted, context))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def begin(self, connection: Connection, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Return once the connection is made; it is encrypted if *context* is not None."""
        peer = peer_of(accepted)
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_TIMEOUT_S,
            )
        except (OSError, TimeoutError) as error:
            logger.info("a connection ended in its handshake: peer=%s reason=%s", peer, error)
            accepted.close()
        finally:
            self.begun.discard(connection)

    def drop(self, accepted: socket.socket) -> None:
        """End a connection that has sent nothing."""
        self.silent.pop(accepted).cancel()
        self.loop.remove_reader(accepted)
        accepted.close()

    async def close(self) -> None:
        """Stop accepting, and end the connections that are still pending; the others go on."""
        if self.pause is not None:
            self.pause.cancel()
        self.loop.remove_reader(self.listener)
        self.listener.close()
        for accepted in list(self.silent):
            self.drop(accepted)
        # A task that is cancelled before it has begun would leave its socket open.
        await asyncio.sleep(0)
        pending = list(self.tasks)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def peer_of(accepted: socket.socket) -> str:
    """Return the address of the other side; "" if it has disconnected."""
    try:
        return address_text(accepted.getpeername())
    except OSError:
        return ""
