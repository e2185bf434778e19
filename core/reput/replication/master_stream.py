"""MasterStream: one connection to a master's HA port, as a follower has it.

One thread reads; any thread may report. A report is a few bytes that the socket takes at once, so no reporter waits.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from reput.access.credentials import NO_CREDENTIALS, Credentials
from reput.errors import BrokerError
from reput.remoting.remoting_client import parse_address
from reput.remoting.remoting_command import FrameError, RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.replication.compression import NO_COMPRESSION, ZSTD, Decompress, decompressor
from reput.replication.encrypted_socket import EncryptedSocket
from reput.replication.ha_protocol import (
    COMPRESSION,
    LENGTH_SIZE,
    OFFSET,
    REPORT,
    REQUEST_SIZE_MAX,
    HaFrameReader,
    Room,
    checked_report,
    decode_whole,
    hello,
    new_memory,
)

__all__ = ["NO_FIELDS", "MasterStream"]

CONNECT_TIMEOUT_S = 3.0
SOCKET_BUFFER_SIZE = 4 << 20
# RocketMQ's times: it drops a follower that says nothing for 20 s, and a follower drops a silent master.
REPORT_INTERVAL_S = 4.0
SILENCE_MAX_S = 20.0
NO_FIELDS: Mapping[str, str] = {}
ACCOUNT_ADVICE = "Set REPUT_ACCESS_KEY and REPUT_SECRET_KEY to an administrator's account of the master, and REPUT_TLS."


class MasterStream:
    """Asks for the log from *begin* on. Use it in a ``with`` block."""

    def __init__(
        self,
        address: str,
        begin: int,
        segment_size: int,
        *,
        is_reput: bool = False,
        credentials: Credentials = NO_CREDENTIALS,
        compression: str = NO_COMPRESSION,
        fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        """Connect and send the first report, alone, as a master takes the last of those that come together.

        Args:
            begin: commit-log offset of the first byte wanted; not 0, by which RocketMQ means its last segment.
            is_reput: the master has called itself a reput, so its frames shall carry CRCs.
            compression: asked for, of a reput.
            fields: of the request to a reput: what the follower says of itself, and the epoch that a node looks for.

        Raises:
            BrokerError: the master cannot be reached, or refuses.
            ConfigError: the library for the compression is missing.
        """
        self.address = address
        self.credentials = credentials
        self.pack: Callable[[int], bytes] = checked_report if is_reput else REPORT.pack
        self.sending = threading.Lock()
        self.reported = begin
        # The rest of a report that the socket has not taken yet.
        self.unsent = b""
        host, port = parse_address(address)
        try:
            plain = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            raise BrokerError(f"the master cannot be reached: ha_address={address} reason={error}") from None
        self.socket: socket.socket | EncryptedSocket = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_SIZE)
            # RocketMQ's HA port knows no TLS.
            if is_reput and credentials.tls is not None:
                self.socket = EncryptedSocket(plain, credentials.tls, host)
                self.socket.settimeout(CONNECT_TIMEOUT_S)
            decompress = None
            if is_reput:
                decompress = self.introduce(begin, compression, fields)
            else:
                self.socket.send(REPORT.pack(begin))
        except OSError as error:
            self.socket.close()
            reason = str(error) or type(error).__name__
            raise BrokerError(f"the master cannot be reached: ha_address={address} reason={reason}") from None
        except BaseException:
            self.socket.close()
            raise
        self.frames = HaFrameReader(begin, segment_size, is_checked=is_reput, decompress=decompress)
        self.reported_at = self.received_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def introduce(self, begin: int, compression: str, fields: Mapping[str, str]) -> Decompress | None:
        """Ask a reput for its log; return what its frames are decompressed with, None if they are not compressed.

        Raises:
            BrokerError: it refuses.
            ConfigError: the library for the compression is missing.
        """
        decompress = decompressor() if compression == ZSTD else None
        request = RemotingCommand(RequestCode.REPUT_FOLLOW, {OFFSET: str(begin), COMPRESSION: compression, **fields})
        if self.credentials.sign is not None:
            self.credentials.sign(request)
        # The socket of a new connection takes it whole.
        self.socket.send(hello(request))
        size = int.from_bytes(self.received(LENGTH_SIZE), "big")
        if size > REQUEST_SIZE_MAX:
            raise BrokerError(f"the master's answer is too large: ha_address={self.address} size={size}")
        try:
            answer = decode_whole(self.received(size))
        except FrameError as error:
            raise BrokerError(f"the master's answer is malformed: ha_address={self.address} reason={error}") from None
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                f"the master refuses this follower: ha_address={self.address} response_code={answer.code} "
                f"remark={answer.remark!r}",
                ACCOUNT_ADVICE,
            )
        return decompress if answer.ext_fields.get(COMPRESSION) == ZSTD else None

    def received(self, size: int) -> bytes:
        """Return exactly *size* bytes.

        Raises:
            BrokerError: the master ends the connection.
            OSError: the connection is lost.
        """
        data = b""
        while len(data) < size:
            # Not one byte more: frames follow.
            buffer = bytearray(size - len(data))
            count = self.socket.recv_into(buffer)
            if not count:
                raise BrokerError(
                    f"the master ended the connection: ha_address={self.address}",
                    "The log of the master's broker says why: whether it demands TLS, for example.",
                )
            data += buffer[:count]
        return data

    def report(self, end: int) -> None:
        """Tell the master that everything below *end* is safe here. Any thread may call; a failed one is found by the
        thread that reads."""
        with self.sending, contextlib.suppress(OSError):
            self.reported = max(self.reported, end)
            self.send(self.pack(self.reported))

    def send(self, report: bytes) -> None:
        """Send a report behind what is left of the one before, without waiting; one that finds no room is left out."""
        self.reported_at = time.monotonic()
        if self.unsent:
            self.unsent = self.unsent[self.socket.send(self.unsent, socket.MSG_DONTWAIT) :]
        if not self.unsent:
            self.unsent = report[self.socket.send(report, socket.MSG_DONTWAIT) :]

    def pieces(self, wait: float, on_quiet: Callable[[], None], room: Room = new_memory) -> Iterator[memoryview]:
        """Yield the log's bytes as they come, until the connection is ended by `end`. They stay until the next call.

        Args:
            wait: seconds after which *on_quiet* is called if nothing comes.
            on_quiet: called then, and when all that has come was yielded.
            room: returns memory for bytes that are received as a whole.

        Raises:
            BrokerError: the master ended it, was silent too long, or sent what is no frame.
        """
        frames = self.frames
        frames.room = room
        self.socket.settimeout(wait)
        while True:
            try:
                count = self.socket.recv_into(frames.space())
            except TimeoutError:
                count = -1
            except OSError as error:
                raise BrokerError(f"the connection was lost: ha_address={self.address} reason={error}") from None
            now = time.monotonic()
            if count == 0:
                raise BrokerError(f"the master ended the connection: ha_address={self.address}")
            if count > 0:
                self.received_at = now
                yield from frames.took(count)
            elif now - self.received_at > SILENCE_MAX_S:
                raise BrokerError(f"the master says nothing: ha_address={self.address} silence_max_s={SILENCE_MAX_S:g}")
            on_quiet()
            if now - self.reported_at >= REPORT_INTERVAL_S:
                self.report(self.reported)

    def end(self) -> None:
        """End the connection; any thread may call. The thread that reads gets an error."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
