"""EncryptedSocket: TLS on one connection of the HA port, with the calls of a socket that replication uses.

Two threads of a follower use its connection, one reads and another reports; OpenSSL's state is for one at a time. So no
call waits inside OpenSSL: the reading thread waits for the socket, and only then takes the lock.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time

__all__ = ["EncryptedSocket"]

# TLS hands out one of its records at a time.
RECORD_SIZE = 16 << 10


class EncryptedSocket:
    """One side of a connection. *timeout* seconds: how long `recv_into` waits; 0: it does not."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """Take over a connected socket; with a *server_name*, as its client, which shakes hands at once.

        Raises:
            OSError: the peer does not speak TLS, or one side does not trust the other.
        """
        is_server = server_name is None
        self.timeout = 0.0
        self.lock = threading.Lock()
        self.tls = context.wrap_socket(
            plain, server_side=is_server, server_hostname=server_name, do_handshake_on_connect=not is_server
        )
        self.tls.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self.tls.fileno()

    def settimeout(self, timeout: float) -> None:
        """Let `recv_into` wait so many seconds."""
        self.timeout = timeout

    def recv(self, size: int) -> bytes:
        """Return up to *size* bytes; b"": the peer has ended the connection.

        Raises:
            BlockingIOError: nothing has come.
        """
        buffer = bytearray(max(size, RECORD_SIZE))
        count = self.read_once(memoryview(buffer))
        if count is None:
            raise BlockingIOError
        return bytes(buffer[:count])

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Fill *buffer* with what has come, wait for its first byte; return how much it is, 0 at the end.

        Raises:
            TimeoutError: nothing has come in time.
        """
        view = memoryview(buffer)
        deadline = time.monotonic() + self.timeout
        # What comes may be a part of a record, or for TLS itself, such as the tickets behind the handshake.
        while (filled := self.read_once(view)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            waiting = select.poll()
            waiting.register(self.tls, select.POLLIN)
            waiting.poll(left * 1000)
        count: int | None = filled
        while count and filled < len(view):
            count = self.read_once(view[filled:])
            filled += count or 0
        return filled

    def read_once(self, view: memoryview) -> int | None:
        """Read what is there; None: nothing is."""
        with self.lock:
            try:
                return self.tls.recv_into(view)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """Send what the socket takes of *data*; return how much that is. TLS has no *flags*.

        Raises:
            BlockingIOError: it takes nothing.
        """
        del flags
        with self.lock:
            try:
                return self.tls.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def shutdown(self, how: int) -> None:
        """End the connection under the threads that use it."""
        # Not by TLS: a peer that has gone would be waited for.
        with contextlib.suppress(ValueError):
            socket.socket.shutdown(self.tls, how)

    def close(self) -> None:
        """End the connection."""
        self.tls.close()
