"""MessageReader: messages by queue position, with RocketMQ's answers to every case; by key through its `index`.

It reads beside a live writer, in the writer's process or another, and on a store that no process has open. A unit of a
queue or an entry of the index counts only below its view's progress, and only if the record there says the same:
topic, queue and queue offset, or the key.

Source: RocketMQ store, DefaultMessageStore.getMessage, queryMessage and getOffsetInQueueByTime.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from reput.errors import ConfigError, DamagedStore
from reput.filter import MessageFilter, TagMessageFilter
from reput.store.disk.open_files import DirectoryStamp
from reput.store.queue.consume_queue import UNIT, UNIT_SIZE
from reput.store.queue.consume_queue_builder import ConsumeQueueBuilder, queue_directories, queues_of_topic
from reput.store.queue.consume_queue_files import PRE_BLANK_UNIT
from reput.store.queue.nearest_offset import nearest_offset
from reput.store.queue.tags_code_search import find_tags_codes
from reput.store.reader.consume_queue_reader import ConsumeQueueReader
from reput.store.reader.index_reader import IndexReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    Place,
    TransferLimits,
    empty_status,
    records_at,
)
from reput.store.record.properties import filled_properties
from reput.store.record.record import decode_record
from reput.store.state.rocksdb_folders import refuse_queues_in_rocksdb

if TYPE_CHECKING:
    from reput.store.reader.batch_queue_reader import BatchQueueReader

__all__ = ["MessageReader"]

UNIT_COUNT_MAX = 800
# Range of tags codes that are hashes, neither addresses of ext units nor times.
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
WITHOUT_MESSAGE = (bytes(UNIT_SIZE), PRE_BLANK_UNIT)
# The byte of a commit-log offset that differs most from one record to the next.
LIVELY_BYTE_AT = 6


class MessageReader:
    """Reads one store. Use it from one thread at a time."""

    def __init__(self, store: ReadableStore) -> None:
        self.store = store
        self.queues: dict[tuple[str, int], ConsumeQueueReader] = {}
        self.queues_stamp = DirectoryStamp(store.directory / "consumequeue")
        self.batch_queues = store.directory / "batchconsumequeue"
        self.index = IndexReader(store)
        store.on_forget.append(self.forget_queues)

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def forget_queues(self) -> None:
        """Read the sizes and units of all queues again."""
        for queue in self.queues.values():
            queue.forget()
        self.queues.clear()

    def queue(self, topic: str, queue_id: int) -> ConsumeQueueReader:
        """Return one queue, whether it exists or not.

        Raises:
            ConfigError: *topic* can be no directory's name, or would lead out of the queues' directory.
        """
        if self.store.log_begin is None and self.queues_stamp.changed():
            # Topics have come or gone, or a rebuilt view has replaced this one: the open files may be removed ones.
            self.store.forget()
        found = self.queues.get((topic, queue_id))
        if found is None:
            reason = ConsumeQueueBuilder.refusal(topic)
            if reason is not None:
                raise ConfigError(reason, "Give a topic's name.")
            found = self.queues[topic, queue_id] = ConsumeQueueReader(self.store, topic, queue_id)
        return found

    def topics(self) -> dict[str, list[int]]:
        """Return the queue ids of every topic that has a consume queue."""
        found: dict[str, list[int]] = {}
        progress, deletions = self.store.view_progress("consume_queue"), self.store.deletions()
        for topic, queue_id, _ in queue_directories(self.store.directory / "consumequeue"):
            if deletions.get(topic, -1) < progress:
                found.setdefault(topic, []).append(queue_id)
        for topic, queue_id, _ in queue_directories(self.batch_queues):
            found.setdefault(topic, []).append(queue_id)
        return {topic: sorted(set(queue_ids)) for topic, queue_ids in found.items()}

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the consume queues of one topic, ascending; no other topic is looked at."""
        if ConsumeQueueBuilder.refusal(topic) is not None:
            return []
        if self.store.deletions().get(topic, -1) >= self.store.view_progress("consume_queue"):
            return []
        directories = (self.store.directory / "consumequeue" / topic, self.batch_queues / topic)
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
        # The writer's process has refused such a store when it opened it, and locks RocketMQ out.
        if self.store.log_begin is None:
            refuse_queues_in_rocksdb(self.store.directory)
        if not os.path.isdir(f"{self.batch_queues}/{topic}/{queue_id}"):
            return None
        # Here, because hardly any store has one.
        from reput.store.reader.batch_queue_reader import BatchQueueReader

        return BatchQueueReader(self.store, topic, queue_id)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int = 32,
        *,
        message_filter: MessageFilter | None = None,
        limits: TransferLimits | None = None,
    ) -> GetMessageResult:
        """Return up to *count_max* messages from *queue_offset* on.

        Args:
            message_filter: is asked with each unit, and then with each record. A `TagMessageFilter` is asked with the
                units alone: as in RocketMQ's store, a message counts if its tag's hash is one of the filter's.
            limits: None hands out what was asked for.

        Raises:
            DamagedStore: the bytes of a record are damaged, or the queue's files hold something other than units.
        """
        queue = self.queue(topic, queue_id)
        low, high = queue.range()
        if high == 0 and (batches := self.batch_queue(topic, queue_id)) is not None:
            return batches.get_message(queue_offset, count_max, message_filter, limits)
        log_min = queue.log_min
        status = empty_status(queue_offset, low, high)
        if status is not None and queue_offset >= high and (garbage := queue.units.garbage_behind(high)) is not None:
            raise queue.garbled(*garbage)
        if status is GetMessageStatus.OFFSET_TOO_SMALL and queue_offset >= 0:
            # Garbage can look as old as a unit whose record is gone.
            unit = queue.units.unit(queue_offset)
            if unit is None:
                queue.refuse_cut_short(queue_offset)
            else:
                queue.refuse_garbage([(queue_offset, unit)])
        if status is not None:
            following = {GetMessageStatus.OFFSET_TOO_SMALL: low, GetMessageStatus.OFFSET_OVERFLOW_BADLY: high}
            where = 0 if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE else following.get(status, queue_offset)
            return GetMessageResult(status, where, low, high)
        # A filter by tags has said all that it can when it has seen the unit.
        record_filter = None if isinstance(message_filter, TagMessageFilter) else message_filter
        file_units = queue.units.file_size // UNIT_SIZE
        end = min(high, queue_offset + max(UNIT_COUNT_MAX, count_max))
        if limits is not None:
            # RocketMQ hands out of one queue file at a time.
            end = min(end, queue_offset - queue_offset % file_units + file_units)
        codes = message_filter.codes if isinstance(message_filter, TagMessageFilter) else None
        kernel = self.store.kernel
        if kernel is not None and record_filter is None and count_max > 0 and self.store.agreed is None:
            count = end - queue_offset if codes is not None else min(end - queue_offset, count_max)
            plain = queue.read_plain(kernel, queue_offset, count, codes, count_max, limits)
            if plain is not None:
                return GetMessageResult(GetMessageStatus.FOUND, plain.end, low, high, plain)
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
            if codes is not None and (odd_at := find_unit_without_message(data)) >= 0:
                # It has no tag, but is not passed over for that.
                if odd_at == 0:
                    queue.read([(at, UNIT.unpack_from(data))], [], [])
                    at += 1
                    continue
                data = data[: odd_at * UNIT_SIZE]
            # Where limits end the read, the first one alone is searched.
            searched = count_max - count if limits is None else 1
            numbers = None if codes is None else find_tags_codes(data, codes, searched)
            if limits is None and record_filter is None and (numbers is not None or message_filter is None):
                # Nothing has to be asked of any unit that is passed over.
                chosen, at = choose(data, at, numbers, count_max - count)
            else:
                if numbers is not None and count == 0:
                    # The first message always fits, so the units before it need no check of the limits.
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
                    # The hash alone decides about most units, without a call.
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
                self.store.on_damage(error)
                raise
            if len(found) < len(chosen) and self.store.log().offset_min > log_min:
                # Retention removed a segment from the middle of this read: a new read finds the rest without a hole.
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
        return GetMessageResult(status, at, low, high, records_at(taken, places, body_ends))

    def get_appended(
        self,
        topic: str,
        queue_id: int,
        appended: Sequence[Place],
        count_max: int,
        codes: frozenset[int] | None,
        limits: TransferLimits,
    ) -> GetMessageResult | None:
        """Return messages that this process has just appended, whether the consume queue has them yet or not.

        Args:
            appended: queue offsets, which follow each other, and units of these messages.
            codes: tags codes of the wanted units; None: all.

        Returns:
            None: only the consume queue can tell, because RocketMQ keeps a batch queue here, or messages are gone.

        Raises:
            DamagedStore: the bytes of a record are damaged.
        """
        queue = self.queue(topic, queue_id)
        low, high = queue.range()
        if high == 0 and self.batch_queue(topic, queue_id) is not None:
            return None
        chosen: list[Place] = []
        size, at = 0, appended[0][0]
        last_at, last_unit = appended[-1]
        for queue_offset, unit in appended:
            is_full = limits.reached(len(chosen), size, unit[1], last_unit[0] - unit[0])
            if is_full or len(chosen) >= count_max:
                break
            at = queue_offset + 1
            if codes is None or unit[2] in codes:
                chosen.append((queue_offset, unit))
                size += unit[1]
        places: list[Place] = []
        body_ends: list[int] = []
        taken = queue.read(chosen, places, body_ends)
        if len(taken) < len(chosen):
            return None
        status = GetMessageStatus.FOUND if taken else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, at, low, max(high, last_at + 1), records_at(taken, places, body_ends))

    def keep_queue(self, topic: str, queue_id: int, found: GetMessageResult) -> None:
        """Tell the kernel where this queue begins and ends, as the last get has *found*, for gets without Python."""
        store = self.store
        view = store.view_words("consume_queue")
        queue = self.queues.get((topic, queue_id))
        if store.reads is None or view is None or queue is None or found.status is not GetMessageStatus.FOUND:
            return
        units = queue.units
        if units.known_progress < 0 or units.known_end != found.queue_offset_max:
            # The get has read a batch queue of RocketMQ's.
            return
        store.reads.keep_queue(
            view,
            topic,
            queue_id,
            units.known_progress,
            store.generations["consume_queue"],
            store.known_log_begin,
            queue.deleted_at,
            (found.queue_offset_min, found.queue_offset_max),
            units.file_size,
            units.prefix,
            queue.topic_fields[0],
        )

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


def choose(data: bytes, queue_offset: int, numbers: list[int] | None, count_max: int) -> tuple[list[Place], int]:
    """Return up to *count_max* places of the units in *data*, and the queue offset behind the last unit examined.

    Args:
        queue_offset: of the first unit.
        numbers: the first *count_max* wanted units, ascending; None: all are wanted.
    """
    if numbers is None:
        places = list(enumerate(UNIT.iter_unpack(data[: count_max * UNIT_SIZE]), queue_offset))
        return places, queue_offset + len(places)
    unpack = UNIT.unpack_from
    places = [(queue_offset + number, unpack(data, number * UNIT_SIZE)) for number in numbers]
    passed = numbers[-1] + 1 if len(numbers) >= count_max else len(data) // UNIT_SIZE
    return places, queue_offset + passed


def find_unit_without_message(units: bytes) -> int:
    """Return the number of the first unit that was not written, or is a pre-blank; -1 if there is none."""
    lively = units[LIVELY_BYTE_AT::UNIT_SIZE]
    number = lively.find(0)
    while number >= 0 and not units.startswith(WITHOUT_MESSAGE, number * UNIT_SIZE):
        number = lively.find(0, number + 1)
    return number


def matches_record(message_filter: MessageFilter, data: bytes) -> bool:
    """Ask a filter with a record at hand."""
    return message_filter.is_matched_by_commit_log(filled_properties(decode_record(data).properties) or None)
