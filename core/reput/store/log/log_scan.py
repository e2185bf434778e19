"""LogScan: the commit log read in bulk, as the columns that dispatchers get.

One reader, its own descriptors, read-only. The writer's ring hands out the same columns for fresh records. Readers that
start late, readers that the ring has lapped, and rebuilds use this scan. The kernel, where it is installed, makes the
rows of plain records; numpy makes those of all others.

Source of the requests: RocketMQ store, CommitLog.checkMessageAndReturnSize and DispatchRequest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from reput.errors import DamagedStore
from reput.kernel import kernel
from reput.store.log.segment_reader import CHUNK_SIZE, SegmentReader
from reput.store.log.segments import Segments
from reput.store.record.byte_runs import WORD_SIZE, join_runs
from reput.store.record.delay_level import SCHEDULE_TOPIC, DelayHistory
from reput.store.record.record import decode_record
from reput.store.record.record_columns import RecordColumns, locate_records, take
from reput.store.record.string_hashes import StringHashes
from reput_hooks import DispatchColumns, Record
from reput_hooks.dispatch import ROW_FIELDS

__all__ = ["ROW_DTYPE", "LogScan", "PlainRows", "ScannedRange"]

ROW_DTYPE = np.dtype(list(ROW_FIELDS))
PROPERTY_END = 2
NAME_END = 1
# Code of a name's last four letters.
TAIL_BITS = 32

Array = np.ndarray[Any, Any]


class ScannedRange(msgspec.Struct, frozen=True):
    """Result of one call of `LogScan.scan`: *columns* up to *end*; *store_timestamp* of the last record, 0 if none."""

    columns: DispatchColumns
    end: int
    store_timestamp: int


class PlainRows(msgspec.Struct, frozen=True):
    """What the kernel makes of the plain records at the begin of some bytes.

    Attributes:
        columns: what dispatchers get; *with_properties*: with the raw properties.
        size: bytes of the records.
        store_timestamp: of the last one.
    """

    columns: DispatchColumns
    size: int
    store_timestamp: int
    with_properties: bool


class LogScan:
    """Reads whole records of a store directory in commit-log order. Use it from one thread at a time."""

    def __init__(
        self,
        store_directory: Path,
        *,
        needs_properties: bool = False,
        segment_size: int | None = None,
        delay_history: DelayHistory | None = None,
        passed_over: Sequence[tuple[int, int]] = (),
        verify: bool = False,
    ) -> None:
        """
        Args:
            passed_over: damaged ranges (from, until) that the operator has accepted, ascending.
            verify: compare every body with its CRC, and the whole record where it carries one.

        Raises:
            ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
        """
        self.segments = Segments(store_directory / "commitlog", segment_size)
        self.needs_properties = needs_properties
        self.delay_history = delay_history or DelayHistory()
        self.passed_over = dict(passed_over)
        self.verify = verify
        self.reader = SegmentReader(self.segments)
        self.hashes = StringHashes()
        self.kernel = kernel()

    @property
    def offset_min(self) -> int:
        """Commit-log offset of the first byte that is still there."""
        return self.segments.offset_min

    def close(self) -> None:
        """Release the open segment."""
        self.reader.close()

    def scan(self, commit_log_offset: int, until: int, size_max: int = CHUNK_SIZE) -> ScannedRange:
        """Return the requests of whole records from *commit_log_offset* on, blanks passed over, never beyond *until*.

        *size_max* bounds the bytes read, but one record is always taken whole. The end is the commit-log offset to go
        on from; it equals *commit_log_offset* only if that is *until*.

        Raises:
            DamagedStore: there is no record at an offset below *until*; the text names it.
            OffsetOutOfRange: the log does not reach back, or forward, to *commit_log_offset*.
        """
        if commit_log_offset >= until:
            return ScannedRange(DispatchColumns([], b"", b""), commit_log_offset, 0)
        if commit_log_offset in self.passed_over:
            return ScannedRange(DispatchColumns([], b"", b""), min(self.passed_over[commit_log_offset], until), 0)
        plain = self.plain_rows(commit_log_offset, until, size_max)
        if plain is not None:
            return plain
        columns, end = self.locate(commit_log_offset, until, size_max)
        timestamp = int(columns.store_timestamp[-1]) if len(columns) else 0
        return ScannedRange(self.requests(columns), end, timestamp)

    def plain_rows(self, commit_log_offset: int, until: int, size_max: int) -> ScannedRange | None:
        """Return the requests that the kernel makes of the records from *commit_log_offset* on.

        They end before the first record that is not plain. None: it is the first one, or there is no kernel.
        """
        if self.kernel is None:
            return None
        segment = self.segments.holding(commit_log_offset)
        end = min(until, segment.begin + segment.size, segment.end)
        data = self.reader.pread(segment, commit_log_offset, min(size_max, end - commit_log_offset))
        found = self.rows_of_plain(data, commit_log_offset)
        if found is None:
            return None
        return ScannedRange(found.columns, commit_log_offset + found.size, found.store_timestamp)

    def rows_of_plain(self, data: bytes | memoryview, commit_log_offset: int) -> PlainRows | None:
        """Return what the kernel makes of the records that *data* begins with, up to the first one that is not plain.

        None: it is the first one, or there is no kernel.
        """
        if self.kernel is None:
            return None
        with_properties = self.needs_properties
        found = self.kernel.log_rows(data, commit_log_offset, self.verify, with_properties)
        if found is None:
            return None
        queues, rows, texts, size, store_timestamp = found
        return PlainRows(DispatchColumns(queues, rows, texts), size, store_timestamp, with_properties)

    def locate(self, commit_log_offset: int, until: int, size_max: int = CHUNK_SIZE) -> tuple[RecordColumns, int]:
        """Return the records from *commit_log_offset* on, as `scan` does, and the offset where to continue."""
        segment = self.segments.holding(commit_log_offset)
        readable = min(until, segment.begin + segment.size, segment.end) - commit_log_offset
        size = min(size_max, readable)
        while True:
            columns, stop = locate_records(
                self.reader.pread(segment, commit_log_offset, size), commit_log_offset, segment.end - commit_log_offset
            )
            if self.verify:
                columns = verified(columns)
            if len(columns) or stop is None:
                return columns, commit_log_offset + columns.end
            if stop.kind == "blank":
                return columns, segment.end
            if stop.kind == "damage" or stop.size > readable:
                reason = stop.reason or f"the segment ends inside of a record: readable={readable} size={stop.size}"
                raise DamagedStore(f"{reason} commit_log_offset={commit_log_offset}")
            size = min(max(stop.size, size_max), readable)

    def pieces(self, begin: int, end: int) -> Iterator[RecordColumns]:
        """Yield the records in [begin, end) that the log has, a piece at a time; accepted damage is passed over.

        Raises:
            As `locate`.
        """
        at = max(begin, self.offset_min)
        while at < end:
            if at in self.passed_over:
                at = self.passed_over[at]
                continue
            columns, at = self.locate(at, end)
            yield columns

    def read(self, commit_log_offset: int, record_size: int) -> Record:
        """Return one record.

        Raises:
            DamagedStore: there is no such record.
            OffsetOutOfRange: the log does not hold these bytes.
        """
        return decode_record(self.read_bytes(commit_log_offset, record_size))

    def read_bytes(self, commit_log_offset: int, size: int) -> bytes:
        """Return up to *size* bytes of one segment.

        Raises:
            DamagedStore: the disk cannot read them.
            OffsetOutOfRange: no segment holds the first of them.
        """
        return self.reader.pread(self.segments.holding(commit_log_offset), commit_log_offset, size)

    def requests(self, columns: RecordColumns) -> DispatchColumns:
        """Return what dispatchers get of *columns*."""
        count = len(columns)
        rows = np.zeros(count, ROW_DTYPE)
        if not count:
            return DispatchColumns([], b"", b"")
        header = columns.header
        rows["commit_log_offset"] = header["commit_log_offset"]
        rows["queue_offset"] = header["queue_offset"]
        rows["store_timestamp"] = columns.store_timestamp
        rows["prepared_transaction_offset"] = columns.prepared_transaction_offset
        rows["record_size"] = header["record_size"]
        rows["sys_flag"] = header["sys_flag"]

        stored_queues, rows["queue_index"] = columns.queues()
        topics = {topic: topic.decode("utf-8", "replace") for topic, _ in stored_queues}
        queues = [(topics[topic], queue_id) for topic, queue_id in stored_queues]

        found = FoundProperties(columns)
        tags_at, tags_size = found.value(b"TAGS")
        rows["tags_code"] = self.tags_codes(found, tags_at, tags_size)
        self.set_deliver_times(rows, queues, found)

        uniq_at, uniq_size = found.value(b"UNIQ_KEY")
        keys_at, keys_size = found.value(b"KEYS")
        uniq_key_size = np.where(uniq_size > 0, uniq_size, -1)
        # RocketMQ's request has empty keys without properties, none where there are properties but no KEYS.
        rows["uniq_key_size"] = uniq_key_size
        rows["keys_size"] = np.where(keys_size > 0, keys_size, np.where(columns.properties_size == 0, 0, -1))
        multi = self.multi_dispatch(found)
        rows["multi_dispatch_size"] = -1
        rows["properties_size"] = columns.properties_size if self.needs_properties else -1
        rows["texts_size"] = uniq_size + keys_size + tags_size
        if multi or self.needs_properties:
            pieces = []
            for number in range(count):
                text = found.text(uniq_at, uniq_size, number) + found.text(keys_at, keys_size, number)
                if number in multi:
                    rows["multi_dispatch_size"][number] = len(multi[number])
                    text += multi[number]
                if self.needs_properties:
                    text += columns.properties_bytes(number)
                text += found.text(tags_at, tags_size, number)
                rows["texts_size"][number] = len(text)
                pieces.append(text)
            texts = b"".join(pieces)
        else:
            at = np.column_stack((uniq_at, keys_at, tags_at))
            size = np.column_stack((uniq_size, keys_size, tags_size))
            joined, _ = join_runs(found.bytes, at.ravel(), size.ravel())
            texts = joined[WORD_SIZE:].tobytes()
        return DispatchColumns(queues, rows.tobytes(), texts)

    def tags_codes(self, found: FoundProperties, at: Array, size: Array) -> Array:
        """Return the hash of each record's tags, 0 without tags; *at* and *size* say where they lie."""
        joined, begin = join_runs(found.bytes, at, size)
        hashes, _ = self.hashes.find(joined[WORD_SIZE:].tobytes(), begin - WORD_SIZE, size)
        return hashes.view(np.int32)

    def set_deliver_times(self, rows: Array, queues: Sequence[tuple[str, int]], found: FoundProperties) -> None:
        """A delayed record's tags code is the time of its delivery."""
        delayed = [number for number, (topic, _) in enumerate(queues) if topic == SCHEDULE_TOPIC]
        if not delayed:
            return
        at, size = found.value(b"DELAY")
        for number in np.flatnonzero(np.isin(rows["queue_index"], delayed) & (size > 0)).tolist():
            level = found.text(at, size, number).decode("utf-8", "replace")
            levels = self.delay_history.at(int(rows["commit_log_offset"][number]))
            due = levels.deliver_timestamp(level, int(rows["store_timestamp"][number]))
            if due is not None:
                rows["tags_code"][number] = due

    def multi_dispatch(self, found: FoundProperties) -> dict[int, bytes]:
        """Return the further queues of the records that have some: ``names 0x02 offsets``."""
        names_at, names_size = found.value(b"INNER_MULTI_DISPATCH")
        offsets_at, offsets_size = found.value(b"INNER_MULTI_QUEUE_OFFSET")
        return {
            number: found.text(names_at, names_size, number) + b"\x02" + found.text(offsets_at, offsets_size, number)
            for number in np.flatnonzero((names_size > 0) & (offsets_size > 0)).tolist()
        }


def verified(columns: RecordColumns) -> RecordColumns:
    """Return the records before the first one whose CRC does not match.

    Raises:
        DamagedStore: the very first record does not match.
    """
    bad = columns.first_bad_record()
    if bad == 0:
        begin = int(columns.header["commit_log_offset"][0])
        raise DamagedStore(f"a CRC does not match: from={begin} until={begin + int(columns.header['record_size'][0])}")
    return columns if bad is None else columns.until(bad)


class FoundProperties:
    """Single properties of many records, found all at once.

    ``bytes`` is every properties string behind a separator, so that each name in it follows one and each value ends
    at one. A name counts only between a separator and the first 0x01 behind it, as in RocketMQ's reader; a property
    with an empty value does not count, and of two equal names the later holds.
    """

    def __init__(self, columns: RecordColumns) -> None:
        self.record_count = len(columns)
        # A run without bytes behind the last brings its separator.
        joined, starts = join_runs(
            np.frombuffer(columns.data, np.uint8),
            np.append(columns.properties_at, 0),
            np.append(columns.properties_size, 0),
            gap=1,
        )
        joined[:WORD_SIZE] = joined[starts - 1] = PROPERTY_END
        self.bytes = joined
        # Below 1 the difference wraps.
        marks = np.flatnonzero(joined - np.uint8(NAME_END) <= PROPERTY_END - NAME_END)
        is_end = joined[marks] == PROPERTY_END
        before = np.flatnonzero(is_end[:-1] & ~is_end[1:])
        name_end = marks[before + 1]
        value_end = marks[is_end][np.cumsum(is_end)[before]]
        filled = value_end - name_end > 1
        before, self.name_end = before[filled], name_end[filled]
        self.value_size = value_end[filled] - self.name_end - 1
        # Words compare faster than bytes: its size and its last four letters tell a name from nearly all others.
        words = np.ndarray((len(joined) - 3,), np.dtype("<u4"), joined, strides=(1,))
        self.name_number = (self.name_end - marks[before] - 1 << TAIL_BITS) + words[self.name_end - 4]
        self.record = np.searchsorted(starts, self.name_end, "right") - 1

    def value(self, name: bytes) -> tuple[Array, Array]:
        """Return where each record's value of *name* lies in ``bytes``, and its size; size 0 where it has none."""
        at = np.zeros(self.record_count, np.int64)
        size = np.zeros(self.record_count, np.int64)
        tail = int.from_bytes(name[-4:], "little")
        found = np.flatnonzero(self.name_number == (len(name) << TAIL_BITS) + tail)
        if not len(found):
            return at, size
        letters = take(self.bytes, self.name_end[found] - len(name), len(name) - 4)
        found = found[(letters == np.frombuffer(name[:-4], np.uint8)).all(axis=1)]
        record = self.record[found]
        at[record] = self.name_end[found] + 1
        size[record] = self.value_size[found]
        return at, size

    def text(self, at: Array, size: Array, number: int) -> bytes:
        """Return the value of record *number*; *at* and *size* are those that `value` returned."""
        return bytes(self.bytes[at[number] : at[number] + size[number]])
