"""A walk accounts for every byte of a log: records, blanks, damage, stale bytes, a torn tail."""

from __future__ import annotations

from itertools import pairwise

import pytest

from golden_sets import CLEAN_SETS
from reput.store.log.segments import Segments
from reput.store.recovery.log_walk import LogWalk
from small_store import SEGMENT_SIZE, extents, log_bytes, overwrite
from written_log import START_MS, WrittenLog


@pytest.fixture
def log(tmp_path):
    """A log of a dozen records in three segments, not yet saved."""
    written = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    for number in range(12):
        written.append(bytes([65 + number]) * 900, queue_id=number % 2)
    return written


def size_of(log, number):
    """Return the record size of a record of *log*."""
    return int.from_bytes(log.data[log.offsets[number] : log.offsets[number] + 4], "big")


def test_a_whole_log_is_records_and_blanks(log):
    """Every segment but the last ends with a blank."""
    log.save()
    first_blank = log.offsets[3] + size_of(log, 3)
    second_blank = log.offsets[7] + size_of(log, 7)
    assert extents(log.store) == [
        f"records 0..{first_blank} count=4",
        f"blank {first_blank}..4096",
        f"records 4096..{second_blank} count=4",
        f"blank {second_blank}..8192",
        f"records 8192..{log.end} count=4",
    ]


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_no_byte_of_a_real_log_is_passed_over(golden_read_only, golden_about, name):
    """Extents follow each other without a gap from the log's first byte to its end."""
    walk = LogWalk(Segments(golden_read_only(name) / "store" / "commitlog"))
    found = list(walk.walk())
    assert all(before.end == extent.begin for before, extent in pairwise(found))
    assert {extent.kind for extent in found} <= {"records", "blank"}
    assert walk.log_end == found[-1].end == golden_about(name)["maxOffsetOfRealStore"]
    assert walk.record_count == golden_about(name)["listing"]["records"]


@pytest.mark.parametrize(
    ("at", "what"),
    [(0, "size"), (4, "magic"), (8, "body CRC"), (28, "own offset"), (39, "sys flag"), (84, "body size"), (90, "body")],
)
def test_a_flipped_bit_in_the_middle_is_damage(log, at, what):
    """The range is that of one record; the log continues after it."""
    log.save()
    begin, end = log.offsets[5], log.offsets[6]
    overwrite(log.store, begin + at, bytes([log.data[begin + at] ^ 0x10]))
    assert f"damage {begin}..{end}" in extents(log.store), what
    assert extents(log.store)[-1].startswith("records 8192..")


def test_a_flipped_bit_in_the_last_record_is_a_tail(log):
    """No later record shows whether the log continued."""
    log.save()
    overwrite(log.store, log.offsets[-1] + 200, b"?")
    assert extents(log.store)[-1] == f"tail {log.offsets[-1]}..{log.end}"


def test_a_hole_of_zeros_in_the_middle_is_damage(log):
    """Records after it continue their queues, so the bytes were lost."""
    log.save()
    overwrite(log.store, log.offsets[1], bytes(log.offsets[3] - log.offsets[1]))
    assert extents(log.store)[:3] == [
        f"records 0..{log.offsets[1]} count=1",
        f"damage {log.offsets[1]}..{log.offsets[3]}",
        f"records {log.offsets[3]}..{log.offsets[3] + size_of(log, 3)} count=1",
    ]


def test_a_missing_segment_is_damage(log):
    """It is named from its first to its last byte."""
    log.save()
    (log.store / "commitlog" / f"{4096:020d}").unlink()
    assert "damage 4096..8192" in extents(log.store)


@pytest.mark.parametrize("left", [0, 1, 500, 1800])
def test_a_segment_that_was_cut_short_is_damage(log, left):
    """Records that are still whole are read, and so are the later segments."""
    log.save()
    path = log.store / "commitlog" / f"{4096:020d}"
    path.write_bytes(path.read_bytes()[:left])
    whole = [
        offset for number, offset in enumerate(log.offsets[4:8], 4) if offset + size_of(log, number) <= 4096 + left
    ]
    found = extents(log.store)
    damaged_from = whole[-1] + size_of(log, 4 + len(whole) - 1) if whole else 4096
    assert f"damage {damaged_from}..8192" in found
    assert found[-1] == f"records 8192..{log.end} count=4"


def test_a_blank_that_does_not_fill_its_segment_is_damage(log):
    """Its size must lead to the next segment."""
    log.save()
    blank = log.offsets[3] + size_of(log, 3)
    overwrite(log.store, blank, (4096 - blank - 1).to_bytes(4, "big"))
    assert f"damage {blank}..4096" in extents(log.store)


def test_old_records_behind_the_end_are_stale(tmp_path):
    """RocketMQ cuts without zeroing. The later bytes are older and repeat queue offsets, so the log has ended."""
    old = WrittenLog(tmp_path / "old", SEGMENT_SIZE)
    for _ in range(8):
        old.append(b"o" * 500)
    new = WrittenLog(tmp_path / "new", SEGMENT_SIZE)
    for _ in range(3):
        new.append(b"o" * 500)
    # After the cut following the third record, the log was continued with records of another size.
    for number in range(2):
        new.append(b"n" * 600, store_timestamp=START_MS + 1000 + number)
    new.data += old.data[len(new.data) :]
    new.save()
    end = new.offsets[-1] + size_of(new, -1 % len(new.offsets))
    assert extents(new.store) == [f"records 0..{end} count=5", f"stale {end}..{len(old.data)}"]


def test_a_log_goes_on_though_the_clock_went_back_a_little(log):
    """Only the time of a record after an unreadable range is checked; other times may be arbitrary."""
    log.append(b"late", store_timestamp=START_MS - 5000)
    log.append(b"later", store_timestamp=START_MS + 5000)
    log.save()
    assert all(line.startswith(("records", "blank")) for line in extents(log.store))
    assert sum(int(line.split("count=")[1]) for line in extents(log.store) if "count" in line) == 14


@pytest.mark.parametrize("torn", range(1, 40))
def test_a_record_torn_in_its_texts_is_the_tail_of_an_unclean_log(tmp_path, torn):
    """Sizes and body CRC of such a record are right, so RocketMQ keeps it, with zeros inside."""
    for properties in (b"TAGS\x01tag\x02KEYS\x01key\x02", b""):
        log = WrittenLog(tmp_path / f"{len(properties)}", SEGMENT_SIZE)
        log.append(b"first")
        log.append(b"last", properties=properties)
        begin = log.offsets[-1]
        if torn > log.end - begin - 88 - len(b"last"):
            continue
        before = bytes(log.data)
        log.data[-torn:] = bytes(torn)
        log.save()
        whole = bytes(log.data) == before
        expected = f"records 0..{log.end} count=2" if whole else f"records 0..{begin} count=1"
        assert extents(log.store, unclean=True)[0] == expected, (properties, torn)


def test_a_record_with_a_zero_byte_that_others_follow_is_kept(log):
    """Only the last record can have been torn."""
    log.append(b"odd", properties=b"a\x01\x00\x02")
    log.append(b"last")
    log.save()
    assert extents(log.store, unclean=True)[-1] == f"records 12288..{log.end} count=2"


def test_a_walk_can_begin_where_a_record_begins(log):
    """The state of the log before it is passed in."""
    log.save()
    assert extents(log.store, begin=log.offsets[9]) == [f"records {log.offsets[9]}..{log.end} count=3"]
    assert extents(log.store, begin=log.end) == []


def test_a_walk_learns_the_next_queue_offsets(tmp_path):
    """Prepared and rolled-back records have none; multi-dispatch and inner batches have theirs."""
    log = WrittenLog(tmp_path / "store", 16 << 10)
    log.append(queue_offset=4)
    log.append(topic=b"half", sys_flag=4, queue_offset=0)
    log.append(topic=b"half", sys_flag=12, queue_offset=0)
    log.append(topic=b"done", sys_flag=8, queue_offset=7)
    log.append(
        topic=b"parent",
        queue_id=3,
        queue_offset=1,
        properties=b"INNER_MULTI_DISPATCH\x01%LMQ%a,other\x02INNER_MULTI_QUEUE_OFFSET\x015,6\x02",
    )
    log.append(topic=b"batch", sys_flag=0xC0, queue_offset=10, properties=b"INNER_NUM\x013\x02INNER_BASE\x0110\x02")
    log.append(topic=b"odd", sys_flag=0xC0, queue_offset=1, properties=b"INNER_NUM\x01" + b"9" * 5000 + b"\x02")
    walk = LogWalk(Segments(log.save() / "commitlog"))
    list(walk.walk())
    assert walk.queue_offsets.queues == {
        "orders": {0: 5},
        "done": {0: 8},
        "parent": {3: 2},
        "%LMQ%a": {0: 6},
        "other": {3: 7},
        "batch": {0: 13},
        "odd": {0: 2},
    }
    assert walk.store_timestamp == START_MS + 6


def test_records_larger_than_a_read_are_taken_whole(tmp_path):
    """Reads grow until the record fits."""
    log = WrittenLog(tmp_path / "store", 16 << 20)
    log.append(b"a" * (5 << 20))
    log.append(b"b")
    log.append(b"c" * (6 << 20))
    log.save()
    assert extents(log.store) == [f"records 0..{log.end} count=3"]


def test_walking_changes_nothing(log):
    """Not even what it considers damage."""
    log.save()
    overwrite(log.store, log.offsets[2], bytes(100))
    before = log_bytes(log.store)
    extents(log.store)
    assert log_bytes(log.store) == before
