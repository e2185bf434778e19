"""ConsumeQueueReader: the records that the units of one consume queue lead to."""

from __future__ import annotations

import contextlib
import os
import sys
from bisect import bisect_left
from collections.abc import Sequence
from struct import error as StructError

from isal.isal_zlib import crc32

from reput.errors import OffsetOutOfRange
from reput.filter import MessageFilter
from reput.kernel import Kernel
from reput.store.disk.file_name import file_name
from reput.store.ext.consume_queue_ext import ConsumeQueueExt, is_address
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT_SIZE, Unit, is_garbage
from reput.store.queue.nearest_offset import QueueFile
from reput.store.reader.consume_queue_bounds import RUN_SIZE_MAX, ConsumeQueueBounds
from reput.store.reader.readable_store import NOT_ITS_CRC, ReadableStore
from reput.store.reader.results import KernelRecords, Place, TransferLimits
from reput.store.reader.unit_damage import log_damage, refuse_blanks, require_reason
from reput.store.record.layout import (
    BODY_AT,
    BODY_CRC_AND_SYS_FLAG,
    BODY_SIZE,
    BORN_HOST_V6_FLAG,
    HOST_FLAGS_MASK,
    HOST_FLAGS_SHIFT,
    MESSAGE_MAGIC_CODE,
    PROPERTIES_SIZE,
    QUEUE_PLACE,
    QUEUE_PLACE_V4,
    STORE_HOST_V6_FLAG,
)

__all__ = ["ConsumeQueueReader"]

# A commit-log offset that no unit has, whatever is in it.
NOWHERE = -(1 << 64)
HOSTS_V6_FLAGS = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG
COPIED_BODY_SIZE_MAX = 4096


class ConsumeQueueReader(ConsumeQueueBounds):
    """Reads one consume queue."""

    def __init__(self, store: ReadableStore, topic: str, queue_id: int) -> None:
        file_size, ext_file_size = store.queue_file_sizes()
        super().__init__(store, topic, queue_id, file_size)
        ext_directory = store.directory / "consumequeue_ext" / topic / str(queue_id)
        self.ext = ConsumeQueueExt(ext_directory, ext_file_size, store.files)

    def forget(self) -> None:
        """Take nothing for granted that was read so far, in the middle of a read, too."""
        super().forget()
        _, self.ext.file_size = self.store.queue_file_sizes()

    def passes_over_body(self, record: bytes) -> bool:
        """Return False for a record whose body does not match its CRC, if an operator has accepted that.

        Raises:
            DamagedStore: no operator has.
        """
        _, _, _, queue_offset, commit_log_offset, _ = QUEUE_PLACE.unpack_from(record)
        if self.store.is_accepted(commit_log_offset):
            return False
        raise log_damage(self, NOT_ITS_CRC, queue_offset, commit_log_offset, len(record))

    def may_be_wanted(self, unit: Unit, message_filter: MessageFilter) -> bool:
        """Apply a filter to the queue's unit of a message. A lost ext unit counts as unknown."""
        tags_code = unit[2]
        if not is_address(tags_code):
            return message_filter.is_matched_by_consume_queue(tags_code)
        ext = self.ext.get(tags_code)
        if ext is None:
            return message_filter.is_matched_by_consume_queue(None)
        return message_filter.is_matched_by_consume_queue(ext.tags_code, ext.store_timestamp, ext.filter_bit_map)

    def read_plain(
        self,
        kernel: Kernel,
        queue_offset: int,
        count: int,
        codes: frozenset[int] | None,
        count_max: int,
        limits: TransferLimits | None,
    ) -> KernelRecords | None:
        """Return the records of *count* units from *queue_offset* on; None: `read` has to look at them.

        They are plain if all of these units are in one file, and each that is wanted leads to a whole record of this
        queue, all in the page cache.

        Args:
            codes: tags codes of the wanted units; None: all.
            count_max: number of records.
        """
        store, place = self.store, self.units.place(queue_offset, count)
        if place is None or store.segments is None:
            return None
        log_min, bytes_max = max(self.log_min, self.deleted_at), sys.maxsize
        if limits is not None:
            # Older records have limits of their own.
            log_min = max(log_min, self.units.known_progress - limits.memory_size)
            count_max, bytes_max = min(count_max, limits.count_in_memory), max(limits.bytes_in_memory, 0)
        found = kernel.read_queue(
            store.files.descriptors,
            *place,
            count,
            queue_offset,
            codes,
            max(count_max, 1),
            bytes_max,
            log_min,
            store.own_from,
            self.queue_id,
            self.topic_fields[0],
            store.segments.find,
        )
        return None if found is None else KernelRecords.of(found)

    def read(self, chosen: Sequence[Place], places: list[Place], body_ends: list[int]) -> list[bytes]:
        """Return the bytes of the records of units.

        Neighbours are read at once. Records that the log no longer has are missing.

        Args:
            places, body_ends: of neighbours that were all checked as a whole and have hosts of IPv4, the places, and
                where in each one's bytes its body ends, are appended to them.

        Raises:
            DamagedStore: one of *chosen* leads to no record of this queue, and neither retention, nor the deletion of
                the topic, nor an operator has accounted for that; or it says that the log has lost a message that it
                has.
        """
        records: list[bytes] = []
        missing: list[Place] = []
        blanks: list[int] = []
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
                    else:
                        blanks.append(place[0])
                    end = NOWHERE
                    continue
                begin = offset
            run.append(place)
            end = offset + size
        if run:
            missing += self.read_run(run, begin, end, records, places, body_ends)
        if blanks:
            refuse_blanks(self, blanks)
        if missing and require_reason(self, missing):
            del places[checked:], body_ends[checked:]
            low, high = self.range()
            units = ((queue_offset, self.units.unit(queue_offset)) for queue_offset, _ in chosen)
            there = [(place, unit) for place, unit in units if unit is not None and low <= place < high]
            return self.read(there, places, body_ends)
        return records

    def read_run(
        self, run: list[Place], begin: int, end: int, records: list[bytes], places: list[Place], body_ends: list[int]
    ) -> list[Place]:
        """Append the bytes of records that lie one behind the other in [begin, end), and what `read` promises.

        Return the places that lead to none.
        """
        missing: list[Place] = []
        agreed = self.store.agreed
        try:
            if agreed is not None and len(run) == 1 and agreed[:3] == (self, *run[0]):
                # A reader that follows a queue wants the record that confirmed the queue's end.
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
        # Size of a record without body and properties.
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
            # A unit of another kind, or of another queue.
            if self.is_record(data, at, queue_offset, unit):
                append(data[at:following])
            else:
                missing.append((queue_offset, unit))
            at = following
        if begin < self.store.own_from:
            taken = records[before:]
            records[before:] = [record for record in taken if body_fits(record) or self.passes_over_body(record)]
        if len(ends) == len(run) == len(records) - before:
            places += run
            body_ends += ends
        return missing

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
        """Search units whose records were not all found for one that was never written.

        Raises:
            DamagedStore: there is such a unit.
        """
        for queue_offset, unit in chosen:
            if is_garbage(unit):
                raise self.garbled(queue_offset, f"no unit stands there: commit_log_offset={unit[0]} size={unit[1]}")

    def first_from(self, commit_log_offset: int) -> int:
        """Return the queue offset of the first message at or after *commit_log_offset*, or of the queue's next one.

        Raises:
            DamagedStore: the queue has lost a unit that is looked at.
        """

        def begin_of(queue_offset: int) -> int:
            unit = self.units.unit(queue_offset)
            if unit is None:
                self.refuse_missing_file(queue_offset)
                # Retention has removed it meanwhile.
                return -1
            return unit[0]

        low, high = self.range()
        return low + bisect_left(range(low, high), commit_log_offset, key=begin_of)

    def written_files(self, end: int) -> list[QueueFile]:
        """Return the files that hold units before *end*, and when each was written last."""
        per_file = self.units.file_size // UNIT_SIZE
        files = []
        for begin in self.units.begins():
            first = begin // UNIT_SIZE
            if first < end:
                # Retention, or the deletion of the topic, may remove a file meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    changed_ns = os.stat(self.units.prefix + file_name(begin)).st_mtime_ns
                    files.append(QueueFile(first, min(first + per_file, end), changed_ns // 1_000_000))
        return files

    def known_store_timestamp(self, queue_offset: int) -> int | None:
        """Return the store time of a message in ms, None if the log no longer has it."""
        unit = self.units.unit(queue_offset)
        if unit is None or unit[1] == PRE_BLANK_SIZE or unit[0] < self.log_min:
            return None
        record = self.store.record_at(unit[0])
        return None if record is None else record.store_timestamp

    def store_timestamp(self, queue_offset: int) -> int:
        """Return the store time of a message in ms; for a lost message, that of the one before it, or 0."""
        while (unit := self.units.unit(queue_offset)) is not None and unit[1] == PRE_BLANK_SIZE and queue_offset:
            queue_offset -= 1
        if unit is None or unit[1] == PRE_BLANK_SIZE:
            return 0
        record = self.store.record_at(unit[0])
        return 0 if record is None else record.store_timestamp


def body_fits(record: bytes) -> bool:
    """Tell whether the body of a whole record matches the record's CRC; an empty body always does."""
    crc, sys_flag = BODY_CRC_AND_SYS_FLAG.unpack_from(record)
    body_at = BODY_AT[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
    (size,) = BODY_SIZE.unpack_from(record, body_at - BODY_SIZE.size)
    # Copying a small body costs less than a view of it.
    whole = record if size <= COPIED_BODY_SIZE_MAX else memoryview(record)
    found: int = crc32(whole[body_at : body_at + size])
    return bool(size == 0 or found & 0x7FFFFFFF == crc)
