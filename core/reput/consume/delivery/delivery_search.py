"""Delivery search: find in the log what the schedule service had delivered before its process was killed.

    log   … D1 … D2 … │ saved here│ … D3 … x … D4 … end
    queue of the level   1  2 │ 3  4  5  6          → 5 is next

A delivered message is a copy of the scheduled one under its real topic, and a level delivers in queue order. So the
first copy after the saved position belongs to the first message not delivered by then, and so on. Records that only
look like deliveries (x: a program put the properties of a delivered message again) match no expected message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from reput.consume.delivery.carried_message import carried_properties
from reput.errors import OffsetOutOfRange
from reput.store.log.log_scan import LogScan
from reput.store.log.segments import Segments
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.layout import STORE_TIMESTAMP_END_MAX
from reput.store.record.record import decode_record, store_timestamp_of
from reput.store.recovery.damage_list import accepted_damage
from reput_hooks import Record

__all__ = ["delivered_copies", "find_delivered", "is_copy_of", "segment_before"]

DELAY_NAME = b"DELAY\x01"


def delivered_copies(store_directory: Path, begin: int, end: int) -> Iterator[tuple[int, Record]]:
    """Yield delay level and record of everything that looks like a delivered message in log [begin, end), in order.

    Raises:
        DamagedStore: there is no record at an offset where one must begin.
    """
    scan = LogScan(store_directory, passed_over=accepted_damage(store_directory))
    try:
        for columns in scan.pieces(begin, end):
            positions = columns.position.tolist()
            data = bytes(columns.data)
            # Hardly any record has a delay, so search the bytes instead of decoding every record.
            found = data.find(DELAY_NAME, positions[0]) if positions else -1
            while found >= 0:
                index = bisect_right(positions, found) - 1
                record = decode_record(data, positions[index])
                level = delivered_level(record)
                if level is not None:
                    yield level, record
                if index + 1 == len(positions):
                    break
                found = data.find(DELAY_NAME, positions[index + 1])
    finally:
        scan.close()


def delivered_level(record: Record) -> int | None:
    """Return the delay level of a record if its properties are those of a delivered message; else None."""
    properties = record.properties
    if record.topic == SCHEDULE_TOPIC or properties.get("REAL_TOPIC") != record.topic:
        return None
    if properties.get("REAL_QID") != str(record.queue_id):
        return None
    try:
        level = int(properties.get("DELAY", ""))
    except ValueError:
        return None
    return level if level > 0 else None


def is_copy_of(record: Record, scheduled: Record) -> bool:
    """Return whether *record* is the delivery of *scheduled*: every field that a delivery keeps is equal."""
    return (
        record.born_timestamp == scheduled.born_timestamp
        and record.body_crc == scheduled.body_crc
        and record.reconsume_times == scheduled.reconsume_times
        and record.flag == scheduled.flag
        and record.sys_flag == scheduled.sys_flag
        and record.born_host == scheduled.born_host
        and record.body == scheduled.body
        and carried_properties(record) == carried_properties(scheduled)
    )


def find_delivered(
    copies: Iterator[tuple[int, Record]],
    queue_offsets: dict[int, int],
    scheduled_from: Callable[[int, int], Iterator[tuple[int, Record]]],
) -> dict[int, int]:
    """Return the next queue offset to deliver by level, after all of *copies*.

    Args:
        queue_offsets: the saved ones; a level without one begins at 0.
        scheduled_from: yields, for a level and a queue offset, the deliverable messages from there on.
    """
    found = dict(queue_offsets)
    waiting: dict[int, Iterator[tuple[int, Record]]] = {}
    heads: dict[int, tuple[int, Record] | None] = {}
    for level, record in copies:
        if level not in waiting:
            waiting[level] = scheduled_from(level, found.get(level, 0))
            heads[level] = next(waiting[level], None)
        head = heads[level]
        if head is not None and is_copy_of(record, head[1]):
            found[level] = head[0] + 1
            heads[level] = next(waiting[level], None)
    return found


def segment_before(store_directory: Path, store_timestamp: int) -> int:
    """Return the commit-log offset of a segment before which no record was stored at *store_timestamp* (ms) or later.

    Store times never go back within a log, so one look at the first record of each segment is enough.
    """
    segments = Segments(store_directory / "commitlog")
    begin = segments.offset_min
    for segment in segments.list:
        try:
            first = store_timestamp_of(segments.read(segment.begin, min(segment.size, STORE_TIMESTAMP_END_MAX)))
        except OffsetOutOfRange:
            break
        # A preallocated segment is zero, and a segment may begin with its blank.
        if first is None:
            continue
        if first >= store_timestamp:
            break
        begin = segment.begin
    return begin
