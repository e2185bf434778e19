"""Bytes of a master's log as whole, checked records, wherever the frames cut them."""

from __future__ import annotations

import pytest

from reput.errors import FollowError
from reput.replication.copied_records import CopiedRecords
from written_log import WrittenLog

SEGMENT = 4096
RECORD_SIZE_MAX = 1 << 20


@pytest.fixture
def log(tmp_path) -> WrittenLog:
    """Thirty records of several sizes over three segments, each of the first two ended by a blank."""
    written = WrittenLog(tmp_path, SEGMENT)
    for number in range(30):
        written.append(b"b" * (number * 37 % 500))
    assert written.end > 2 * SEGMENT
    return written


def copied(data: bytes, step: int, begin: int = 0, record_size_max: int = RECORD_SIZE_MAX) -> tuple[bytes, int]:
    """Return the bytes that came out for *data* in pieces of *step*, and how many records they are."""
    records = CopiedRecords(begin, SEGMENT, record_size_max)
    out, count = b"", 0
    for at in range(0, len(data), step):
        records.feed(data[at : at + step])
        for piece in records.take():
            out += piece.blank + bytes(piece.columns.data)
            count += len(piece.columns)
            assert begin + len(out) == records.end
    return out, count


@pytest.mark.parametrize("step", [1, 7, 255, 4096, 100_000])
def test_records_come_out_whole_wherever_the_bytes_are_cut(log, step):
    """Every byte, blanks included, in the order of the log."""
    assert copied(bytes(log.data), step) == (bytes(log.data), 30)


def test_a_log_is_taken_from_the_middle_on(log):
    """From the begin of any record."""
    begin = log.offsets[20]
    assert copied(bytes(log.data[begin:]), 100, begin) == (bytes(log.data[begin:]), 10)


def test_a_record_that_has_not_come_whole_waits(log):
    """Nothing of it comes out, and a blank waits for the record behind it."""
    assert copied(bytes(log.data[:-1]), 64)[1] == 29
    first_of_second = next(offset for offset in log.offsets if offset >= SEGMENT)
    out, _ = copied(bytes(log.data[: first_of_second + 20]), 64)
    assert len(out) < SEGMENT


@pytest.mark.parametrize("step", [100, 100_000])
def test_a_wrong_crc_is_named_behind_the_records_before_it(log, step):
    """They are taken; the wrong one and all behind it are not."""
    data = bytearray(log.data)
    begin, end = log.offsets[7], log.offsets[8]
    data[begin + 90] ^= 1
    records = CopiedRecords(0, SEGMENT, RECORD_SIZE_MAX)
    counts: list[int] = []

    def take_all() -> None:
        for at in range(0, len(data), step):
            records.feed(data[at : at + step])
            counts.extend(len(piece.columns) for piece in records.take())

    with pytest.raises(FollowError, match=rf"wrong CRC: from={begin} until={end}"):
        take_all()
    assert sum(counts) == 7
    assert records.end == begin


def test_garbage_is_named(log):
    """With its place, before anything of it is taken."""
    begin = log.offsets[3]
    data = bytes(log.data[:begin]) + b"\xee" * 200
    with pytest.raises(FollowError, match=rf"no record: commit_log_offset={begin} "):
        copied(data, len(data))


def test_a_record_of_another_place_is_named(log):
    """Each record knows its own offset: bytes of another log, or a hole in this one, do not fit."""
    hole = bytes(log.data[: log.offsets[3]]) + bytes(log.data[log.offsets[4] :])
    with pytest.raises(FollowError, match="its place"):
        copied(hole, len(hole))


def test_a_record_larger_than_the_master_takes_is_refused_by_its_size(log):
    """It is not waited for: what is held is bounded."""
    with pytest.raises(FollowError, match="too large: commit_log_offset=0 record_size="):
        copied(bytes(log.data[:64]), 64, record_size_max=100)
