"""BatchQueueReader: reads a batch consume queue that RocketMQ 5 has built, message by message.

Each message of a batch has its own queue offset, as its consumers see it, though one unit represents the whole batch:

    units      base 0, 3 messages │ base 3, 1 message │ base 4, 2 messages
    offsets    0     1     2      │ 3                 │ 4     5

reput builds no such queues, so a message that RocketMQ has not dispatched yet is missing.

Source: RocketMQ store, BatchConsumeQueue; RocketMQ client, PullAPIWrapper.processPullResult, which unwraps the batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.filter import MessageFilter
from reput.filter.string_hash import string_hash
from reput.store.disk.file_name import parse_file_name
from reput.store.queue.batch_consume_queue import BATCH_UNIT_SIZE, BatchUnit, decode_batch_unit
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    Records,
    TransferLimits,
    empty_status,
)
from reput.store.record.inner_batch import is_inner_batch, messages_of
from reput.store.record.properties import filled_properties
from reput.store.record.record import decode_record
from reput_hooks import Record

__all__ = ["BatchQueueReader"]

# Bytes that a record may have besides a body of max_message_size.
RECORD_OVERHEAD_MAX = 65536


class BatchQueueReader:
    """One batch consume queue of a store, as its files are when it is made."""

    def __init__(self, store: ReadableStore, topic: str, queue_id: int) -> None:
        self.store = store
        self.topic = topic
        self.queue_id = queue_id
        self.log_min = store.log().offset_min
        self.progress = store.progress("consume_queue")
        self.deleted_at = store.deletions().get(topic, -1)
        self.paths = queue_paths(store.directory / "batchconsumequeue" / topic / str(queue_id))
        self.file_units = self.paths[0].stat().st_size // BATCH_UNIT_SIZE if self.paths else 0
        unit_count = len(self.paths) * self.file_units
        # Units of one queue ascend in every number. Behind the last one there are zeros, or remains of a crash.
        self.end = first_from(0, unit_count, lambda number: self.usable(number) is None)
        first = first_from(0, self.end, lambda number: self.unit(number).commit_log_offset >= self.log_min)
        self.begin = first_from(first, self.end, lambda number: self.unit(number).commit_log_offset > self.deleted_at)

    def usable(self, number: int) -> BatchUnit | None:
        """Return a unit by its number among all that the files have, None behind the last one."""
        path = self.paths[number // self.file_units]
        data = self.store.files.read(path, BATCH_UNIT_SIZE, number % self.file_units * BATCH_UNIT_SIZE)
        unit = decode_batch_unit(data) if len(data) == BATCH_UNIT_SIZE else None
        return unit if unit is not None and unit.commit_log_offset + unit.record_size <= self.progress else None

    def unit(self, number: int) -> BatchUnit:
        """Return a unit before `end`.

        Raises:
            DamagedStore: the bytes are not a unit, or its record would be larger than any.
        """
        unit = self.usable(number)
        if unit is None or unit.record_size > self.store.settings.max_message_size + RECORD_OVERHEAD_MAX:
            raise DamagedStore(
                f"the batch consume queue is damaged: topic={self.topic} queue_id={self.queue_id} unit={number}",
                "reput does not build such queues: let RocketMQ rebuild it from the log.",
            )
        return unit

    def range(self) -> tuple[int, int]:
        """Return the first queue offset that can be read, and the one behind the last."""
        if self.begin == self.end:
            return 0, 0
        last = self.unit(self.end - 1)
        return self.unit(self.begin).base_queue_offset, last.base_queue_offset + last.batch_size

    def get_message(
        self,
        queue_offset: int,
        count_max: int,
        message_filter: MessageFilter | None,
        limits: TransferLimits | None,
    ) -> GetMessageResult:
        """Return up to *count_max* messages from *queue_offset* on, as `MessageReader.get_message` does.

        A filter is asked with each message, as RocketMQ's client does with those of a batch.
        """
        low, high = self.range()
        status = empty_status(queue_offset, low, high)
        if status is not None:
            following = {GetMessageStatus.OFFSET_TOO_SMALL: low, GetMessageStatus.OFFSET_OVERFLOW_BADLY: high}
            return GetMessageResult(status, following.get(status, queue_offset), low, high)
        taken: list[bytes] = []
        size = 0
        at = queue_offset
        status = GetMessageStatus.NO_MATCHED_MESSAGE
        number = self.unit_of(queue_offset)
        while number < self.end and len(taken) < count_max:
            unit = self.unit(number)
            number += 1
            if limits is not None and limits.reached(
                len(taken), size, unit.record_size, self.progress - unit.commit_log_offset
            ):
                break
            messages = self.messages(unit)
            if messages is None and not taken:
                status = GetMessageStatus.MESSAGE_WAS_REMOVING
            skipped = max(at - unit.base_queue_offset, 0)
            at = unit.base_queue_offset + skipped
            for data in (messages or [])[skipped:]:
                if len(taken) == count_max:
                    break
                at += 1
                if message_filter is None or matches(message_filter, decode_record(data)):
                    taken.append(data)
            else:
                at = unit.base_queue_offset + unit.batch_size
            size += unit.record_size
        return GetMessageResult(GetMessageStatus.FOUND if taken else status, at, low, high, Records(taken))

    def unit_of(self, queue_offset: int) -> int:
        """Return the number of the unit that covers a queue offset in `range`."""
        return first_from(self.begin, self.end, lambda at: self.unit(at).base_queue_offset > queue_offset) - 1

    def messages(self, unit: BatchUnit) -> list[bytes] | None:
        """Return the messages of a unit as records; None: they are gone, or an operator has accepted their damage.

        Raises:
            DamagedStore: the bytes are not what the unit says.
        """
        try:
            data = self.store.read_log(unit.commit_log_offset, unit.record_size)
        except OffsetOutOfRange:
            return None
        record = decode_record(data)
        if not self.store.has_whole_body(record):
            return None
        messages = messages_of(record) if is_inner_batch(record) else [data]
        place = record.topic, record.queue_id, record.queue_offset, len(messages)
        if place != (self.topic, self.queue_id, unit.base_queue_offset, unit.batch_size):
            raise DamagedStore.at(
                unit.commit_log_offset,
                unit.record_size,
                f"a record does not match its unit: topic={self.topic} queue_id={self.queue_id} "
                f"queue_offset={unit.base_queue_offset} batch_size={unit.batch_size} "
                f"commit_log_offset={unit.commit_log_offset} found={place}",
                "See `reput check STORE`; other messages can be read.",
            )
        return messages

    def offset_by_time(self, timestamp: int, boundary: BoundaryType) -> int:
        """Return the queue offset of the first message of a batch that belongs to a store time (ms), within `range`.

        LOWER: of the first batch stored then or later, one behind the last if there is none. UPPER: of the last one
        stored then or before, the first if there is none. NEAREST is LOWER.
        """
        low, high = self.range()
        if boundary is BoundaryType.UPPER:
            number = first_from(self.begin, self.end, lambda at: self.unit(at).store_timestamp > timestamp) - 1
            return self.unit(number).base_queue_offset if number >= self.begin else low
        number = first_from(self.begin, self.end, lambda at: self.unit(at).store_timestamp >= timestamp)
        return self.unit(number).base_queue_offset if number < self.end else high


def queue_paths(directory: Path) -> list[Path]:
    """Return the files of one queue, in order."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file())
    except FileNotFoundError:
        return []
    return [directory / name for name in names if parse_file_name(name) is not None]


def first_from(begin: int, end: int, holds: Callable[[int], bool]) -> int:
    """Return the first number in [begin, end) for which *holds* is true, as for all behind it; *end* if there is
    none."""
    while begin < end:
        middle = (begin + end) // 2
        if holds(middle):
            end = middle
        else:
            begin = middle + 1
    return begin


def matches(message_filter: MessageFilter, message: Record) -> bool:
    """Apply a filter to one message, first to the tags code that its queue would hold."""
    code = string_hash(message.tags or "")
    return message_filter.is_matched_by_consume_queue(code) and message_filter.is_matched_by_commit_log(
        filled_properties(message.properties) or None
    )
