"""MessageReader: messages by queue position and by key, with RocketMQ's answers to every case.

It reads beside a live writer, in the writer's process or another, and on a store that nobody has open. A unit of a
queue or an entry of the index is believed only below its view's progress, and only if the record there says the same:
topic, queue and queue offset, or the key.

Source: RocketMQ store, DefaultMessageStore.getMessage, queryMessage and getOffsetInQueueByTime.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, overload

import msgspec
from isal.isal_zlib import crc32

from reput.errors import ConfigError, DamagedStore, OffsetOutOfRange, StoreError
from reput.filter import MessageFilter, TagMessageFilter, parse_tags
from reput.settings import Settings
from reput.store.disk.file_name import file_name
from reput.store.disk.open_files import DirectoryStamp, OpenFiles
from reput.store.ext.consume_queue_ext import ConsumeQueueExt, is_address
from reput.store.index.index_file import Index, hashes_of, index_damage, key_hash, tags_hash
from reput.store.index.index_tags import shown_index_tags
from reput.store.log.segments import Segments
from reput.store.queue.consume_queue import (
    NO_UNIT,
    PRE_BLANK_SIZE,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    Unit,
    counts,
    holds_unit_of,
    is_garbage,
)
from reput.store.queue.consume_queue_builder import (
    ConsumeQueueBuilder,
    queue_directories,
    queues_of_topic,
    shown_queue_file_size,
)
from reput.store.queue.nearest_offset import QueueFile, nearest_offset
from reput.store.queue.tags_code_search import find_tags_codes
from reput.store.reader.unit_damage import begins_no_record, log_damage, require_reason
from reput.store.record.layout import (
    BODY_AT,
    BODY_CRC_AND_SYS_FLAG,
    BODY_SIZE,
    BORN_HOST_V6_FLAG,
    HOST_FLAGS_MASK,
    HOST_FLAGS_SHIFT,
    MAGIC_CODE_AT,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    MESSAGE_MAGIC_CODES,
    PROPERTIES_SIZE,
    QUEUE_PLACE,
    QUEUE_PLACE_V4,
    SIZE,
    SIZE_AND_MAGIC,
    STORE_HOST_V6_FLAG,
)
from reput.store.record.properties import filled_properties
from reput.store.record.record import (
    body_crc,
    checked_record,
    decode_message_id,
    decode_record,
    store_timestamp_of,
)
from reput.store.recovery.queue_proof import QueueProof
from reput.store.state.rocksdb_folders import refuse_queues_in_rocksdb
from reput.store.state.topic_deletions import LastDeletions
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.store.reader.batch_queue_reader import BatchQueueReader

__all__ = [
    "BoundaryType",
    "GetMessageResult",
    "GetMessageStatus",
    "MessageReader",
    "QueryMessageResult",
    "Records",
    "TransferLimits",
]

TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF
RUN_SIZE_MAX = 1 << 20
# A commit-log offset that no unit has, whatever is in it.
NOWHERE = -(1 << 64)
ZERO_UNIT = bytes(UNIT_SIZE)
# The byte of a commit-log offset that differs most from one record to the next.
LIVELY_BYTE_AT = 6
UNIT_COUNT_MAX = 800
# Of a tags code that is a hash, and neither the address of an ext unit nor a time.
INT_MIN, INT_MAX = -(2**31), 2**31 - 1

# Queue offset, and the unit that stands there.
Place = tuple[int, Unit]

NOT_ITS_CRC = "a message's body does not have its CRC"
HOSTS_V6_FLAGS = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG
# Mostly a whole record.
FIRST_READ_SIZE = 2048
# Of a larger record head and topic are read by themselves where nothing else of it is wanted.
PART_READ_SIZE = 1 << 16


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


class BoundaryType(enum.Enum):
    """Which of two messages around a time is meant."""

    LOWER = "LOWER"
    UPPER = "UPPER"
    NEAREST = "NEAREST"


class Records(Sequence[Record]):
    """Records as they were read, each decoded when it is asked for.

    Raises:
        DamagedStore: where a record is asked for whose bytes are none.
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
            return [decode_record(data) for data in self._data[index]]
        return decode_record(self._data[index])

    def __iter__(self) -> Iterator[Record]:
        if self._places is None:
            return map(decode_record, self._data)
        return map(checked_record, self._data, self._places, repeat(QUEUE_PLACE_V4.size), self._body_ends)

    def first_stored(self) -> tuple[int, int]:
        """Return size and store time (ms) of the first record, which is not decoded for it."""
        data = self._data[0]
        store_timestamp = store_timestamp_of(data)
        assert store_timestamp is not None
        return len(data), store_timestamp

    def with_queue_offsets(self) -> Iterator[tuple[int, Record]]:
        """Yield each record behind the queue offset that it tells of itself."""
        if self._places is None:
            return ((record.queue_offset, record) for record in self)
        return zip(map(itemgetter(0), self._places), self, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


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
    """Reads one store. Use it from one thread at a time."""

    def __init__(
        self,
        store_directory: Path,
        settings: Settings,
        progress: Callable[[str], int],
        generation: Callable[[str], int] = lambda view: 0,
        log_begin: Callable[[], int] | None = None,
        deletions: Callable[[], Mapping[str, int]] | None = None,
        own_from: int = 1 << 63,
        on_damage: Callable[[DamagedStore], None] = lambda error: None,
        queue_end_at: Callable[[str, int, int], int] | None = None,
        at_rest: bool = False,
    ) -> None:
        """Read the store in *store_directory*.

        Args:
            progress: gives the commit-log offset up to which the view of that name is readable now.
            generation: gives a number that is raised whenever another view takes the place of the one of that name, or
                files of it were removed that may be open here.
            log_begin: gives the commit-log offset of the first byte that the log still has; beside the store's writer,
                in whose process *generation* never lags behind. None: directories are asked instead, at each read.
            deletions: gives where in the log each topic was deleted last; None: a file is asked instead.
            own_from: commit-log offset from which on this very process has put all records. Bodies of others, which
                have come from a disk, are compared with their CRC.
            on_damage: is told of each error that names a damaged place of the log, before it is raised.
            queue_end_at: gives where a queue (topic, queue id) ends that is built up to a commit-log offset, 0 where
                that is not known; beside the store's writer, in whose process it is once all was built. None: the
                view's cursor is asked instead.
            at_rest: nobody builds the queues, so what stands behind the end of one is not there for a moment only.
        """
        self.directory = store_directory
        self.settings = settings
        self.view_progress = progress
        self.view_generation = generation
        self.generations: dict[str, int] = {}
        self.files = OpenFiles()
        self.log_begin = log_begin
        self.own_from = own_from
        self.on_damage = on_damage
        self.queue_end_at = queue_end_at
        self.at_rest = at_rest
        self.proof = QueueProof(store_directory)
        self.deletions = deletions or LastDeletions(store_directory)
        # What `log_begin` said when the segments were listed.
        self.known_log_begin = -1
        self.segments: Segments | None = None
        self.log_directory = str(store_directory / "commitlog")
        self.log_stamp = DirectoryStamp(store_directory / "commitlog")
        self.queues: dict[tuple[str, int], QueueReader] = {}
        self.queues_stamp = DirectoryStamp(store_directory / "consumequeue")
        self.batch_queues = store_directory / "batchconsumequeue"
        self.index = Index(store_directory / "index", settings.max_hash_slot_num, settings.max_index_num, self.files)
        self.file_sizes: tuple[int, int] | None = None
        # Queue, queue offset, unit and bytes of the newest record, if the present get has compared it with its unit.
        self.agreed: tuple[QueueReader, int, Unit, bytes] | None = None

    def close(self) -> None:
        """Close the files."""
        self.files.close()

    def progress(self, view: str) -> int:
        """Return up to where *view* is readable; if it is another one than before, its files are opened anew.

        The progress is read first: that of a new view is published after its generation was raised.
        """
        progress, generation = self.view_progress(view), self.view_generation(view)
        if self.generations.setdefault(view, generation) != generation:
            self.generations[view] = generation
            self.forget()
        return progress

    def forget(self) -> None:
        """Take nothing for granted that was read so far."""
        self.files.forget()
        self.file_sizes = None
        for queue in self.queues.values():
            queue.forget()
        self.queues.clear()
        self.index.stamp.forget()

    def log(self) -> Segments:
        """Return the segments, as the directory has them now."""
        begin = -1
        # A system call for each directory would be half of what a read costs.
        if self.log_begin is None:
            if self.segments is not None and not self.log_stamp.changed():
                return self.segments
        else:
            begin = self.log_begin()
            if self.segments is not None and begin == self.known_log_begin:
                return self.segments
        try:
            self.segments = Segments(self.directory / "commitlog")
        except StoreError:
            # What was listed before must not pass for what is there now.
            self.log_stamp.forget()
            raise
        # The writer says where the log begins before the file goes.
        self.segments.leave_out_below(begin)
        self.known_log_begin = begin
        self.files.forget(self.log_directory)
        return self.segments

    def queue(self, topic: str, queue_id: int) -> QueueReader:
        """Return one queue, whether it exists or not.

        Raises:
            ConfigError: *topic* can be no directory's name, or would lead out of the queues' directory.
        """
        if self.log_begin is None and self.queues_stamp.changed():
            # Topics have come or gone, or the whole view was exchanged for one that was built anew: what is open may be
            # files that nobody else has any more.
            self.forget()
        found = self.queues.get((topic, queue_id))
        if found is None:
            reason = ConsumeQueueBuilder.refusal(topic)
            if reason is not None:
                raise ConfigError(reason, "Give a topic's name.")
            found = self.queues[topic, queue_id] = QueueReader(self, topic, queue_id, *self.queue_file_sizes())
        return found

    def queue_file_sizes(self) -> tuple[int, int]:
        """Return the size of the queues' files and of their ext files: as they show it, or else as configured."""
        if self.file_sizes is None:
            shown = shown_queue_file_size(self.directory / "consumequeue")
            ext_shown = shown_queue_file_size(self.directory / "consumequeue_ext")
            sizes = (
                shown or self.settings.mapped_file_size_consume_queue,
                ext_shown or self.settings.mapped_file_size_consume_queue_ext,
            )
            if shown is None:
                return sizes
            self.file_sizes = sizes
        return self.file_sizes

    def topics(self) -> dict[str, list[int]]:
        """Return the queue ids of every topic that has a consume queue."""
        found: dict[str, list[int]] = {}
        progress, deletions = self.view_progress("consume_queue"), self.deletions()
        for topic, queue_id, _ in queue_directories(self.directory / "consumequeue"):
            if deletions.get(topic, -1) < progress:
                found.setdefault(topic, []).append(queue_id)
        for topic, queue_id, _ in queue_directories(self.batch_queues):
            found.setdefault(topic, []).append(queue_id)
        return {topic: sorted(set(queue_ids)) for topic, queue_ids in found.items()}

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the consume queues of one topic, ascending; no other topic is looked at."""
        if ConsumeQueueBuilder.refusal(topic) is not None:
            return []
        if self.deletions().get(topic, -1) >= self.view_progress("consume_queue"):
            return []
        directories = (self.directory / "consumequeue" / topic, self.batch_queues / topic)
        return sorted({queue_id for directory in directories for queue_id, _ in queues_of_topic(directory)})

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset that can be read, and the one behind the last."""
        low, high = self.queue(topic, queue_id).range()
        if high == 0 and (batches := self.batch_queue(topic, queue_id)) is not None:
            return batches.range()
        return low, high

    def batch_queue(self, topic: str, queue_id: int) -> BatchQueueReader | None:
        """Return the batch consume queue that RocketMQ 5 keeps in place of this queue, None if there is none.

        Raises:
            StoreError: the consume queues of this store are in RocksDB.
        """
        refuse_queues_in_rocksdb(self.directory)
        if not os.path.isdir(f"{self.batch_queues}/{topic}/{queue_id}"):
            return None
        # Here, because hardly any store has one.
        from reput.store.reader.batch_queue_reader import BatchQueueReader

        return BatchQueueReader(self, topic, queue_id)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int = 32,
        *,
        tags: str | None = None,
        message_filter: MessageFilter | None = None,
        limits: TransferLimits | None = None,
    ) -> GetMessageResult:
        """Return up to *count_max* messages from *queue_offset* on.

        Args:
            tags: ``a || b``; a message counts if its tag's hash is one of theirs, as in RocketMQ's store.
            message_filter: instead of *tags*; is asked with each unit, and then with each record.
            limits: None hands out what was asked for.

        Raises:
            DamagedStore: the bytes of a record are none, or the queue's files hold something else than units.
            FilterSyntaxError: *tags* does not parse.
        """
        queue = self.queue(topic, queue_id)
        low, high = queue.range()
        if high == 0 and (batches := self.batch_queue(topic, queue_id)) is not None:
            tag_filter = None if tags is None else TagMessageFilter(parse_tags(tags))
            return batches.get_message(queue_offset, count_max, tag_filter or message_filter, limits)
        log_min = queue.log_min
        status = empty_status(queue_offset, low, high)
        if status is not None and queue_offset >= high and (garbage := queue.units.garbage_behind(high)) is not None:
            raise queue.garbled(*garbage)
        if status is GetMessageStatus.OFFSET_TOO_SMALL and queue_offset >= 0:
            # Garbage looks as old as a unit whose record is gone.
            unit = queue.units.unit(queue_offset)
            if unit is None:
                queue.refuse_cut_short(queue_offset)
            else:
                queue.refuse_garbage([(queue_offset, unit)])
        if status is not None:
            following = {GetMessageStatus.OFFSET_TOO_SMALL: low, GetMessageStatus.OFFSET_OVERFLOW_BADLY: high}
            where = 0 if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE else following.get(status, queue_offset)
            return GetMessageResult(status, where, low, high)
        if tags is not None:
            message_filter = TagMessageFilter(parse_tags(tags))
        # A filter by tags has said all that it can when it has seen the unit.
        record_filter = None if isinstance(message_filter, TagMessageFilter) else message_filter
        file_units = queue.units.file_size // UNIT_SIZE
        end = min(high, queue_offset + max(UNIT_COUNT_MAX, count_max))
        if limits is not None:
            # RocketMQ hands out of one queue file at a time.
            end = min(end, queue_offset - queue_offset % file_units + file_units)
        codes = message_filter.codes if isinstance(message_filter, TagMessageFilter) else None
        taken: list[bytes] = []
        places: list[Place] = []
        body_ends: list[int] = []
        size = 0
        at = queue_offset
        status = GetMessageStatus.NO_MATCHED_MESSAGE
        full = False
        while at < end and not full and len(taken) < count_max:
            count = len(taken)
            wanted = end - at if message_filter is not None else min(end - at, count_max - count)
            data = queue.units.counted_unit_bytes(at, wanted)
            if not data:
                if not taken:
                    queue.refuse_missing_file(at)
                    status = GetMessageStatus.OFFSET_FOUND_NULL
                    at += file_units - at % file_units
                break
            if codes is not None and (zero_at := find_zero_unit(data)) >= 0:
                # It has no tag, but is not passed over for that.
                data = data[: zero_at * UNIT_SIZE]
                if not data:
                    queue.read([(at, NO_UNIT)], [], [])
                    at += 1
                    continue
            numbers = None if codes is None else find_tags_codes(data, codes)
            if limits is None and record_filter is None and (numbers is not None or message_filter is None):
                # Nothing has to be asked of any unit that is passed over.
                chosen, at = choose(data, at, numbers, count_max - count)
            else:
                if numbers is not None and count == 0:
                    # The first message always fits, so what is before it need not be asked for limits.
                    first = numbers[0] if numbers else len(data) // UNIT_SIZE
                    data = data[first * UNIT_SIZE :]
                    at += first
                chosen = []
                for unit in UNIT.iter_unpack(data):
                    if count >= count_max or (
                        limits is not None
                        and limits.reached(count, size, unit[1], queue.units.known_progress - unit[0])
                    ):
                        full = True
                        break
                    at += 1
                    # Most units are told by their hash alone, without a call.
                    if codes is not None and unit[2] not in codes and INT_MIN <= unit[2] <= INT_MAX:
                        continue
                    if message_filter is None or queue.may_be_wanted(unit, message_filter):
                        chosen.append((at - 1, unit))
                        size += unit[1]
                        count += 1
                        if record_filter is not None:
                            break
            checked = len(places)
            try:
                found = queue.read(chosen, places, body_ends)
            except DamagedStore as error:
                self.on_damage(error)
                raise
            if len(found) < len(chosen) and self.log().offset_min > log_min:
                # Retention took a segment out of the middle of this: what is left is found without a hole.
                return self.get_message(
                    topic, queue_id, queue_offset, count_max, message_filter=message_filter, limits=limits
                )
            if chosen and not found and not taken:
                status = GetMessageStatus.MESSAGE_WAS_REMOVING
            if found and record_filter is not None and not matches_record(record_filter, found[0]):
                size -= len(found[0])
                del places[checked:], body_ends[checked:]
                continue
            taken += found
        if taken:
            status = GetMessageStatus.FOUND
        records = Records(taken, places, body_ends) if len(places) == len(taken) else Records(taken)
        return GetMessageResult(status, at, low, high, records)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the queue offset that belongs to a store time (ms), within the queue's range.

        LOWER: of the first message stored then or later, one behind the last if there is none. UPPER: of the last one
        stored then or before, the first if there is none. NEAREST: of the nearest one, as RocketMQ 4 finds it, by the
        times at which the queue's files were written.

        Source: RocketMQ 5 store, ConsumeQueue.getOffsetInQueueByTime.
        """
        queue = self.queue(topic, queue_id)
        low, high = queue.range()
        if high == 0 and (batches := self.batch_queue(topic, queue_id)) is not None:
            return batches.offset_by_time(timestamp, boundary)
        if boundary is BoundaryType.NEAREST:
            return nearest_offset(queue.written_files(high), timestamp, low, queue.known_store_timestamp)
        first, end = low, high
        while first < end:
            middle = (first + end) // 2
            stored = queue.store_timestamp(middle)
            if stored < timestamp or (stored == timestamp and boundary is BoundaryType.UPPER):
                first = middle + 1
            else:
                end = middle
        return first if boundary is BoundaryType.LOWER else max(first - 1, low)

    def read_log(self, commit_log_offset: int, size: int) -> bytes:
        """Return *size* bytes of one segment.

        Raises:
            OffsetOutOfRange: the log does not hold them all.
        """
        segments = self.segments or self.log()
        segment = segments.find(commit_log_offset)
        data = b""
        if segment is not None:
            try:
                data = self.files.read(str(segment.path), size, commit_log_offset - segment.begin)
            except FileNotFoundError:
                # Retention removes a segment first and says so then.
                segments.refresh()
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

        The unique key that clients give counts as a key, too. Keys are compared, hashes only lead to them. What is
        nobody's key may be the id that the store itself gave a message: it names the place in the log.

        Args:
            begin, end: store time in ms, both included; the index knows it to the second.
        """

        def has_key(record: Record) -> bool:
            return key in record.keys or record.uniq_key == key

        found = self.query_index(topic, key_hash(topic, key), has_key, count_max, begin, end)
        if found.records:
            return found
        record = self.record_of_id(key)
        wanted = record is not None and record.topic == topic and begin <= record.store_timestamp <= end
        return QueryMessageResult([record] if record is not None and wanted and count_max > 0 else [], 0, 0)

    def query_tags(
        self, topic: str, tags: str, count_max: int = 64, begin: int = 0, end: int = TIMESTAMP_MAX
    ) -> QueryMessageResult:
        """Return the newest *count_max* messages of *topic* whose tags are *tags*, in commit-log order.

        Args:
            begin, end: as of `query_message`.

        Raises:
            ConfigError: the index of this store has no tags.
        """
        settings = self.settings
        sizes = settings.max_hash_slot_num, settings.max_index_num
        if not (settings.index_tags or shown_index_tags(self.directory, *sizes)):
            raise ConfigError(
                f"the index of this store has no tags: index_tags=false store={self.directory}",
                f"Have it get them with `reput settings {self.directory} --change index_tags=true`, and have them "
                f"entered for what is there with `reput rebuild {self.directory} index`.",
            )
        return self.query_index(
            topic, tags_hash(topic, tags), lambda record: record.tags == tags, count_max, begin, end
        )

    def query_index(
        self, topic: str, wanted: int, agrees_with: Callable[[Record], bool], count_max: int, begin: int, end: int
    ) -> QueryMessageResult:
        """Return the newest *count_max* messages of *topic* under a hash of the index that *agrees_with* accepts."""
        records: dict[int, Record] = {}
        log_min = self.log().offset_min

        def agrees(commit_log_offset: int) -> bool:
            # Retention has trimmed the log; the index follows.
            if commit_log_offset < log_min:
                return False
            record = self.indexed_record(topic, commit_log_offset)
            if record is None:
                return False
            if record.topic != topic or not agrees_with(record):
                if wanted not in hashes_of(record):
                    raise index_damage(
                        f"topic={topic}",
                        f"an entry leads to a record of other keys: commit_log_offset={commit_log_offset}",
                    )
                return False
            if not self.has_whole_body(record):
                return False
            records[commit_log_offset] = record
            return True

        count_max = min(count_max, self.settings.max_msgs_num_batch)
        found = self.index.query(wanted, count_max, begin, end, self.progress("index"), agrees, self.stored_at)
        if not found.offsets:
            return QueryMessageResult([], 0, 0)
        return QueryMessageResult(
            [records[offset] for offset in sorted(found.offsets)],
            found.last_update_timestamp,
            found.last_update_offset,
        )

    def indexed_record(self, topic: str, commit_log_offset: int) -> Record | None:
        """Return the record that an entry of the index leads to, None if it is gone, or an operator has given it up.

        Raises:
            DamagedStore: there is none; the error says whether the index is at fault or the log.
        """
        try:
            return self.record_at(commit_log_offset)
        except (DamagedStore, OffsetOutOfRange) as error:
            if self.is_accepted(commit_log_offset):
                return None
            segment = self.log().find(commit_log_offset)
            if segment is None or begins_no_record(self, segment.begin, commit_log_offset):
                raise index_damage(
                    f"topic={topic}", f"an entry leads to no record: commit_log_offset={commit_log_offset}"
                ) from None
            raise self.told(
                DamagedStore.at(commit_log_offset, None, f"{error} topic={topic} commit_log_offset={commit_log_offset}")
            ) from None

    def stored_at(self, commit_log_offset: int) -> int | None:
        """Return the store time of the record there, None if the log has none there that could be read."""
        if not self.log().offset_min <= commit_log_offset < self.progress("index"):
            return None
        try:
            record = self.record_at(commit_log_offset)
        except (DamagedStore, OffsetOutOfRange):
            return None
        return None if record is None else record.store_timestamp

    def is_accepted(self, commit_log_offset: int) -> bool:
        """Tell whether an operator has accepted that the log is damaged there, so that nobody waits for that record."""
        # Here, because hardly any log is damaged.
        from reput.store.recovery.recovery import read_damage

        accepted = read_damage(self.directory).accepted()
        return any(begin <= commit_log_offset < until for begin, until in accepted)

    def record_of_id(self, message_id: str) -> Record | None:
        """Return the record that the store gave this id, None if the log has no such record.

        Source: RocketMQ broker, QueryMessageProcessor.viewMessageById.
        """
        commit_log_offset = decode_message_id(message_id)
        readable = max(self.progress("consume_queue"), self.progress("index"))
        if commit_log_offset is None or not self.log().offset_min <= commit_log_offset < readable:
            return None
        try:
            record = self.record_at(commit_log_offset)
        except (DamagedStore, OffsetOutOfRange):
            # An id that clients give looks like one, and names any byte.
            return None
        if record is None or record.message_id != message_id.upper() or not self.has_whole_body(record):
            return None
        return record

    def has_whole_body(self, record: Record) -> bool:
        """Tell whether the body of *record* has its CRC. It has not, if an operator has accepted that.

        Raises:
            DamagedStore: nobody has.
        """
        commit_log_offset = record.commit_log_offset
        if commit_log_offset >= self.own_from or not record.body or body_crc(record.body) == record.body_crc:
            return True
        if self.is_accepted(commit_log_offset):
            return False
        raise self.told(
            DamagedStore.at(
                commit_log_offset,
                record.record_size,
                f"{NOT_ITS_CRC}: topic={record.topic} queue_id={record.queue_id} queue_offset={record.queue_offset} "
                f"commit_log_offset={commit_log_offset}",
                "See `reput check STORE`; other messages can be read.",
            )
        )

    def told(self, error: DamagedStore) -> DamagedStore:
        """Return *error*, which somebody is told of."""
        self.on_damage(error)
        return error

    def record_at(self, commit_log_offset: int) -> Record | None:
        """Return the record that begins at this offset, None if it was before the log's first byte or is now.

        Raises:
            DamagedStore: the bytes there are no record.
            OffsetOutOfRange: the log does not reach so far.
        """
        try:
            try:
                data = self.read_log(commit_log_offset, FIRST_READ_SIZE)
            except OffsetOutOfRange:
                # Near the end of its segment.
                data = self.read_log(commit_log_offset, SIZE.size)
            size = int.from_bytes(data[: SIZE.size], "big")
            # Whoever has an id may ask for any place, and in the middle of a record a size may be that of a segment.
            magic = data[MAGIC_CODE_AT : SIZE_AND_MAGIC.size]
            if size > len(data) and (not magic or int.from_bytes(magic, "big") in MESSAGE_MAGIC_CODES):
                data = self.read_log(commit_log_offset, size)
        except OffsetOutOfRange:
            # Retention may have taken it since somebody saw that the log has it.
            if self.segments is not None and commit_log_offset < self.segments.offset_min:
                return None
            raise
        return decode_record(data[:size])


class QueueReader:
    """One queue of a `MessageReader`: its units, and whether the log agrees with them."""

    def __init__(self, reader: MessageReader, topic: str, queue_id: int, file_size: int, ext_file_size: int) -> None:
        self.reader = reader
        self.topic = topic
        self.queue_id = queue_id
        directory = reader.directory / "consumequeue" / topic / str(queue_id)
        self.units = ConsumeQueue(directory, file_size, reader.files)
        ext_directory = reader.directory / "consumequeue_ext" / topic / str(queue_id)
        self.ext = ConsumeQueueExt(ext_directory, ext_file_size, reader.files)
        # Commit-log offset of the first record that is still there, as of the last `range`.
        self.log_min = 0
        # Where the topic was deleted last. The view may not have come so far, and what it has from before is not this
        # topic's any more, though queue offsets are the same.
        self.deleted_at = -1
        self.topic_fields, self.unpack_tail = topic_layout(topic)

    def forget(self) -> None:
        """Take nothing for granted that was read so far, in the middle of a read, too."""
        self.units.forget()
        self.units.file_size, self.ext.file_size = self.reader.queue_file_sizes()

    def range(self) -> tuple[int, int]:
        """Return the first queue offset that can be read, and the one behind the last."""
        self.reader.agreed = None
        self.log_min = self.reader.log().offset_min
        progress = self.reader.progress("consume_queue")
        deleted_at = self.reader.deletions().get(self.topic, -1)
        if deleted_at != self.deleted_at:
            self.deleted_at = deleted_at
            self.units.forget()
        if progress <= deleted_at:
            return 0, 0
        end = self.units.end(progress, self.agrees, self.goes_on)
        return self.units.min(self.log_min, end), end

    def goes_on(self, end: int, progress: int) -> int:
        """Return where the queue ends that seems to end at *end*: there, or behind units that are damaged."""
        reader = self.reader
        if reader.queue_end_at is not None:
            if reader.queue_end_at(self.topic, self.queue_id, progress) <= end:
                return end
        else:
            known = reader.proof.kept_end(self.topic, self.queue_id, progress)
            behind = self.units.unit(end) or NO_UNIT
            # A builder may just have come further than its progress says.
            is_odd = behind != NO_UNIT and (reader.at_rest or counts(behind, progress) or is_garbage(behind))
            # Of a topic that was deleted since, the view may not have come so far.
            is_odd &= not (counts(behind, progress) and behind[0] < self.deleted_at)
            is_short = known is not None and known.end > end * UNIT_SIZE and known.last >= self.deleted_at
            if not is_odd and not is_short:
                return end
        begin = max(self.log_min, self.deleted_at)
        last = self.units.unit(end - 1) if end else None
        if last is not None and counts(last, progress) and self.agrees(end - 1, last):
            begin = max(begin, last[0] + last[1])
        return reader.proof.end(self.topic, self.queue_id, end, begin, progress, reader.at_rest)

    def garbled(self, queue_offset: int, what: str) -> DamagedStore:
        """Return the error that says that the queue goes on with what is no unit."""
        return DamagedStore(
            f"the consume queue is damaged: topic={self.topic} queue_id={self.queue_id} queue_offset={queue_offset}: "
            f"{what}",
            "See `reput check STORE`; `reput rebuild STORE consume_queue` builds it again from the log.",
        )

    def agrees(self, queue_offset: int, unit: Unit) -> bool:
        """Tell whether the log has the record of a unit, or has it no more."""
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
            self.reader.agreed = (self, queue_offset, unit, data)
            return True
        except OffsetOutOfRange:
            return False

    def begins_as_record(self, queue_offset: int, unit: Unit) -> bool:
        """Tell whether a large record is that of a unit, from its head and its topic, without reading its body.

        One that is in this queue by multi-dispatch alone is not known so.
        """
        offset, size, _ = unit
        head = self.reader.read_log(offset, BODY_AT[-1])
        own_size, magic_code, queue_id, own_queue_offset, commit_log_offset, sys_flag = QUEUE_PLACE.unpack_from(head)
        if (own_size, queue_id, own_queue_offset, commit_log_offset) != (size, self.queue_id, queue_offset, offset):
            return False
        body_at = BODY_AT[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
        (body_size,) = BODY_SIZE.unpack_from(head, body_at - BODY_SIZE.size)
        topic_field = self.topic_fields[magic_code == MESSAGE_MAGIC_CODE_V2]
        if magic_code not in MESSAGE_MAGIC_CODES or not 0 <= body_size <= size - body_at - len(topic_field):
            return False
        return self.reader.read_log(offset + body_at + body_size, len(topic_field)) == topic_field

    def record_bytes(self, commit_log_offset: int, size: int) -> bytes:
        """Return the bytes that a unit names; of one whose size is no usual one, only if the record itself says so.

        Raises:
            OffsetOutOfRange: the log does not hold them all, or the record there has another size.
        """
        if size > RUN_SIZE_MAX:
            own_size = int.from_bytes(self.reader.read_log(commit_log_offset, SIZE.size), "big")
            if own_size != size:
                raise OffsetOutOfRange(
                    f"the record has another size: commit_log_offset={commit_log_offset} size={size} found={own_size}"
                )
        return self.reader.read_log(commit_log_offset, size)

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
                if body_size >= 0 and data.startswith(topic_field, body_at + body_size):
                    return True
            record = decode_record(data[at : at + size])
        except (StructError, DamagedStore):
            return False
        return holds_unit_of(record, self.topic, self.queue_id, queue_offset)

    def passes_over_body(self, record: bytes) -> bool:
        """Return False for a record whose body does not have its CRC, if an operator has accepted that.

        Raises:
            DamagedStore: nobody has.
        """
        _, _, _, queue_offset, commit_log_offset, _ = QUEUE_PLACE.unpack_from(record)
        if self.reader.is_accepted(commit_log_offset):
            return False
        raise log_damage(self, NOT_ITS_CRC, queue_offset, commit_log_offset, len(record))

    def may_be_wanted(self, unit: Unit, message_filter: MessageFilter) -> bool:
        """Ask a filter with what the queue knows of a message. What the ext files have lost counts as unknown."""
        tags_code = unit[2]
        if not is_address(tags_code):
            return message_filter.is_matched_by_consume_queue(tags_code)
        ext = self.ext.get(tags_code)
        if ext is None:
            return message_filter.is_matched_by_consume_queue(None)
        return message_filter.is_matched_by_consume_queue(ext.tags_code, ext.store_timestamp, ext.filter_bit_map)

    def read(self, chosen: Sequence[Place], places: list[Place], body_ends: list[int]) -> list[bytes]:
        """Return the bytes of the records of units.

        Neighbours are read at once. Records that the log no longer has are missing.

        Args:
            places, body_ends: of neighbours that were all checked as a whole and have hosts of IPv4, the places, and
                where in each one's bytes its body ends, are appended to them.

        Raises:
            DamagedStore: one of *chosen* leads to no record of this queue, and neither retention, nor the deletion of
                the topic, nor an operator has accounted for that.
        """
        records: list[bytes] = []
        missing: list[Place] = []
        checked = len(places)
        log_min = max(self.log_min, self.deleted_at)
        run: list[Place] = []
        begin = end = NOWHERE
        for place in chosen:
            offset, size, _ = place[1]
            if offset != end or end + size - begin > RUN_SIZE_MAX:
                if run:
                    missing += self.read_run(run, begin, end, records, places, body_ends)
                    run = []
                # A pre-blank unit comes here for its size.
                if offset < log_min or size == PRE_BLANK_SIZE:
                    if size != PRE_BLANK_SIZE:
                        missing.append(place)
                    end = NOWHERE
                    continue
                begin = offset
            run.append(place)
            end = offset + size
        if run:
            missing += self.read_run(run, begin, end, records, places, body_ends)
        if missing and require_reason(self, missing):
            del places[checked:], body_ends[checked:]
            low, high = self.range()
            units = ((queue_offset, self.units.unit(queue_offset)) for queue_offset, _ in chosen)
            there = [(place, unit) for place, unit in units if unit is not None and low <= place < high]
            return self.read(there, places, body_ends)
        return records

    def refuse_cut_short(self, queue_offset: int) -> None:
        """Look why there are no bytes where this unit should be.

        Raises:
            DamagedStore: its file is there, and was cut short.
        """
        reason = self.units.cut_short(queue_offset)
        if reason is not None:
            raise self.garbled(queue_offset, reason)

    def refuse_missing_file(self, queue_offset: int) -> None:
        """Look why there are no bytes where a unit within the queue's bounds should be.

        Raises:
            DamagedStore: its file was cut short, or is missing, and the queue has not lost it to retention.
        """
        self.refuse_cut_short(queue_offset)
        self.forget()
        low, high = self.range()
        if low <= queue_offset < high and self.units.unit_file_size(queue_offset) is None:
            raise self.garbled(queue_offset, f"its file is missing: path={self.units.unit_file(queue_offset)}")

    def refuse_garbage(self, chosen: Sequence[tuple[int, Unit]]) -> None:
        """Look among units whose records were not all found for one that was never written.

        Raises:
            DamagedStore: there is one.
        """
        for queue_offset, unit in chosen:
            if is_garbage(unit):
                raise self.garbled(queue_offset, f"no unit stands there: commit_log_offset={unit[0]} size={unit[1]}")

    def read_run(
        self,
        run: list[Place],
        begin: int,
        end: int,
        records: list[bytes],
        places: list[Place],
        body_ends: list[int],
    ) -> list[Place]:
        """Append the bytes of records that lie one behind the other in [begin, end), and what `read` promises.

        Return the places that lead to none.
        """
        missing: list[Place] = []
        agreed = self.reader.agreed
        try:
            if agreed is not None and len(run) == 1 and agreed[:3] == (self, *run[0]):
                # Who follows a queue wants the record by which its end was found.
                data = agreed[3]
            else:
                data = self.record_bytes(begin, end - begin) if end > begin else b""
        except OffsetOutOfRange:
            # Two segments, or the log was trimmed just now.
            if len(run) == 1:
                return run
            for place in run:
                first, size, _ = place[1]
                missing += self.read_run([place], first, first + size, records, places, body_ends)
            return missing
        unpack_head, unpack_tail = QUEUE_PLACE_V4.unpack_from, self.unpack_tail
        own_queue_id, own_topic_field = self.queue_id, self.topic_fields[0]
        head_size = QUEUE_PLACE_V4.size
        # Of a record without body and properties.
        least = head_size + len(own_topic_field) + PROPERTIES_SIZE.size
        append = records.append
        before = len(records)
        ends: list[int] = []
        at = 0
        # Two unpacks and one copy per record.
        for queue_offset, unit in run:
            unit_offset, unit_size, _ = unit
            following = at + unit_size
            try:
                size, magic_code, queue_id, own_queue_offset, offset, sys_flag, body_size = unpack_head(data, at)
                if (
                    own_queue_offset == queue_offset
                    and offset == unit_offset
                    and size == unit_size
                    and magic_code == MESSAGE_MAGIC_CODE
                    and queue_id == own_queue_id
                    and body_size >= 0
                    and not sys_flag & HOSTS_V6_FLAGS
                ):
                    body_end = head_size + body_size
                    topic_field, properties_size = unpack_tail(data, at + body_end)
                    if topic_field == own_topic_field and least + body_size + properties_size == size:
                        append(data[at:following])
                        ends.append(body_end)
                        at = following
                        continue
            except StructError:
                pass
            # Of another kind, or another's.
            if self.is_record(data, at, queue_offset, unit):
                append(data[at:following])
            else:
                missing.append((queue_offset, unit))
            at = following
        if begin < self.reader.own_from:
            taken = records[before:]
            records[before:] = [record for record in taken if body_fits(record) or self.passes_over_body(record)]
        if len(ends) == len(run) == len(records) - before:
            places += run
            body_ends += ends
        return missing

    def written_files(self, end: int) -> list[QueueFile]:
        """Return the files that hold units before *end*, and when each was written last."""
        per_file = self.units.file_size // UNIT_SIZE
        files = []
        for begin in self.units.begins():
            first = begin // UNIT_SIZE
            if first < end:
                # Retention, or the deletion of the topic, may take a file while it is looked at.
                with contextlib.suppress(FileNotFoundError):
                    changed_ns = os.stat(self.units.prefix + file_name(begin)).st_mtime_ns
                    files.append(QueueFile(first, min(first + per_file, end), changed_ns // 1_000_000))
        return files

    def known_store_timestamp(self, queue_offset: int) -> int | None:
        """Return the store time of a message in ms, None where the log has it no more."""
        unit = self.units.unit(queue_offset)
        if unit is None or unit[1] == PRE_BLANK_SIZE or unit[0] < self.log_min:
            return None
        record = self.reader.record_at(unit[0])
        return None if record is None else record.store_timestamp

    def store_timestamp(self, queue_offset: int) -> int:
        """Return the store time of a message in ms; of one that the log lacks, that of the one before it, or 0."""
        while (unit := self.units.unit(queue_offset)) is not None and unit[1] == PRE_BLANK_SIZE and queue_offset:
            queue_offset -= 1
        if unit is None or unit[1] == PRE_BLANK_SIZE:
            return 0
        record = self.reader.record_at(unit[0])
        return 0 if record is None else record.store_timestamp


@lru_cache(1024)
def topic_layout(topic: str) -> tuple[tuple[bytes, bytes], Callable[..., tuple[Any, ...]]]:
    """Return *topic* as a record in V1 and in V2 has it, and what unpacks what lies behind the body of one in V1.

    Its size is before it: one byte in V1, two in V2. Behind it lies the size of the properties. The queues of a topic
    share this, so that reads of many queues find it in the processor's caches.
    """
    name = topic.encode("utf-8", "replace")
    fields = bytes([len(name) & 0xFF]) + name, (len(name) & 0xFFFF).to_bytes(2, "big") + name
    return fields, Struct(f">{len(fields[0])}s{PROPERTIES_SIZE.format[1:]}").unpack_from


def choose(data: bytes, queue_offset: int, numbers: list[int] | None, count_max: int) -> tuple[list[Place], int]:
    """Return up to *count_max* places of units whose bytes *data* are, and the queue offset behind what was looked at.

    Args:
        queue_offset: of the first unit.
        numbers: the units that are wanted, ascending; None: all.
    """
    if numbers is None:
        places = list(enumerate(UNIT.iter_unpack(data[: count_max * UNIT_SIZE]), queue_offset))
        return places, queue_offset + len(places)
    chosen = numbers[:count_max]
    unpack = UNIT.unpack_from
    places = [(queue_offset + number, unpack(data, number * UNIT_SIZE)) for number in chosen]
    passed = chosen[-1] + 1 if len(numbers) >= count_max else len(data) // UNIT_SIZE
    return places, queue_offset + passed


def find_zero_unit(units: bytes) -> int:
    """Return the number of the first of these units that was never written, -1 if all were."""
    lively = units[LIVELY_BYTE_AT::UNIT_SIZE]
    number = lively.find(0)
    while number >= 0 and not units.startswith(ZERO_UNIT, number * UNIT_SIZE):
        number = lively.find(0, number + 1)
    return number


def body_fits(record: bytes) -> bool:
    """Tell whether the body of a whole record has the CRC that the record says; one without bytes has any."""
    crc, sys_flag = BODY_CRC_AND_SYS_FLAG.unpack_from(record)
    body_at = BODY_AT[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
    (size,) = BODY_SIZE.unpack_from(record, body_at - BODY_SIZE.size)
    found: int = crc32(memoryview(record)[body_at : body_at + size])
    return bool(size == 0 or found & 0x7FFFFFFF == crc)


def matches_record(message_filter: MessageFilter, data: bytes) -> bool:
    """Ask a filter with a record at hand."""
    return message_filter.is_matched_by_commit_log(filled_properties(decode_record(data).properties) or None)


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
