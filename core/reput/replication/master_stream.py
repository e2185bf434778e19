"""MasterStream: one connection to a master's HA port, as a follower has it.

One thread reads; any thread may report. A report is 8 bytes that the socket takes at once, so no reporter waits.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from reput.errors import BrokerError
from reput.remoting.remoting_client import parse_address
from reput.replication.ha_protocol import HELLO, REPORT, HaFrameReader

__all__ = ["MasterStream"]

CONNECT_TIMEOUT_S = 3.0
RECEIVE_SIZE = 1 << 20
SOCKET_BUFFER_SIZE = 4 << 20
# RocketMQ's times: it drops a follower that says nothing for 20 s, and a follower drops a silent master.
REPORT_INTERVAL_S = 4.0
SILENCE_MAX_S = 20.0


class MasterStream:
    """Asks for the log from *begin* on. Use it in a ``with`` block."""

    def __init__(self, address: str, begin: int, segment_size: int, *, is_reput: bool = False) -> None:
        """Connect and send the first report, alone, as a master takes the last of those that come together.

        Args:
            begin: commit-log offset of the first byte wanted; not 0, by which RocketMQ means its last segment.
            is_reput: the master has called itself a reput, so its frames shall carry CRCs.

        Raises:
            BrokerError: the master cannot be reached.
        """
        self.address = address
        self.frames = HaFrameReader(begin, segment_size, is_checked=is_reput)
        self.sending = threading.Lock()
        self.reported = begin
        # The rest of a report that the socket has not taken yet.
        self.unsent = b""
        host, port = parse_address(address)
        try:
            self.socket = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_SIZE)
            self.socket.sendall((REPORT.pack(HELLO) if is_reput else b"") + REPORT.pack(begin))
        except OSError as error:
            raise BrokerError(f"the master cannot be reached: ha_address={address} reason={error}") from None
        self.reported_at = self.received_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def report(self, end: int) -> None:
        """Tell the master that everything below *end* is safe here. Any thread may call; a failed one is found by the
        thread that reads."""
        with self.sending, contextlib.suppress(OSError):
            self.reported = max(self.reported, end)
            self.send(REPORT.pack(self.reported))

    def send(self, report: bytes) -> None:
        """Send a report behind what is left of the one before, without waiting; one that finds no room is left out."""
        self.reported_at = time.monotonic()
        if self.unsent:
            self.unsent = self.unsent[self.socket.send(self.unsent, socket.MSG_DONTWAIT) :]
        if not self.unsent:
            self.unsent = report[self.socket.send(report, socket.MSG_DONTWAIT) :]

    def pieces(self, wait: float, on_quiet: Callable[[], None]) -> Iterator[memoryview]:
        """Yield the log's bytes as they come, until the connection is ended by `end`.

        Args:
            wait: seconds after which *on_quiet* is called if nothing comes.
            on_quiet: called then, and when all that has come was yielded.

        Raises:
            BrokerError: the master ended it, was silent too long, or sent what is no frame.
        """
        buffer = bytearray(RECEIVE_SIZE)
        view = memoryview(buffer)
        self.socket.settimeout(wait)
        while True:
            try:
                count = self.socket.recv_into(buffer)
            except TimeoutError:
                count = -1
            except OSError as error:
                raise BrokerError(f"the connection was lost: ha_address={self.address} reason={error}") from None
            now = time.monotonic()
            if count == 0:
                raise BrokerError(f"the master ended the connection: ha_address={self.address}")
            if count > 0:
                self.received_at = now
                yield from self.frames.feed(view[:count])
            elif now - self.received_at > SILENCE_MAX_S:
                raise BrokerError(f"the master says nothing: ha_address={self.address} silence_max_s={SILENCE_MAX_S:g}")
            if count < RECEIVE_SIZE:
                on_quiet()
            if now - self.reported_at >= REPORT_INTERVAL_S:
                self.report(self.reported)

    def end(self) -> None:
        """End the connection; any thread may call. The thread that reads gets an error."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
