"""Results of a read of messages: RocketMQ's statuses, the records, and the limits of one answer."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import overload

import msgspec

from reput.filter import TagFilter
from reput.kernel import ReadRecords
from reput.settings import Settings
from reput.store.queue.consume_queue import Unit
from reput.store.record.layout import QUEUE_PLACE_V4
from reput.store.record.record import checked_record, store_timestamp_of
from reput.store.record.sent_record import decode_sent_fields, record_maker, sent_record
from reput_hooks import Record

__all__ = [
    "BoundaryType",
    "GetMessageResult",
    "GetMessageStatus",
    "KernelRecords",
    "Place",
    "QueryMessageResult",
    "Records",
    "TransferLimits",
    "empty_status",
    "records_at",
    "with_exact_tags",
]

# A queue offset, and its unit.
Place = tuple[int, Unit]


class GetMessageStatus(enum.Enum):
    """The outcome of a get, in RocketMQ's words.

    Attributes:
        FOUND: there are messages.
        NO_MATCHED_MESSAGE: none of the messages that were looked at has such a tag; continue behind them.
        MESSAGE_WAS_REMOVING: retention has just removed the messages.
        OFFSET_FOUND_NULL: a file of the queue is missing there.
        OFFSET_OVERFLOW_BADLY: the offset lies beyond the queue's end.
        OFFSET_OVERFLOW_ONE: the offset is the queue's end; the next message gets it.
        OFFSET_TOO_SMALL: the offset lies before the queue's first message.
        NO_MESSAGE_IN_QUEUE: the queue has no message, or does not exist.
    """

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class BoundaryType(enum.Enum):
    """Which of two messages around a time is meant."""

    LOWER = "LOWER"
    UPPER = "UPPER"
    NEAREST = "NEAREST"


class Records(Sequence[Record]):
    """Records as programs get them, each decoded on access.

    Raises:
        DamagedStore: on access to a record whose bytes are invalid.
    """

    __slots__ = ("_body_ends", "_data", "_places")

    def __init__(self, data: list[bytes], places: list[Place] | None = None, body_ends: Sequence[int] = ()) -> None:
        """Hold the bytes of each record in *data*.

        Args:
            places: where each lies, if all of them were checked as a whole and have hosts of IPv4.
            body_ends: where in its bytes each one's body ends; goes with *places*.
        """
        self._data = data
        self._places = places
        self._body_ends = body_ends

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [sent_record(data) for data in self._data[index]]
        return sent_record(self._data[index])

    def __iter__(self) -> Iterator[Record]:
        if self._places is None:
            return map(sent_record, self._data)
        return map(
            checked_record,
            self._data,
            self._places,
            repeat(QUEUE_PLACE_V4.size),
            self._body_ends,
            repeat(decode_sent_fields),
        )

    @property
    def data(self) -> list[bytes]:
        """The bytes of each record, as the log has them."""
        return self._data

    def first_stored(self) -> tuple[int, int]:
        """Return size and store time (ms) of the first record, which is not decoded for it."""
        data = self._data[0]
        store_timestamp = store_timestamp_of(data)
        assert store_timestamp is not None
        return len(data), store_timestamp

    def with_queue_offsets(self) -> Iterator[tuple[int, Record]]:
        """Yield (queue offset, record), with the queue offset that the record itself holds."""
        if self._places is None:
            return ((record.queue_offset, record) for record in self)
        return zip(map(itemgetter(0), self._places), self, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def records_at(data: list[bytes], places: list[Place], body_ends: Sequence[int]) -> Records:
    """Return records of which those at *places* were checked as a whole; they are, if all of them were."""
    return Records(data, places, body_ends) if len(places) == len(data) else Records(data)


class KernelRecords(Records):
    """Records that the kernel has read and checked. It makes their objects, too.

    It makes this object as well and sets `_found`: a call of `__init__` would cost it a tenth of a get.
    """

    __slots__ = ("_found",)

    _found: ReadRecords

    def __init__(self) -> None:
        # Without the bytes of each record, which few readers ask for.
        pass

    @classmethod
    def of(cls, found: ReadRecords) -> KernelRecords:
        """Return the records of *found*."""
        records = cls()
        records._found = found
        return records

    def __getattr__(self, name: str) -> list[bytes]:
        """Find the records' bytes at their first use."""
        if name != "_data":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self._data = self._found.data()
        return self._data

    def __reduce__(self) -> tuple[type[Records], tuple[list[bytes]]]:
        """Pickle and copy the bytes of the records: the kernel's own object cannot leave the process."""
        return Records, (self._data,)

    @property
    def end(self) -> int:
        """The queue offset behind the last unit that was looked at."""
        return self._found.end

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._found.decoded(record_maker()))

    def with_queue_offsets(self) -> Iterator[tuple[int, Record]]:
        return self._found.fetched(record_maker())


class GetMessageResult(msgspec.Struct, frozen=True):
    """The messages that a get has found, as a sequence in the queue's order, with RocketMQ's status.

    Attributes:
        next_queue_offset: where to continue.
        queue_offset_min, queue_offset_max: queue offset of the first message, and the one after the last.
    """

    status: GetMessageStatus
    next_queue_offset: int
    queue_offset_min: int
    queue_offset_max: int
    records: Records = Records([])

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.records[index]


def with_exact_tags(found: GetMessageResult, wanted: TagFilter) -> GetMessageResult:
    """Return *found* without the records whose tag only has the same hash as a wanted one."""
    records = found.records
    kept = [data for record, data in zip(records, records.data, strict=True) if wanted.matches_tag(record.tags)]
    if len(kept) == len(records):
        return found
    status = GetMessageStatus.FOUND if kept else GetMessageStatus.NO_MATCHED_MESSAGE
    return msgspec.structs.replace(found, status=status, records=Records(kept))


class QueryMessageResult(msgspec.Struct, frozen=True):
    """Messages of one key in commit-log order, and how far the index goes (0, 0 when nothing was found)."""

    records: list[Record]
    index_last_update_timestamp: int
    index_last_update_offset: int


class TransferLimits(msgspec.Struct, frozen=True):
    """How much RocketMQ hands out at once, apart from what was asked for. One message always fits."""

    bytes_in_memory: int
    count_in_memory: int
    bytes_on_disk: int
    count_on_disk: int
    memory_size: int

    @classmethod
    def of(cls, settings: Settings) -> TransferLimits:
        """Return the limits that *settings* name."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(
            settings.max_transfer_bytes_on_message_in_memory,
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_disk,
            settings.max_transfer_count_on_message_in_disk,
            memory * settings.access_message_in_memory_max_ratio // 100,
        )

    def reached(self, count: int, size: int, record_size: int, behind: int) -> bool:
        """Whether a further record of *record_size* bytes, *behind* the log's end, is too much."""
        if count == 0:
            return False
        on_disk = behind > self.memory_size
        bytes_max, count_max = (
            (self.bytes_on_disk, self.count_on_disk) if on_disk else (self.bytes_in_memory, self.count_in_memory)
        )
        return size + record_size > bytes_max or count > count_max - 1


def empty_status(queue_offset: int, low: int, high: int) -> GetMessageStatus | None:
    """Return why there is nothing at *queue_offset*, None if there is something."""
    if high == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE
    if queue_offset < low:
        return GetMessageStatus.OFFSET_TOO_SMALL
    if queue_offset == high:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE
    if queue_offset > high:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY
    return None
