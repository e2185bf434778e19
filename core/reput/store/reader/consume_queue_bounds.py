"""ConsumeQueueBounds: where a consume queue begins and ends, as far as the log confirms it.

A unit is within the bounds if its view's progress has passed it and the log has its record: the same topic, queue id
and queue offset. Behind the last such unit, this module tells damaged units from the end of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.queue.consume_queue import NO_UNIT, UNIT_SIZE, ConsumeQueue, Unit, counts, holds_unit_of, is_garbage
from reput.store.reader.readable_store import ReadableStore
from reput.store.record.layout import (
    BODY_AT,
    BODY_SIZE,
    HOST_FLAGS_MASK,
    HOST_FLAGS_SHIFT,
    MESSAGE_MAGIC_CODE_V2,
    MESSAGE_MAGIC_CODES,
    PROPERTIES_SIZE,
    QUEUE_PLACE,
    SIZE,
)
from reput.store.record.record import decode_record

__all__ = ["PART_READ_SIZE", "RUN_SIZE_MAX", "ConsumeQueueBounds"]

RUN_SIZE_MAX = 1 << 20
# If a record is larger, and nothing else is needed, only head and topic are read.
PART_READ_SIZE = 1 << 16


class ConsumeQueueBounds:
    """The units of one consume queue, and whether the log agrees with them."""

    def __init__(self, store: ReadableStore, topic: str, queue_id: int, file_size: int) -> None:
        self.store = store
        self.topic = topic
        self.queue_id = queue_id
        directory = store.directory / "consumequeue" / topic / str(queue_id)
        self.units = ConsumeQueue(directory, file_size, store.files)
        # Commit-log offset of the first record that is still there, as of the last `range`.
        self.log_min = 0
        # Where the topic was deleted last. The view may not have reached that offset yet; then its units belong to the
        # deleted topic, though queue offsets are the same.
        self.deleted_at = -1
        # Queue offsets of pre-blank units of which the log was found to have no message.
        self.lost = range(0)
        self.topic_fields, self.unpack_tail = topic_layout(topic)

    def forget(self) -> None:
        """Discard everything read so far, also in the middle of a read."""
        self.units.forget()
        self.units.file_size, _ = self.store.queue_file_sizes()

    def range(self) -> tuple[int, int]:
        """Return the first queue offset that can be read, and the one behind the last."""
        self.store.agreed = None
        self.log_min = self.store.log().offset_min
        progress = self.store.progress("consume_queue")
        deleted_at = self.store.deletions().get(self.topic, -1)
        if deleted_at != self.deleted_at:
            self.deleted_at = deleted_at
            self.units.forget()
        if progress <= deleted_at:
            return 0, 0
        end = self.units.end(progress, self.agrees, self.goes_on)
        return self.units.min(self.log_min, end), end

    def goes_on(self, end: int, progress: int) -> int:
        """Return where the queue ends that seems to end at *end*: there, or behind units that are damaged."""
        store, expected = self.store, 0
        if store.queue_end_at is not None:
            expected = store.queue_end_at(self.topic, self.queue_id, progress)
            if expected <= end:
                return end
        else:
            known = store.proof.kept_end(self.topic, self.queue_id, progress)
            behind = self.units.unit(end) or NO_UNIT
            # A builder may just have come further than its progress says.
            is_odd = behind != NO_UNIT and (store.at_rest or counts(behind, progress) or is_garbage(behind))
            # For a topic deleted since, the view may not have reached the deletion yet.
            is_odd &= not (counts(behind, progress) and behind[0] < self.deleted_at)
            is_short = known is not None and known.end > end * UNIT_SIZE and known.last >= self.deleted_at
            if not is_odd and not is_short:
                return end
        begin = max(self.log_min, self.deleted_at)
        last = self.units.unit(end - 1) if end else None
        if last is not None and counts(last, progress) and self.agrees(end - 1, last):
            begin = max(begin, last[0] + last[1])
        end, broken_at = store.proof.end(self.topic, self.queue_id, end, begin, progress, store.at_rest)
        # A unit that the writer knows of, or that leads into an unreadable range, is that of a damaged message.
        while (further := self.units.unit(end)) is not None and counts(further, progress):
            if end >= expected and (broken_at is None or further[0] < broken_at):
                break
            broken_at = None if broken_at is None else further[0] + further[1]
            end += 1
        return end

    def garbled(self, queue_offset: int, what: str) -> DamagedStore:
        """Return the error for a queue that continues with bytes that are no unit."""
        return DamagedStore(
            f"the consume queue is damaged: topic={self.topic} queue_id={self.queue_id} queue_offset={queue_offset}: "
            f"{what}",
            "See `reput check STORE`; `reput rebuild STORE consume_queue` rebuilds it from the log.",
        )

    def agrees(self, queue_offset: int, unit: Unit) -> bool:
        """Tell whether the log has the record of a unit, or had it and has removed it."""
        if unit[0] < self.deleted_at:
            return False
        if unit[0] < self.log_min:
            return True
        try:
            if unit[1] > PART_READ_SIZE and self.begins_as_record(queue_offset, unit):
                return True
            data = self.record_bytes(unit[0], unit[1])
            if not self.is_record(data, 0, queue_offset, unit):
                return False
            self.store.agreed = (self, queue_offset, unit, data)
            return True
        except OffsetOutOfRange:
            return False

    def begins_as_record(self, queue_offset: int, unit: Unit) -> bool:
        """Tell whether a large record is that of a unit, from its head and its topic, without reading its body.

        This does not recognize a record that is in this queue by multi-dispatch alone.
        """
        offset, size, _ = unit
        head = self.store.read_log(offset, BODY_AT[-1])
        own_size, magic_code, queue_id, own_queue_offset, commit_log_offset, sys_flag = QUEUE_PLACE.unpack_from(head)
        if (own_size, queue_id, own_queue_offset, commit_log_offset) != (size, self.queue_id, queue_offset, offset):
            return False
        body_at = BODY_AT[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
        (body_size,) = BODY_SIZE.unpack_from(head, body_at - BODY_SIZE.size)
        topic_field = self.topic_fields[magic_code == MESSAGE_MAGIC_CODE_V2]
        if magic_code not in MESSAGE_MAGIC_CODES or not 0 <= body_size <= size - body_at - len(topic_field):
            return False
        return self.store.read_log(offset + body_at + body_size, len(topic_field)) == topic_field

    def record_bytes(self, commit_log_offset: int, size: int) -> bytes:
        """Return the bytes that a unit points at. An unusual size must agree with the record's own size word.

        Raises:
            OffsetOutOfRange: the log does not hold all of them, or the record there has another size.
        """
        if size > RUN_SIZE_MAX:
            own_size = int.from_bytes(self.store.read_log(commit_log_offset, SIZE.size), "big")
            if own_size != size:
                raise OffsetOutOfRange(
                    f"the record has a different size: commit_log_offset={commit_log_offset} size={size} "
                    f"found={own_size}"
                )
        return self.store.read_log(commit_log_offset, size)

    def is_record(self, data: bytes, at: int, queue_offset: int, unit: Unit) -> bool:
        """Tell whether ``data[at:]`` begins with the record of a unit."""
        try:
            size, magic_code, queue_id, own_queue_offset, commit_log_offset, sys_flag = QUEUE_PLACE.unpack_from(
                data, at
            )
            if commit_log_offset != unit[0] or magic_code not in MESSAGE_MAGIC_CODES or size != unit[1]:
                return False
            if queue_id == self.queue_id and own_queue_offset == queue_offset:
                body_at = at + BODY_AT[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
                (body_size,) = BODY_SIZE.unpack_from(data, body_at - BODY_SIZE.size)
                topic_field = self.topic_fields[magic_code == MESSAGE_MAGIC_CODE_V2]
                topic_end = body_at + body_size + len(topic_field)
                if body_size >= 0 and data.startswith(topic_field, body_at + body_size):
                    (properties_size,) = PROPERTIES_SIZE.unpack_from(data, topic_end)
                    if topic_end + PROPERTIES_SIZE.size + properties_size == at + size:
                        return True
            record = decode_record(data[at : at + size])
        except (StructError, DamagedStore):
            return False
        return holds_unit_of(record, self.topic, self.queue_id, queue_offset)


@lru_cache(1024)
def topic_layout(topic: str) -> tuple[tuple[bytes, bytes], Callable[..., tuple[Any, ...]]]:
    """Return *topic* as encoded in a V1 and in a V2 record, and a function that unpacks it behind the body of a V1
    record.

    The topic's size precedes it: one byte in V1, two in V2. The size of the properties follows it. The queues of a
    topic share the result, so that reads of many queues find it in the processor's caches.
    """
    name = topic.encode("utf-8", "replace")
    fields = bytes([len(name) & 0xFF]) + name, (len(name) & 0xFFFF).to_bytes(2, "big") + name
    return fields, Struct(f">{len(fields[0])}s{PROPERTIES_SIZE.format[1:]}").unpack_from
