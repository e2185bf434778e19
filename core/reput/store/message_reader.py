"""MessageReader: messages by queue position and by key, with RocketMQ's answers to every case.

It reads beside a live writer, in the writer's process or another, and on a store that nobody has open. A unit of a
queue or an entry of the index is believed only below its view's progress, and only if the record there says the same.

Source: RocketMQ store, DefaultMessageStore.getMessage and queryMessage.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import overload

import msgspec

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.filter import parse_tags
from reput.settings import Settings
from reput.store.consume_queue import ConsumeQueue, Unit
from reput.store.consume_queue_ext import ConsumeQueueExt, is_address
from reput.store.index_file import Index
from reput.store.open_files import OpenFiles
from reput.store.record import decode_record
from reput.store.segments import Segments
from reput_hooks import Record

__all__ = ["GetMessageResult", "GetMessageStatus", "MessageReader", "QueryMessageResult", "TransferLimits"]

TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF
RUN_SIZE_MAX = 1 << 20
UNIT_COUNT_MAX = 800


class GetMessageStatus(enum.Enum):
    """What became of a get, in RocketMQ's words."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetMessageResult(msgspec.Struct, frozen=True):
    """Messages of one queue, in its order: a sequence of them, with what else RocketMQ says.

    Attributes:
        next_queue_offset: where to go on.
        queue_offset_min, queue_offset_max: the queue's first unit, and the one behind its last.
    """

    status: GetMessageStatus
    next_queue_offset: int
    queue_offset_min: int
    queue_offset_max: int
    records: list[Record] = []

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


class MessageReader:
    """Reads one store. Any number of threads, as long as each uses a queue by itself or through one lock."""

    def __init__(self, store_directory: Path, settings: Settings, progress: Callable[[str], int]) -> None:
        """*progress* gives the commit-log offset up to which the view of that name is readable now."""
        self.directory = store_directory
        self.settings = settings
        self.progress = progress
        self.files = OpenFiles()
        self.segments: Segments | None = None
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.index = Index(store_directory / "index", settings.max_hash_slot_num, self.files)

    def close(self) -> None:
        """Close the files."""
        self.files.close()

    def forget(self) -> None:
        """Take nothing for granted that was read so far: a view was rebuilt or truncated."""
        self.files.forget()
        self.queues.clear()

    def log(self) -> Segments:
        """Return the segments, listed when they are needed first."""
        if self.segments is None:
            self.segments = Segments(self.directory / "commitlog")
        return self.segments

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return one queue, whether it exists or not."""
        found = self.queues.get((topic, queue_id))
        if found is None:
            size = -(-self.settings.mapped_file_size_consume_queue // 20) * 20
            directory = self.directory / "consumequeue" / topic / str(queue_id)
            found = self.queues[topic, queue_id] = ConsumeQueue(directory, size, self.files)
        return found

    def topics(self) -> dict[str, list[int]]:
        """Return the queue ids of every topic that has a consume queue."""
        root = self.directory / "consumequeue"
        if not root.is_dir():
            return {}
        return {
            topic.name: sorted(int(queue.name) for queue in topic.iterdir() if queue.name.isdigit())
            for topic in sorted(root.iterdir())
            if topic.is_dir()
        }

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset that can be read, and the one behind the last."""
        queue = self.queue(topic, queue_id)
        end = queue.end(self.progress("consume_queue"))
        log_min = self.log().offset_min
        while end > queue.verified_end:
            (unit,) = queue.units(end - 1, 1)
            # A unit that a RocketMQ left behind its queue's end points at some other record.
            if unit[0] < log_min or self.record_of(topic, queue_id, end - 1, unit) is not None:
                break
            end -= 1
        queue.known_end = queue.verified_end = end
        return queue.min(log_min, end), end

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int = 32,
        *,
        tags: str | None = None,
        limits: TransferLimits | None = None,
    ) -> GetMessageResult:
        """Return up to *count_max* messages from *queue_offset* on.

        Args:
            tags: ``a || b``; a message counts if its tag's hash is one of theirs, as in RocketMQ's store.
            limits: None hands out what was asked for.

        Raises:
            DamagedStore: a record is not what its unit says.
            FilterSyntaxError: *tags* does not parse.
        """
        low, high = self.queue_range(topic, queue_id)
        status = empty_status(queue_offset, low, high)
        if status is not None:
            following = {GetMessageStatus.OFFSET_TOO_SMALL: low, GetMessageStatus.OFFSET_OVERFLOW_BADLY: high}
            where = 0 if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE else following.get(status, queue_offset)
            return GetMessageResult(status, where, low, high)
        tag_filter = parse_tags(tags) if tags is not None else None
        queue = self.queue(topic, queue_id)
        log_end = self.progress("consume_queue")
        chosen: list[Unit] = []
        size = 0
        at = queue_offset
        status = GetMessageStatus.NO_MATCHED_MESSAGE
        scanned = 0
        scan_max = max(UNIT_COUNT_MAX, count_max)
        while at < high and scanned < scan_max and len(chosen) < count_max:
            wanted = scan_max - scanned if tag_filter is not None else count_max - len(chosen)
            units = queue.units(at, min(high - at, wanted))
            if not units:
                if not chosen:
                    status = GetMessageStatus.OFFSET_FOUND_NULL
                    file_units = queue.file_size // 20
                    at += file_units - at % file_units
                break
            full = False
            for unit in units:
                offset, record_size, tags_code = unit
                if len(chosen) >= count_max or (
                    limits is not None and limits.reached(len(chosen), size, record_size, log_end - offset)
                ):
                    full = True
                    break
                at += 1
                scanned += 1
                if tag_filter is not None and not tag_filter.matches_tags_code(
                    self.tags_code(topic, queue_id, tags_code) if is_address(tags_code) else tags_code
                ):
                    continue
                chosen.append(unit)
                size += record_size
            if full or limits is not None:
                # RocketMQ hands out of one queue file at a time.
                break
        records = self.read_units(topic, queue_id, chosen)
        if records:
            status = GetMessageStatus.FOUND
        elif chosen:
            status = GetMessageStatus.MESSAGE_WAS_REMOVING
        return GetMessageResult(status, at, low, high, records)

    def tags_code(self, topic: str, queue_id: int, address: int) -> int | None:
        """Return the tags code behind an ext address, None where the ext files are gone: unknown, so it matches."""
        directory = self.directory / "consumequeue_ext" / topic / str(queue_id)
        unit = ConsumeQueueExt(directory, self.settings.mapped_file_size_consume_queue_ext, self.files).get(address)
        return None if unit is None else unit.tags_code

    def read_units(self, topic: str, queue_id: int, units: list[Unit]) -> list[Record]:
        """Return the records of *units*, neighbours with one read; those that the log no longer has are missing."""
        records: list[Record] = []
        minimum = self.log().offset_min
        run: list[Unit] = []
        end = 0
        for unit in units:
            if unit[0] < minimum:
                continue
            if run and (unit[0] != end or end + unit[1] - run[0][0] > RUN_SIZE_MAX):
                records += self.read_run(topic, queue_id, run)
                run = []
            run.append(unit)
            end = unit[0] + unit[1]
        if run:
            records += self.read_run(topic, queue_id, run)
        return records

    def read_run(self, topic: str, queue_id: int, run: list[Unit]) -> list[Record]:
        """Return records that lie one behind the other."""
        begin = run[0][0]
        data = self.read_log(begin, run[-1][0] + run[-1][1] - begin)
        records = [decode_record(data, unit[0] - begin) for unit in run]
        for record, unit in zip(records, run, strict=True):
            if record.commit_log_offset != unit[0] or (record.topic != topic and not is_dispatched_to(record, topic)):
                raise DamagedStore(
                    f"the record is not what its unit says: topic={topic} queue_id={queue_id} "
                    f"commit_log_offset={unit[0]} record_topic={record.topic}",
                    "See `reput check`.",
                )
        return records

    def record_of(self, topic: str, queue_id: int, queue_offset: int, unit: Unit) -> Record | None:
        """Return the record of a unit, None if there is another one there, or none."""
        try:
            record = decode_record(self.read_log(unit[0], unit[1]))
        except (DamagedStore, OffsetOutOfRange):
            return None
        if record.commit_log_offset != unit[0]:
            return None
        if (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset):
            return record
        return record if is_dispatched_to(record, topic) else None

    def read_log(self, commit_log_offset: int, size: int) -> bytes:
        """Return *size* bytes of one segment.

        Raises:
            OffsetOutOfRange: the log does not hold them all.
        """
        segments = self.log()
        segment = segments.find(commit_log_offset)
        data = b""
        if segment is not None:
            data = self.files.read(segment.path, size, commit_log_offset - segment.begin)
        if len(data) < size:
            raise OffsetOutOfRange(
                f"the log does not hold these bytes: commit_log_offset={commit_log_offset} size={size} "
                f"offset_min={segments.offset_min}"
            )
        return data

    def query_message(
        self, topic: str, key: str, count_max: int = 64, begin: int = 0, end: int = TIMESTAMP_MAX
    ) -> QueryMessageResult:
        """Return the newest *count_max* messages of *topic* with this key, in commit-log order.

        The unique key that clients give counts as a key, too. Keys are compared, hashes only lead to them.

        Args:
            begin, end: store time in ms, both included; the index knows it to the second.
        """
        found = self.index.query(
            topic,
            key,
            min(count_max, self.settings.max_msgs_num_batch),
            begin,
            end,
            self.progress("index"),
        )
        records: list[Record] = []
        for offset in sorted(set(found.offsets)):
            try:
                size = int.from_bytes(self.read_log(offset, 4), "big")
                record = decode_record(self.read_log(offset, size))
            except OffsetOutOfRange:
                # Retention has trimmed the log; the index follows.
                continue
            if record.topic == topic and (key in record.keys or record.uniq_key == key):
                records.append(record)
        if not found.offsets:
            return QueryMessageResult([], 0, 0)
        return QueryMessageResult(records, found.last_update_timestamp, found.last_update_offset)


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


def is_dispatched_to(record: Record, queue_name: str) -> bool:
    """Whether multi-dispatch puts *record* into the queue of that name."""
    return queue_name in record.properties.get("INNER_MULTI_DISPATCH", "").split(",")
