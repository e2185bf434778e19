"""Bytes of a master's log as whole, checked records, wherever the frames cut them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from reput.errors import FollowError
from reput.replication import copied_records
from reput.replication.copied_records import CopiedRecords
from reput.store.log.log_scan import LogScan, PlainRows
from reput.store.record.layout import BLANK_MAGIC_CODE
from reput.store.writer.copied_run import CopiedRun
from written_log import WrittenLog

PlainRowsOf = Callable[[bytes | memoryview, int], PlainRows | None]

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


@pytest.fixture(params=["python", "kernel"])
def plain_rows(request, log) -> PlainRowsOf:
    """What looks at plain records: the kernel, if it is installed, or nothing."""
    log.save()
    scan = LogScan(log.store, verify=True)
    if request.param == "python":
        scan.kernel = None
    elif scan.kernel is None:
        pytest.skip("the kernel is not installed")
    return scan.rows_of_plain


def number_of_records(run: CopiedRun) -> int:
    """Return how many records these are."""
    columns = run.plain.columns if run.plain is not None else run.columns
    assert columns is not None
    return len(columns)


def copied(
    plain_rows: PlainRowsOf, data: bytes, step: int, begin: int = 0, record_size_max: int = RECORD_SIZE_MAX
) -> tuple[bytes, int]:
    """Return the bytes that came out for *data* in pieces of *step*, and how many records they are."""
    records = CopiedRecords(begin, SEGMENT, record_size_max, plain_rows)
    out, count = b"", 0
    for at in range(0, len(data), step):
        records.feed(data[at : at + step])
        for run in records.take():
            out += run.blank + bytes(run.data)
            count += number_of_records(run)
            assert begin + len(out) == records.end
    return out, count


@pytest.mark.parametrize("step", [300, 5000])
def test_bytes_that_are_received_in_place_are_the_same(log, plain_rows, monkeypatch, step):
    """A part of a record moves to other memory, and a record that is larger than that gets more."""
    monkeypatch.setattr(copied_records, "MEMORY_SIZE", 400)
    records = CopiedRecords(0, SEGMENT, RECORD_SIZE_MAX, plain_rows, lambda: records.end)
    data, out = bytes(log.data), b""
    for at in range(0, len(data), step):
        room = records.room(len(data[at : at + step]))
        room[:] = data[at : at + step]
        # As if the first bytes were only to be compared: what follows them moves within the room.
        records.feed(room[:0])
        records.feed(room)
        for run in records.take():
            out += run.blank + bytes(run.data)
    assert out == data
    assert sum(len(memory) for _, memory in records.full) < 3 * (step + 1000)


@pytest.mark.parametrize("step", [300, 5000])
def test_records_stay_as_they_are_until_the_disk_has_them(log, plain_rows, monkeypatch, step):
    """The log keeps what it has not forced where it lies; memory behind that is used again."""
    monkeypatch.setattr(copied_records, "MEMORY_SIZE", 1000)
    durable, runs, forced, memories = 0, [], b"", set()
    records = CopiedRecords(0, SEGMENT, RECORD_SIZE_MAX, plain_rows, lambda: durable)
    data = bytes(log.data)
    for at in range(0, len(data), step):
        room = records.room(len(data[at : at + step]))
        room[:] = data[at : at + step]
        records.feed(room)
        memories.add(id(records.memory.obj))
        runs += records.take()
        if len(runs) > 10:
            forced += b"".join(run.blank + bytes(run.data) for run in runs)
            durable, runs = records.end, []
    assert forced + b"".join(run.blank + bytes(run.data) for run in runs) == data
    assert len(memories) < len(data) / 1000 or step > 1000


def test_a_part_of_the_room_is_fed_from_where_it_lies(log, plain_rows):
    """A frame begins with an overlap, which is compared and not copied."""
    begin = log.offsets[3]
    records = CopiedRecords(begin, SEGMENT, RECORD_SIZE_MAX, plain_rows)
    room = records.room(SEGMENT)
    room[:] = log.data[:SEGMENT]
    records.feed(room[begin:])
    assert b"".join(bytes(run.data) for run in records.take()) == log.data[begin : records.end]
    assert records.end > log.offsets[5]


@pytest.mark.parametrize("step", [1, 7, 255, 4096, 100_000])
def test_records_come_out_whole_wherever_the_bytes_are_cut(log, plain_rows, step):
    """Every byte, blanks included, in the order of the log."""
    assert copied(plain_rows, bytes(log.data), step) == (bytes(log.data), 30)


def test_a_log_is_taken_from_the_middle_on(log, plain_rows):
    """From the begin of any record."""
    begin = log.offsets[20]
    assert copied(plain_rows, bytes(log.data[begin:]), 100, begin) == (bytes(log.data[begin:]), 10)


def test_a_record_that_has_not_come_whole_waits(log, plain_rows):
    """Nothing of it comes out, and a blank waits for the record behind it."""
    assert copied(plain_rows, bytes(log.data[:-1]), 64)[1] == 29
    first_of_second = next(offset for offset in log.offsets if offset >= SEGMENT)
    out, _ = copied(plain_rows, bytes(log.data[: first_of_second + 20]), 64)
    assert len(out) < SEGMENT


@pytest.mark.parametrize("step", [100, 100_000])
def test_a_wrong_crc_is_named_behind_the_records_before_it(log, plain_rows, step):
    """They are taken; the wrong one and all behind it are not."""
    data = bytearray(log.data)
    begin, end = log.offsets[7], log.offsets[8]
    data[begin + 90] ^= 1
    records = CopiedRecords(0, SEGMENT, RECORD_SIZE_MAX, plain_rows)
    counts: list[int] = []

    def take_all() -> None:
        for at in range(0, len(data), step):
            records.feed(data[at : at + step])
            counts.extend(number_of_records(run) for run in records.take())

    with pytest.raises(FollowError, match=rf"wrong CRC: from={begin} until={end}"):
        take_all()
    assert sum(counts) == 7
    assert records.end == begin


def test_garbage_is_named(log, plain_rows):
    """With its place, before anything of it is taken."""
    begin = log.offsets[3]
    data = bytes(log.data[:begin]) + b"\xee" * 200
    with pytest.raises(FollowError, match=rf"no record: commit_log_offset={begin} "):
        copied(plain_rows, data, len(data))


def test_a_record_of_another_place_is_named(log, plain_rows):
    """Each record knows its own offset: bytes of another log, or a hole in this one, do not fit."""
    hole = bytes(log.data[: log.offsets[3]]) + bytes(log.data[log.offsets[4] :])
    with pytest.raises(FollowError, match="its place"):
        copied(plain_rows, hole, len(hole))


def test_a_record_larger_than_the_master_takes_is_refused_by_its_size(log, plain_rows):
    """It is not waited for: what is held is bounded."""
    with pytest.raises(FollowError, match="too large: commit_log_offset=0 record_size="):
        copied(plain_rows, bytes(log.data[:64]), 64, record_size_max=100)


def test_a_blank_larger_than_any_record_is_refused_by_its_size(plain_rows):
    """It has to be held until a record follows, and could be a whole segment."""
    with pytest.raises(FollowError, match="too large: commit_log_offset=0 blank_size="):
        copied(plain_rows, struct.pack(">II", SEGMENT, BLANK_MAGIC_CODE), 8, record_size_max=SEGMENT - 1)
