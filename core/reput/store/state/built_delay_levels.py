"""shown_delay_levels: the table of delay levels that the delay queues of a store were built with.

A unit of ``SCHEDULE_TOPIC_XXXX`` has the delivery time of its message in place of a tags code. That time minus the
record's store time is the delay of its level. A level without waiting messages shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.errors import StoreError
from reput.store.disk.file_name import parse_file_name
from reput.store.log.segments import Segments
from reput.store.queue.consume_queue import UNIT, UNIT_SIZE
from reput.store.queue.consume_queue_builder import names_in, queues_of_topic
from reput.store.record.delay_level import DEFAULT_LEVELS, SCHEDULE_TOPIC, DelayLevels
from reput.store.record.record import decode_record

__all__ = ["shown_delay_levels"]

SECOND_MS = 1_000
# How many units of one queue are searched for one whose record is in the log.
UNITS_MAX = 1_000
RECORD_SIZE_MAX = 16 << 20
# Range of tags codes that are hashes, or addresses of ext units.
HASH_MAX = 2**31 - 1


def shown_delay_levels(store_directory: Path) -> str | None:
    """Return RocketMQ's table with the delays that a store shows, as its setting says it; None if it shows no other."""
    levels = DEFAULT_LEVELS.split()
    known = DelayLevels().delay_ms
    for queue_id, directory in sorted(queues_of_topic(store_directory / "consumequeue" / SCHEDULE_TOPIC)):
        if not 0 <= queue_id < len(levels):
            continue
        delay_ms = shown_delay(store_directory, directory)
        if delay_ms is not None and delay_ms != known[queue_id]:
            levels[queue_id] = f"{delay_ms // SECOND_MS}s"
    text = " ".join(levels)
    return None if text == DEFAULT_LEVELS else text


def shown_delay(store_directory: Path, queue_directory: Path) -> int | None:
    """Return the delay in ms of the level with this queue, None if no unit shows it."""
    try:
        segments = Segments(store_directory / "commitlog")
        for offset, size, due in units_of(queue_directory):
            if segments.offset_min <= offset < segments.offset_end and 0 < size <= RECORD_SIZE_MAX and due > HASH_MAX:
                delay_ms = due - decode_record(segments.read(offset, size)).store_timestamp
                return delay_ms if delay_ms >= 0 and delay_ms % SECOND_MS == 0 else None
    except (StoreError, OSError):
        # Damage, or a removed file: a check reports it.
        return None
    return None


def units_of(queue_directory: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the first units of a queue's last file."""
    names = sorted(name for name in names_in(queue_directory) if parse_file_name(name) is not None)
    if names:
        with (queue_directory / names[-1]).open("rb") as file:
            data = file.read(UNITS_MAX * UNIT_SIZE)
        yield from UNIT.iter_unpack(data[: len(data) - len(data) % UNIT_SIZE])
