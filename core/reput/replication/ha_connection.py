"""HaConnection: one follower of this log: what it has asked for, what it was sent, what it has acknowledged."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from math import ceil

import msgspec
from isal.isal_zlib import crc32

from reput.embedded.store_engine import StoreEngine
from reput.errors import BrokerError, OffsetOutOfRange, RequestRefused
from reput.remoting.custom_header import whole
from reput.remoting.remoting_command import RemotingCommand, encode_frame
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.remoting.tls import HANDSHAKE_BYTE, ServerTls
from reput.replication.compression import NO_COMPRESSION, ZSTD, Compress, compressor
from reput.replication.encrypted_socket import EncryptedSocket
from reput.replication.ha_protocol import (
    CHECKED_FRAME_HEADER,
    COMPRESSION,
    END,
    EPOCH,
    FRAME_HEADER,
    MEMBER,
    OFFSET,
    ReportReader,
)
from reput.store.log.segments import SegmentFile, Segments
from reput.token_bucket import TokenBucket

__all__ = ["ConnectionEnds", "HaConnection", "Protection"]

READ_SIZE = 4096
# A follower that is far behind gets large frames: each costs the thread, and with it the puts, a turn.
CATCH_UP_SIZE = 1 << 20
# Bytes that one follower gets before the others have their turn.
TURN_SIZE = 4 << 20
# An account may be removed, or lose its rights, while its follower is connected.
ACCOUNT_CHECK_INTERVAL_S = 5.0
# Smaller bodies and those of which more than this share is left are sent as they are.
COMPRESSED_SIZE_MIN, COMPRESSED_SHARE_MAX = 512, 0.9

CheckFollower = Callable[[RemotingCommand, str], None]


def no_epoch() -> int | None:
    """Return None: the broker holds no lease."""
    return None


class Protection(msgspec.Struct, frozen=True):
    """Who may follow.

    Attributes:
        tls: the broker's encryption; None: no connection is encrypted.
        check: refuses a request that its account may not make, as the broker does; None: there are no accounts.
        allows_unsigned: followers without an account may follow all the same, as RocketMQ's slaves have none.
        epoch: returns that of the lease by which this broker is the master; None: it holds none.
    """

    tls: ServerTls | None = None
    check: CheckFollower | None = None
    allows_unsigned: bool = True
    epoch: Callable[[], int | None] = no_epoch


class ConnectionEnds(Exception):
    """A follower cannot be served any more; the text says why.

    Attributes:
        is_usual: nothing is wrong with it.
    """

    def __init__(self, text: str, *, is_usual: bool = False) -> None:
        super().__init__(text)
        self.is_usual = is_usual


class HaConnection:
    """Used by the thread of the HA port. Others may look at the attributes.

    Attributes:
        descriptor: of its socket.
        sent: commit-log offset of the next byte for the follower.
        acknowledged: what it has reported last, never beyond the log's end; None: nothing yet.
        member: what it calls itself, as a node of a lease; None: it is none, and never counts as in sync.
        is_compared: its log was found to be the beginning of this one up to what it reports. A slave of RocketMQ
            compares nothing, but has taken what was sent to it.
        is_blocked: its socket is full.
        held_for: seconds for which it gets nothing, as it is far behind and the puts go first.
    """

    def __init__(
        self, engine: StoreEngine, accepted: socket.socket, address: str, protection: Protection | None = None
    ) -> None:
        """*protection*: None: every follower is welcome."""
        self.engine = engine
        self.socket: socket.socket | EncryptedSocket = accepted
        # Kept here: a socket whose encryption could not begin has none any more.
        self.descriptor = accepted.fileno()
        self.address = address
        self.protection = protection or Protection()
        self.is_new = True
        self.compress: Compress | None = None
        # Whether its request was answered; followers without `HELLO` have none.
        self.is_welcome = False
        settings = engine.settings
        self.frame_size = settings.ha_transfer_batch_size
        self.heartbeat_interval = settings.ha_send_heartbeat_interval / 1000
        self.silence_max = settings.ha_housekeeping_interval / 1000
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reports = ReportReader()
        self.segment_size = engine.writer.segment_size
        self.segments: Segments | None = None
        self.file: SegmentFile | None = None
        self.sent = 0
        self.acknowledged: int | None = None
        self.member: str | None = None
        self.is_compared = False
        self.is_blocked = False
        # What the frame under way still needs.
        self.header = b""
        self.body_left = self.frame_end = 0
        # The body, if it was read for its CRC.
        self.body = memoryview(b"")
        self.heard_at = self.written_at = self.checked_at = time.monotonic()
        self.held_for = 0.0
        self.flow: TokenBucket | None = None
        if settings.ha_flow_control_enable:
            self.flow = TokenBucket(settings.max_ha_transfer_byte_in_second, self.heard_at)

    # From the follower.

    def read(self, end: int) -> bool:
        """Take its reports, for a log that ends at *end*; return whether it has acknowledged more.

        Raises:
            ConnectionEnds: it has gone, or has reported what cannot be.
        """
        try:
            if self.is_new:
                self.choose_encryption()
            data = self.socket.recv(READ_SIZE)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionEnds("it has ended the connection", is_usual=True)
        self.heard_at = time.monotonic()
        try:
            reported = self.reports.feed(data)
        except BrokerError as error:
            raise ConnectionEnds(str(error)) from None
        if self.reports.request is not None and not self.is_welcome:
            self.welcome(self.reports.request, end)
        if reported is None:
            return False
        if reported > end:
            raise ConnectionEnds(
                f"it reports more than this log has, so its log diverges from this one: reported={reported} "
                f"log_end={end}"
            )
        if self.acknowledged is None:
            if self.protection.check is not None and not self.protection.allows_unsigned:
                raise ConnectionEnds("it has no account: RocketMQ's slaves have none, `reput follow` takes one")
            self.begin(reported)
            return False
        if reported > self.sent:
            raise ConnectionEnds(f"it reports what it was not sent: reported={reported} sent={self.sent}")
        if reported < self.acknowledged:
            # It began with an overlap, or is confused; neither takes an acknowledgement back.
            return False
        # A follower reports more than it has asked for only once it has compared that.
        self.is_compared = self.is_compared or reported > self.acknowledged
        self.acknowledged = reported
        return True

    def choose_encryption(self) -> None:
        """Speak TLS if the first byte begins it.

        Raises:
            BlockingIOError: nothing has come yet.
            ConnectionEnds: one side demands what the other does not do.
        """
        assert isinstance(self.socket, socket.socket)
        first = self.socket.recv(1, socket.MSG_PEEK)
        tls = self.protection.tls
        if first == HANDSHAKE_BYTE:
            if tls is None:
                raise ConnectionEnds("it begins with TLS, and the broker has no certificate")
            self.socket = EncryptedSocket(self.socket, tls.context)
        elif first and tls is not None and tls.options.mode == "enforcing":
            raise ConnectionEnds("it does not encrypt, as tls_server_mode=enforcing demands")
        self.is_new = False

    def welcome(self, request: RemotingCommand, end: int) -> None:
        """Answer a reput's request, and begin where it asks.

        Raises:
            ConnectionEnds: its account may not follow, or the log does not have what it asks for.
        """
        self.is_welcome = True
        try:
            if request.code != RequestCode.REPUT_FOLLOW:
                raise RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"not a follower's: code={request.code}")
            self.check_account(request)
            asked = whole(request.ext_fields, OFFSET, is_long=True)
            self.take_fields(request, asked)
        except RequestRefused as error:
            answer = RemotingCommand(error.response_code, remark=str(error)).response_to(request)
            with contextlib.suppress(OSError):
                # It is small, and the first that is sent: the socket takes it.
                self.socket.send(b"".join(encode_frame(answer)))
            raise ConnectionEnds(f"it is refused: {str(error).partition(chr(10))[0]}") from None
        if asked > end:
            raise ConnectionEnds(
                f"it asks for more than this log has, so its log diverges from this one: asked={asked} log_end={end}"
            )
        self.begin(asked)
        if request.ext_fields.get(COMPRESSION) == ZSTD:
            self.compress = compressor()
        chosen = NO_COMPRESSION if self.compress is None else ZSTD
        answer = RemotingCommand(ResponseCode.SUCCESS, {COMPRESSION: chosen}).response_to(request)
        # Before the first frame.
        self.header = b"".join(encode_frame(answer))

    def check_account(self, request: RemotingCommand) -> None:
        """Refuse a request whose account may not follow, or may no longer.

        Raises:
            RequestRefused: it may not.
        """
        self.checked_at = time.monotonic()
        if self.protection.check is not None:
            self.protection.check(request, self.address.rpartition(":")[0].strip("[]").partition("%")[0])

    def take_fields(self, request: RemotingCommand, asked: int) -> None:
        """Take what a follower says of itself, and which epoch it looks for as a node of a lease.

        Raises:
            RequestRefused: SYSTEM_ERROR; it looks for the master of another epoch.
        """
        fields = request.ext_fields
        epoch = self.protection.epoch()
        if EPOCH in fields and whole(fields, EPOCH, is_long=True) != epoch:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is not the master of that epoch: asked={fields[EPOCH]} epoch={epoch}",
            )
        if EPOCH in fields and MEMBER in fields:
            self.member = fields[MEMBER]
        if END in fields:
            # There is nothing to compare.
            self.is_compared = whole(fields, END, is_long=True) <= asked

    def begin(self, asked: int) -> None:
        """Begin at *asked*; 0 means the whole log.

        Raises:
            ConnectionEnds: the log does not have it.
        """
        begin = self.engine.commit_log_offset_min()
        asked = asked or begin
        if asked < begin:
            raise ConnectionEnds(f"it asks for what was removed: asked={asked} log_begin={begin}")
        self.sent = self.acknowledged = asked

    @property
    def confirmed(self) -> int | None:
        """Up to where the follower has this log; None: so far it has only named a place in its own."""
        return self.acknowledged if self.is_compared else None

    # To the follower.

    def may_send(self, end: int) -> bool:
        """Tell whether bytes are left that its socket may take."""
        is_behind = self.sent < end or self.body_left > 0 or bool(self.header)
        return not self.is_blocked and self.acknowledged is not None and is_behind

    def pause(self, now: float) -> float:
        """Return for how many seconds the follower has got enough of the log, 0.0 if it may get more."""
        return max(self.held_for, 0.0 if self.flow is None else self.flow.wait(now))

    def turn_size(self, now: float) -> int:
        """Return how many bytes the follower may get in this turn; its last frame may go beyond."""
        if self.pause(now):
            return 0
        return TURN_SIZE if self.flow is None else min(TURN_SIZE, ceil(self.flow.level))

    def send(self, end: int, now: float) -> None:
        """Send bytes of the log up to *end*, or a heartbeat.

        Raises:
            ConnectionEnds: it was silent too long, or retention has removed what it needs.
        """
        if now - self.heard_at > self.silence_max:
            raise ConnectionEnds(f"it says nothing: silence_max_s={self.silence_max:g}")
        if self.reports.request is not None and now - self.checked_at > ACCOUNT_CHECK_INTERVAL_S:
            try:
                self.check_account(self.reports.request)
            except RequestRefused as error:
                raise ConnectionEnds(f"it is refused: {str(error).partition(chr(10))[0]}") from None
        if self.acknowledged is None:
            return
        begin = self.sent
        turn_end = min(end, begin + self.turn_size(now))
        try:
            self.is_blocked = False
            self.finish_frame()
            while self.sent < turn_end:
                self.begin_frame(end)
                self.finish_frame()
            if now - self.written_at > self.heartbeat_interval:
                is_reput = self.reports.is_reput
                self.header = (
                    CHECKED_FRAME_HEADER.pack(self.sent, 0, 0, 0) if is_reput else FRAME_HEADER.pack(self.sent, 0)
                )
                self.finish_frame()
        except BlockingIOError:
            self.is_blocked = True
        finally:
            if self.flow is not None:
                self.flow.level -= self.sent - begin

    def begin_frame(self, end: int) -> None:
        """Decide on the next frame: within one segment, and not larger than followers take."""
        left = self.segment_size - self.sent % self.segment_size
        size_max = CATCH_UP_SIZE if end - self.sent > CATCH_UP_SIZE else self.frame_size
        size = min(left, end - self.sent, size_max)
        is_reput = self.reports.is_reput
        if is_reput or isinstance(self.socket, EncryptedSocket):
            file = self.file_of(self.sent)
            body = file.read(self.sent, size)
            if len(body) < size:
                raise self.unreadable(file)
            if is_reput:
                checksum = crc32(body)
                body = self.compressed(body)
                self.header = CHECKED_FRAME_HEADER.pack(self.sent, size, len(body), checksum)
            self.body = memoryview(body)
        if not is_reput:
            self.header = FRAME_HEADER.pack(self.sent, size)
        self.frame_end = self.sent + size
        self.body_left = len(self.body) or size

    def compressed(self, body: bytes) -> bytes:
        """Return a body compressed, or as it is if that was not agreed on or does not pay."""
        if self.compress is None or len(body) < COMPRESSED_SIZE_MIN:
            return body
        smaller = self.compress(body)
        return smaller if len(smaller) <= len(body) * COMPRESSED_SHARE_MAX else body

    def finish_frame(self) -> None:
        """Send what the frame under way still needs.

        Raises:
            BlockingIOError: the socket is full.
        """
        while self.header:
            flags = socket.MSG_MORE if self.body_left else 0
            self.header = self.header[self.socket.send(self.header, flags) :]
            self.written_at = time.monotonic()
        while self.body_left:
            count = self.send_body()
            self.body_left -= count
            if self.compress is None:
                self.sent += count
            elif not self.body_left:
                # A part of a compressed body says nothing of the log.
                self.sent = self.frame_end
            self.written_at = time.monotonic()

    def send_body(self) -> int:
        """Send what the socket takes of the body under way; return how many bytes.

        Raises:
            BlockingIOError: the socket is full.
        """
        if self.body:
            count = self.socket.send(self.body)
            self.body = self.body[count:]
            return count
        file = self.file_of(self.sent)
        count = os.sendfile(self.socket.fileno(), file.descriptor, self.sent - file.segment.begin, self.body_left)
        if not count:
            raise self.unreadable(file)
        return count

    def unreadable(self, file: SegmentFile) -> ConnectionEnds:
        """Return why the connection ends if a segment is shorter than the log."""
        return ConnectionEnds(f"the log cannot be read: path={file.segment.path} commit_log_offset={self.sent}")

    def file_of(self, commit_log_offset: int) -> SegmentFile:
        """Return the open segment that holds a byte.

        Raises:
            ConnectionEnds: retention has removed it.
        """
        file = self.file
        if file is not None and file.segment.begin <= commit_log_offset < file.segment.end:
            return file
        self.close_file()
        if self.segments is None:
            self.segments = Segments(self.engine.directory / "commitlog", self.segment_size)
        try:
            self.file = self.segments.open(self.segments.holding(commit_log_offset))
        except OffsetOutOfRange:
            raise ConnectionEnds(
                f"retention has removed what it needs next: commit_log_offset={commit_log_offset} "
                f"log_begin={self.engine.commit_log_offset_min()}"
            ) from None
        return self.file

    # The end.

    def close_file(self) -> None:
        """Close the open segment."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def close(self) -> None:
        """End the connection."""
        self.close_file()
        self.socket.close()
