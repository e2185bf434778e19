"""The bytes on the HA port. Plain TCP; the follower connects, and both sides talk at once.

    follower ──▶ master   report   offset 8                       "my log ends here": first the request, then promises
    master ──▶ follower   frame    offset 8, size 4, body         log bytes as they lie in the segment
                                   size 0: a heartbeat, with the offset of the next body

Big-endian. A frame begins and ends anywhere, also inside a record, but never spans two segments.

Between reputs a follower first sends `HELLO`, a number that is no offset, and every frame has the CRC-32 of its body:

    master ──▶ follower   frame    offset 8, size 4, CRC-32 4, body

It sends it only to a master that has called itself a reput, and RocketMQ's slaves never send it.

Source: RocketMQ store, DefaultHAService, DefaultHAConnection and DefaultHAClient.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from isal.isal_zlib import crc32

from reput.errors import BrokerError

__all__ = [
    "CHECKED_FRAME_HEADER",
    "FRAME_HEADER",
    "FRAME_SIZE_MAX",
    "HELLO",
    "REPORT",
    "HaFrameReader",
    "ReportReader",
]

REPORT = Struct(">q")
FRAME_HEADER = Struct(">qi")
CHECKED_FRAME_HEADER = Struct(">qiI")
# "reput", version 1; negative, so that it is no offset of a log.
HELLO = -0x72657075_74000001
# RocketMQ's slaves have a buffer of 4 MiB, header included.
FRAME_SIZE_MAX = (4 << 20) - FRAME_HEADER.size


class HaFrameReader:
    """Takes a master's bytes apart, whatever pieces they come in.

    Attributes:
        expected: commit-log offset of the next byte of the log.
        frame_count: frames with a body.
    """

    def __init__(self, expected: int, segment_size: int, *, is_checked: bool = False) -> None:
        """*is_checked*: frames carry the CRC of their body, and a body is given out only as a whole."""
        self.expected = expected
        self.segment_size = segment_size
        self.is_checked = is_checked
        self.header_size = (CHECKED_FRAME_HEADER if is_checked else FRAME_HEADER).size
        self.header = b""
        self.crc = 0
        self.body = bytearray()
        self.body_left = 0
        self.frame_count = 0

    def feed(self, data: memoryview) -> Iterator[memoryview]:
        """Yield the log's bytes in *data*, in order.

        Raises:
            BrokerError: the master sent a frame that does not belong here.
        """
        at, end = 0, len(data)
        while at < end:
            if self.body_left:
                piece = data[at : at + self.body_left]
                at += len(piece)
                self.body_left -= len(piece)
                if not self.is_checked:
                    self.expected += len(piece)
                    yield piece
                    continue
                self.body += piece
                if not self.body_left:
                    yield memoryview(self.checked_body())
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
            offset, size, self.crc = CHECKED_FRAME_HEADER.unpack(self.header)
        else:
            offset, size = FRAME_HEADER.unpack(self.header)
        self.header = b""
        self.check(offset, size)
        self.body_left = size
        self.frame_count += size > 0

    def checked_body(self) -> bytes:
        """Return the body that has come whole.

        Raises:
            BrokerError: its CRC does not fit: it has changed on the way.
        """
        body = bytes(self.body)
        self.body.clear()
        if crc32(body) != self.crc:
            raise BrokerError(f"a frame has changed on the way: offset={self.expected} size={len(body)}")
        self.expected += len(body)
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
    """

    def __init__(self) -> None:
        self.rest = b""
        self.is_first = True
        self.is_reput = False

    def feed(self, data: bytes) -> int | None:
        """Return the last report of which *data* brings the end; None: none is whole yet."""
        joined = self.rest + data
        whole = len(joined) - len(joined) % REPORT.size
        self.rest = joined[whole:]
        if not whole:
            return None
        if self.is_first:
            self.is_first = False
            self.is_reput = REPORT.unpack_from(joined)[0] == HELLO
        last: int = REPORT.unpack_from(joined, whole - REPORT.size)[0]
        return None if last == HELLO and self.is_reput else last
