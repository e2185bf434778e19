"""The bytes on the HA port: reports and frames in any pieces, and what is refused."""

from __future__ import annotations

import random
import struct
import zlib
from contextlib import suppress

import pytest

from replication.fake_master import frame
from reput.errors import BrokerError
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.replication.compression import compressor, decompressor
from reput.replication.ha_protocol import (
    FRAME_SIZE_MAX,
    HELLO,
    HaFrameReader,
    ReportReader,
    checked_report,
    hello,
    new_memory,
)


def received(reader: HaFrameReader, data: bytes, step: int) -> bytes:
    """Receive *data* where the reader says, up to *step* bytes at a time; return what came out."""
    out, at = b"", 0
    while at < len(data):
        space = reader.space()
        size = min(step, len(space), len(data) - at)
        space[:size] = data[at : at + size]
        at += size
        out += b"".join(map(bytes, reader.took(size)))
    return out


def read(reader: HaFrameReader, data: bytes, step: int) -> bytes:
    """Feed *data* in pieces of *step* bytes; return what came out."""
    return b"".join(
        bytes(piece) for at in range(0, len(data), step) for piece in reader.feed(memoryview(data[at:][:step]))
    )


@pytest.mark.parametrize("step", [1, 5, 12, 13, 10_000])
def test_frames_are_read_in_any_pieces(step):
    """Single bytes, half headers, or several frames in one read; heartbeats bring nothing."""
    data = frame(1, b"abc") + frame(4) + frame(4, b"defg") + frame(8)
    reader = HaFrameReader(1, 4096)
    assert read(reader, data, step) == b"abcdefg"
    assert reader.expected == 8
    assert reader.frame_count == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(7, b"abc"), "another place: offset=7 expected=5"),
        (frame(4), "another place: offset=4 expected=5"),
        (struct.pack(">qi", 5, -1), "impossible size: size=-1"),
        (struct.pack(">qi", 5, FRAME_SIZE_MAX + 1), "impossible size: size=4194293"),
        (struct.pack(">qi", 5, 4092), "across two segments: offset=5 size=4092"),
    ],
)
def test_a_frame_that_does_not_continue_the_log_is_refused(data, reason):
    """Wrong offsets, of heartbeats too, sizes that no master sends, and frames across segments."""
    with pytest.raises(BrokerError, match=reason):
        read(HaFrameReader(5, 4096), data, len(data))


def test_the_last_whole_report_counts():
    """Reports come in pieces, and several at once."""
    reader = ReportReader()
    first, second = struct.pack(">q", 5), struct.pack(">q", 6)
    assert reader.feed(first[:3]) is None
    assert reader.feed(first[3:]) == 5
    assert reader.feed(first + second + first[:7]) == 6
    assert reader.feed(first[7:]) == 5


def checked_frame(offset: int, body: bytes = b"", sent: bytes | None = None, checksum: int | None = None) -> bytes:
    """Return a frame as reputs send it to reputs; *sent* in place of the body, if it is compressed."""
    sent = body if sent is None else sent
    checksum = zlib.crc32(body) if checksum is None else checksum
    return struct.pack(">qiiI", offset, len(body), len(sent), checksum) + sent


@pytest.mark.parametrize("step", [1, 5, 20, 10_000])
def test_frames_between_reputs_carry_a_crc(step):
    """A body is given out as a whole, once it fits; a changed one never."""
    data = checked_frame(1, b"abc") + checked_frame(4) + checked_frame(4, b"defg")
    assert read(HaFrameReader(1, 4096, is_checked=True), data, step) == b"abcdefg"
    changed = bytearray(data)
    changed[21] ^= 1
    with pytest.raises(BrokerError, match="changed on the way: offset=1 size=3"):
        read(HaFrameReader(1, 4096, is_checked=True), bytes(changed), step)


@pytest.mark.parametrize("step", [13, 1000, 1 << 20])
@pytest.mark.parametrize("is_checked", [False, True])
def test_bodies_are_received_in_place(is_checked, step):
    """The beginning of a large body comes with its header, the rest where the body shall lie; small ones follow."""
    make, body = (checked_frame if is_checked else frame), random.Random(1).randbytes(100_000)
    data = make(1) + make(1, body) + make(100_001, b"abc") + make(100_004) + make(100_004, body[:50_000])
    rooms = []

    def room(size: int) -> memoryview:
        rooms.append(size)
        return new_memory(size)

    reader = HaFrameReader(1, 1 << 20, is_checked=is_checked, room=room)
    assert received(reader, data, step) == body + b"abc" + body[:50_000]
    assert (reader.expected, reader.frame_count) == (150_004, 3)
    assert rooms == ([100_000, 3, 50_000] if is_checked else [])


@pytest.mark.parametrize("step", [7, 10_000])
def test_a_compressed_frame_is_the_same_bytes(step):
    """Its CRC is that of the log's bytes; a size that does not fit takes no memory."""
    compress, body = compressor(), b"log " * 500
    assert compress is not None
    small = compress(body)
    data = checked_frame(0, body, small) + checked_frame(2000, b"as it is")
    assert read(HaFrameReader(0, 4096, is_checked=True, decompress=decompressor()), data, step) == body + b"as it is"
    for bad, reason in [
        (checked_frame(0, body, small[:-1]), "cannot be decompressed"),
        (checked_frame(0, body[:-1], small), "another size"),
        (checked_frame(0, body, small, checksum=1), "changed on the way: offset=0 size=2000"),
        (checked_frame(0, body, body + b"more"), "another size than it says"),
    ]:
        with pytest.raises(BrokerError, match=reason):
            read(HaFrameReader(0, 4096, is_checked=True, decompress=decompressor()), bad, step)
    with pytest.raises(BrokerError, match="another size than it says"):
        read(HaFrameReader(0, 4096, is_checked=True), data, step)


@pytest.mark.parametrize("step", [1, 13, 10_000])
def test_a_reput_says_hello_and_asks_before_its_reports(step):
    """In any pieces; RocketMQ's slaves never do, and what is no request ends the connection."""
    report = struct.pack(">q", 5)
    asking = hello(RemotingCommand(RequestCode.REPUT_FOLLOW, {"offset": "3"}))
    reader, data = ReportReader(), asking + checked_report(5)
    found = [reader.feed(data[at : at + step]) for at in range(0, len(data), step)]
    assert found == [None] * (len(found) - 1) + [5]
    assert reader.request is not None
    assert reader.request.ext_fields["offset"] == "3"
    other = ReportReader()
    assert other.feed(report) == 5
    assert not other.is_reput
    for bad in (struct.pack(">i", 70_000), struct.pack(">ii", 4, 9)):
        with pytest.raises(BrokerError, match="follower's request"):
            ReportReader().feed(struct.pack(">qI", HELLO, zlib.crc32(bad)) + bad)


def test_what_changes_on_the_way_to_the_master_is_no_report_of_a_reput():
    """Any bit of a request or a report; a report that lost a byte, or came a second time in part."""
    asking = hello(RemotingCommand(RequestCode.REPUT_FOLLOW, {"offset": "3"}))
    data = asking + checked_report(5)
    for bit in range(8 * struct.calcsize(">q"), 8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        reader = ReportReader()
        with suppress(BrokerError):
            # A larger size lets it wait for more.
            assert reader.feed(bytes(changed)) is None
        assert reader.request is None or bit // 8 >= len(asking)
    reports = checked_report(0x0102) + checked_report(0x0304)
    for shifted in (reports[1:] + b"x", reports[:3] + reports):
        reader = ReportReader()
        reader.feed(asking)
        with pytest.raises(BrokerError, match="a report has changed on the way"):
            reader.feed(shifted[: len(shifted) - len(shifted) % 12])
