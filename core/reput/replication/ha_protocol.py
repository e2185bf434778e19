"""The bytes on the HA port. Plain TCP; the follower connects, and both sides talk at once.

    follower ──▶ master   report   offset 8                       "my log ends here": first the request, then promises
    master ──▶ follower   frame    offset 8, size 4, body         log bytes as they lie in the segment
                                   size 0: a heartbeat, with the offset of the next body

Big-endian. A frame begins and ends anywhere, also inside a record, but never spans two segments.

Between reputs a follower begins with `HELLO`, a number that is no offset, and with a request in a frame of the remoting
protocol, signed by its account if it has one:

    follower ──▶ master   HELLO 8, CRC-32 4, REPUT_FOLLOW {offset, end, …}   then reports
    master ──▶ follower   its answer {compression}, or a refusal             then frames
    follower ──▶ master   report   offset 8, CRC-32 4
    master ──▶ follower   frame    offset 8, size 4, sent size 4, CRC-32 4, body
                                   sent size below size: the body is compressed; the CRC is that of the log's bytes

A follower that copies names its log's end: what it reports counts once it has compared the bytes that it has asked for
below that end. One that only compares does not. If the nodes of a broker agree on their master by a lease, the request
names the epoch, and another broker than the master of that epoch refuses it; a node names itself as well.

A reput does so only to a master that has called itself a reput, and RocketMQ's slaves never do. A follower that
encrypts begins with TLS's handshake: its first byte, 0x16, begins neither an offset of a log nor `HELLO`.

Source: RocketMQ store, DefaultHAService, DefaultHAConnection and DefaultHAClient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

import msgspec
from isal.isal_zlib import crc32

from reput.errors import BrokerError
from reput.remoting.remoting_command import FrameError, RemotingCommand, decode_frame, encode_frame
from reput.replication.compression import Decompress

__all__ = [
    "CHECKED_FRAME_HEADER",
    "COMPRESSION",
    "END",
    "EPOCH",
    "FRAME_HEADER",
    "FRAME_SIZE_MAX",
    "HELLO",
    "LENGTH_SIZE",
    "MEMBER",
    "OFFSET",
    "REPORT",
    "REQUEST_SIZE_MAX",
    "HaFrameReader",
    "ReportReader",
    "Room",
    "checked_report",
    "decode_whole",
    "hello",
    "new_memory",
]

REPORT = Struct(">q")
CHECKSUM = Struct(">I")
FRAME_HEADER = Struct(">qi")
CHECKED_FRAME_HEADER = Struct(">qiiI")
# "reput", version 3; negative, so that it is no offset of a log.
HELLO = -0x72657075_74000003
# A request is a few fields and a signature.
REQUEST_SIZE_MAX = 64 << 10
LENGTH_SIZE = 4
OFFSET, COMPRESSION = "offset", "compression"
EPOCH, MEMBER, END = "epoch", "member", "end"
# RocketMQ's slaves have a buffer of 4 MiB, header included.
FRAME_SIZE_MAX = (4 << 20) - FRAME_HEADER.size


# What comes with the header of a checked frame is copied to the rest of its body: a small frame comes with one call.
CHECKED_SCRATCH_SIZE = 32 << 10
SCRATCH_SIZE = 1 << 20

Room = Callable[[int], memoryview]


# Large memory of Python's begins 16 bytes behind the begin of a page. Where the low bits of source and target are so
# near, processors copy at half their speed; from a file, whose pages begin at 0, that is each read.
MEMORY_BEGIN = 48


def new_memory(size: int) -> memoryview:
    """Return memory to receive or read *size* bytes in."""
    return memoryview(bytearray(MEMORY_BEGIN + size))[MEMORY_BEGIN:]


class HaFrameReader:
    """Takes a master's bytes apart, whatever pieces they come in.

    The body of a checked frame is received where it shall lie, but for what has come with its header.

        space ──▶ socket ──▶ took ──▶ the log's bytes, until the next call

    Attributes:
        expected: commit-log offset of the next byte of the log.
        frame_count: frames with a body.
    """

    def __init__(
        self,
        expected: int,
        segment_size: int,
        *,
        is_checked: bool = False,
        decompress: Decompress | None = None,
        room: Room = new_memory,
    ) -> None:
        """*is_checked*: frames carry the CRC of their body, and a body is given out only as a whole.

        *decompress*: of the compression that both sides have agreed on; None: they have not.

        *room*: returns memory for the body of a checked frame.
        """
        self.expected = expected
        self.segment_size = segment_size
        self.is_checked = is_checked
        self.decompress = decompress
        self.room = room
        self.header_size = (CHECKED_FRAME_HEADER if is_checked else FRAME_HEADER).size
        self.scratch = new_memory(CHECKED_SCRATCH_SIZE if is_checked else SCRATCH_SIZE)
        self.header = b""
        self.crc = self.size = 0
        self.is_compressed = False
        # Of a checked body that has not come whole.
        self.body = memoryview(b"")
        self.body_left = 0
        self.frame_count = 0

    def space(self) -> memoryview:
        """Return where to receive what comes next."""
        return self.body[-self.body_left :] if self.is_checked and self.body_left else self.scratch

    def took(self, count: int) -> Iterator[memoryview]:
        """Yield the log's bytes of *count* that were received where `space` says; see `feed`.

        Raises:
            BrokerError: as `feed`.
        """
        if not (self.is_checked and self.body_left):
            yield from self.feed(self.scratch[:count])
            return
        self.body_left -= count
        if not self.body_left:
            yield self.checked_body()

    def feed(self, data: memoryview) -> Iterator[memoryview]:
        """Yield the log's bytes in *data*, in order; they stay as they are until the next call.

        Raises:
            BrokerError: the master sent a frame that does not belong here.
        """
        at, end = 0, len(data)
        while at < end:
            if self.body_left:
                piece = data[at : at + self.body_left]
                at += len(piece)
                if not self.is_checked:
                    self.body_left -= len(piece)
                    self.expected += len(piece)
                    yield piece
                    continue
                self.space()[: len(piece)] = piece
                self.body_left -= len(piece)
                if not self.body_left:
                    yield self.checked_body()
                continue
            piece = data[at : at + self.header_size - len(self.header)]
            at += len(piece)
            self.header += piece
            if len(self.header) == self.header_size:
                self.begin_frame()

    def begin_frame(self) -> None:
        """Read a whole header.

        Raises:
            BrokerError: the frame does not continue the log.
        """
        if self.is_checked:
            offset, size, sent_size, self.crc = CHECKED_FRAME_HEADER.unpack(self.header)
        else:
            offset, size = FRAME_HEADER.unpack(self.header)
            sent_size = size
        self.header = b""
        self.check(offset, size)
        if sent_size != size and not (self.decompress is not None and 0 < sent_size < size):
            raise BrokerError(
                f"the master sent a frame of another size than it says: size={size} sent_size={sent_size}"
            )
        self.size, self.body_left, self.is_compressed = size, sent_size, sent_size < size
        if self.is_checked and sent_size:
            self.body = new_memory(sent_size) if self.is_compressed else self.room(size)
        self.frame_count += size > 0

    def checked_body(self) -> memoryview:
        """Return the body that has come whole.

        Raises:
            BrokerError: its CRC does not fit: it has changed on the way.
        """
        body, self.body = self.body, memoryview(b"")
        if self.is_compressed:
            assert self.decompress is not None
            body = memoryview(self.decompress(bytes(body), self.size))
        if crc32(body) != self.crc:
            raise BrokerError(f"a frame has changed on the way: offset={self.expected} size={self.size}")
        self.expected += self.size
        return body

    def check(self, offset: int, size: int) -> None:
        """Refuse a frame that does not continue the log.

        Raises:
            BrokerError: it does not.
        """
        if offset != self.expected:
            raise BrokerError(f"the master sent bytes of another place: offset={offset} expected={self.expected}")
        if not 0 <= size <= FRAME_SIZE_MAX:
            raise BrokerError(f"the master sent a frame of an impossible size: size={size} size_max={FRAME_SIZE_MAX}")
        if self.expected % self.segment_size + size > self.segment_size:
            raise BrokerError(
                f"the master sent a frame across two segments: offset={offset} size={size} "
                f"segment_size={self.segment_size}",
                "Its segments have another size: compare mappedFileSizeCommitLog.",
            )


class ReportReader:
    """Takes a follower's bytes apart: of all reports that have come, the last whole one counts.

    Attributes:
        is_reput: the follower has begun with `HELLO`.
        request: what it has asked for then; None: that has not come whole yet.
    """

    def __init__(self) -> None:
        self.rest = b""
        self.report_size = REPORT.size
        self.is_first = True
        self.is_reput = False
        self.request: RemotingCommand | None = None

    def feed(self, data: bytes) -> int | None:
        """Return the last report of which *data* brings the end; None: none is whole yet.

        Raises:
            BrokerError: the request is malformed, or the report has changed on the way.
        """
        self.rest += data
        if self.is_first:
            if len(self.rest) < REPORT.size:
                return None
            self.is_first = False
            self.is_reput = REPORT.unpack_from(self.rest)[0] == HELLO
            if self.is_reput:
                self.rest = self.rest[REPORT.size :]
                self.report_size = REPORT.size + CHECKSUM.size
        if self.is_reput and self.request is None and not self.take_request():
            return None
        whole = len(self.rest) - len(self.rest) % self.report_size
        if not whole:
            return None
        report = self.rest[whole - self.report_size : whole]
        self.rest = self.rest[whole:]
        last: int = REPORT.unpack_from(report)[0]
        if self.is_reput and report != checked_report(last):
            raise BrokerError("a report has changed on the way")
        return last

    def take_request(self) -> bool:
        """Take the request; return False while it is not whole.

        Raises:
            BrokerError: it is malformed.
        """
        begin = CHECKSUM.size + LENGTH_SIZE
        if len(self.rest) < begin:
            return False
        end = begin + int.from_bytes(self.rest[CHECKSUM.size : begin], "big")
        if end > begin + REQUEST_SIZE_MAX:
            raise BrokerError(f"a follower's request is too large: size={end} size_max={REQUEST_SIZE_MAX}")
        if len(self.rest) < end:
            return False
        if CHECKSUM.unpack_from(self.rest)[0] != crc32(self.rest[CHECKSUM.size : end]):
            raise BrokerError("a follower's request has changed on the way")
        try:
            self.request = decode_whole(self.rest[begin:end])
        except FrameError as error:
            raise BrokerError(f"a follower's request cannot be read: reason={error}") from None
        self.rest = self.rest[end:]
        return True


def hello(request: RemotingCommand) -> bytes:
    """Return what a reput begins with."""
    frame = b"".join(encode_frame(request))
    return REPORT.pack(HELLO) + CHECKSUM.pack(crc32(frame)) + frame


def checked_report(end: int) -> bytes:
    """Return a reput's report."""
    report = REPORT.pack(end)
    return report + CHECKSUM.pack(crc32(report))


def decode_whole(data: bytes) -> RemotingCommand:
    """Return the command of a frame, with its fields, which are decoded at their first use.

    Raises:
        FrameError: the bytes are not a command.
    """
    command = decode_frame(data)
    return msgspec.structs.replace(command, ext_fields=dict(command.ext_fields))
