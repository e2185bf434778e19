"""LogWalk: a commit log from one byte to its last, every byte accounted for.

The walk yields consecutive extents: records, blanks, damage, stale bytes. It never stops at a byte it cannot read: it
looks for the next record that passes every check - magic, sizes, CRC, its own offset - and then decides whether the log
continues there:

    queue offsets and store times continue  → the unreadable range is *damage*, and the log goes on behind it
    they do not                             → the log ends before the range, and what follows is *stale*: RocketMQ cuts
                                              without zeroing, so old records may lie behind the end
    there is no such record                 → the log ends before the range; bytes that are not zero are the *tail*:
                                              a record that was torn, or the rest of a stale one
    it may never have been forced,          → the log ends before the range, whatever follows: a power cut leaves any of
    and the power was cut                     the pages behind the last forced byte, so records may be whole behind one
                                              that is lost. That is the *tail*, too

If every record must carry its own CRC, records without one are damage, also at the log's end: no crash leaves them.

One walker, read-only. The same walk serves recovery, `reput check` and `reput dump`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from reput.errors import OffsetOutOfRange
from reput.filter.java_numbers import int_or, long_or
from reput.store.log.segment_reader import CHUNK_SIZE, SegmentReader
from reput.store.log.segments import Segment, Segments
from reput.store.queue.consume_queue_builder import LEFT_OUT
from reput.store.queue.queue_offsets import QueueOffsets
from reput.store.record.layout import (
    INNER_BATCH_FLAG,
    MAGIC_CODE_AT,
    MESSAGE_MAGIC_CODES,
    SIZE,
    SIZE_AND_MAGIC,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from reput.store.record.multi_dispatch import DISPATCH_NAMES, QUEUE_OFFSETS_NAME, own_queue_id
from reput.store.record.record import INNER_NUM
from reput.store.record.record_columns import RecordColumns, locate_records
from reput.store.recovery.recreated_queues import RecreatedQueue, Restart
from reput.store.state.topic_deletions import TopicDeletion

__all__ = ["Extent", "LogWalk", "ProvedRecords", "last_offsets", "next_queue_offsets"]

Array = np.ndarray[Any, Any]

MAGICS = tuple(magic.to_bytes(4, "big") for magic in MESSAGE_MAGIC_CODES)
# The first bytes that are searched for a record; each further read takes twice as many, up to `CHUNK_SIZE`.
FIRST_CHUNK_SIZE = 64 << 10
WITHOUT_CRC = "records carry no CRC of their own, which force_verify_prop_crc asks for"


class ProvedRecords(msgspec.Struct, frozen=True):
    """What another process has found about records: nothing contradicts them, and the views have them all.

    Attributes:
        count: how many records there are.
        index_begin, index_end: the place of their first entry in the index, and that of the one behind the last, as of
            `IndexCheck`.
        last_indexed: commit-log offset of the last record with entries in the index; -1: there is none.
        with_tags: the index has entries for tags.
    """

    count: int
    index_begin: tuple[int, int]
    index_end: tuple[int, int]
    last_indexed: int
    with_tags: bool


class Extent(msgspec.Struct, frozen=True):
    """A run of bytes of one kind: [begin, end) as commit-log offsets.

    Where the kind is "records" it has *columns*; of *proved* records, only those that tell about all of them.
    """

    kind: Literal["records", "blank", "damage", "stale", "tail"]
    begin: int
    end: int
    reason: str = ""
    columns: RecordColumns | None = None
    proved: ProvedRecords | None = None

    @property
    def record_count(self) -> int:
        """How many records there are."""
        if self.proved is not None:
            return self.proved.count
        return 0 if self.columns is None else len(self.columns)


class LogWalk(SegmentReader):
    """Walks the log of *segments* and tracks the state of the queues.

    Attributes:
        log_end: where the log ends so far: the next record goes there.
        record_count: records met.
        last_record_offset: where the last one begins, None before the first.
        queue_offsets, store_timestamp: as of `log_end`.
        restarts: the records with which queues began with 0 again. Later records belong to the recreated queue.
    """

    def __init__(
        self,
        segments: Segments,
        *,
        queue_offsets: QueueOffsets | None = None,
        store_timestamp: int = 0,
        record_count: int = 0,
        verify: bool = True,
        unclean: bool = False,
        deletions: Sequence[TopicDeletion | RecreatedQueue] = (),
        unforced_from: int | None = None,
        demand_crc: bool = False,
        finds_restarts: bool = True,
    ) -> None:
        """
        Args:
            queue_offsets, store_timestamp, record_count: the state of the log at the offset where the walk will begin.
            verify: compare every body with its CRC, and the whole record where it carries one.
            unclean: the last writer did not close the log, so that its last record may be torn in its topic (if it has
                no properties) or in its properties. Lengths and body CRC of such a record fit, so RocketMQ keeps it,
                with zeros in it.
            deletions: behind that offset, in their order; queue offsets begin anew there.
            unforced_from: the power was cut, and bytes from this commit-log offset on may never have been on disk; see
                `log_tail.find_unforced`. None: there are no such bytes.
            demand_crc: a record that does not carry a CRC of the whole record is invalid.
            finds_restarts: queues may begin anew without a known deletion, because RocketMQ may have written the log;
                see `recreated_queues`.
        """
        super().__init__(segments)
        self.queue_offsets = queue_offsets or QueueOffsets()
        self.store_timestamp = store_timestamp
        self.verify = verify
        self.unclean = unclean
        self.deletions = deque(deletions)
        self.unforced_from = unforced_from
        self.demand_crc = demand_crc
        self.finds_restarts = finds_restarts
        self.restarts: list[Restart] = []
        self.record_count = record_count
        self.last_record_offset: int | None = None
        self.log_end = segments.offset_min

    def walk(self, begin: int | None = None) -> Iterator[Extent]:
        """Yield the extents from *begin* on, which must be where a record or a blank begins."""
        at = self.log_end = self.segments.offset_min if begin is None else begin
        try:
            while (extent := self.next_extent(at)) is not None:
                if self.demand_crc:
                    extent = self.with_crcs(extent)
                for part in self.parts(extent):
                    if part.columns is not None:
                        self.learn(part)
                    yield part
                    if part.kind in ("stale", "tail"):
                        return
                at = extent.end
        finally:
            self.close()

    def walk_what_is_left(self, begin: int, until: int | None, trimmed: Callable[[int, int], None]) -> Iterator[Extent]:
        """Yield the extents from *begin* on, beside retention; bytes that it removes before they are read are left out.

        Args:
            until: the caller needs no bytes from there on; None: the log's end.
            trimmed: called with the begin and the end of each range left out.

        Raises:
            OffsetOutOfRange: a segment exists but cannot be opened.
        """
        at = begin
        while until is None or at < until:
            try:
                for extent in self.walk(at):
                    at = extent.end
                    yield extent
                return
            except OffsetOutOfRange:
                known = self.segments.begins
                self.segments.refresh()
                if at >= self.segments.offset_min:
                    if self.segments.begins == known:
                        raise
                    # A segment is gone from the middle, which the walk calls damage.
                    continue
                trimmed(at, self.segments.offset_min)
                at = self.segments.offset_min

    def with_crcs(self, extent: Extent) -> Extent:
        """Return the part of *extent* whose records carry their own CRC, or the damage of the records that do not."""
        begin = end = extent.begin
        while extent.columns is not None:
            lacks = extent.columns.without_crc()
            if not lacks[0]:
                break
            count = int(lacks.argmin()) if not lacks.all() else len(lacks)
            end = extent.begin + extent.columns.until(count).end
            if count < len(lacks):
                break
            # One range for all that follow each other, however much is read at once.
            following = self.next_extent(end)
            if following is None or following.columns is None:
                break
            extent = following
        if end > begin:
            self.log_end = end
            return Extent("damage", begin, end, WITHOUT_CRC)
        if extent.columns is not None and lacks.any():
            columns = extent.columns.until(int(lacks.argmax()))
            return Extent("records", extent.begin, extent.begin + columns.end, columns=columns)
        return extent

    def parts(self, extent: Extent) -> Iterator[Extent]:
        """Yield *extent*, up to a record that has zeros inside and is the log's last, or was not forced to disk."""
        columns = extent.columns
        if columns is not None and self.unforced_from is not None:
            torn = columns.first_torn_text(self.unforced_from)
            if torn is not None:
                torn_at = int(columns.header["commit_log_offset"][torn])
                if torn:
                    yield Extent("records", extent.begin, torn_at, columns=columns.until(torn))
                self.log_end = torn_at
                reason = "a record is torn in its topic or properties, behind what was known to be on disk"
                yield Extent("tail", torn_at, self.last_data(torn_at), reason)
                return
        if columns is None or not self.unclean or b"\0" not in texts_of_last(columns):
            yield extent
            return
        torn_at = int(columns.header["commit_log_offset"][-1])
        if len(columns) > 1:
            yield Extent("records", extent.begin, torn_at, columns=columns.until(len(columns) - 1))
        following = self.next_extent(extent.end)
        if following is None or following.kind in ("stale", "tail"):
            self.log_end = torn_at
            yield Extent("tail", torn_at, extent.end, "the last record is torn in its topic or properties")
        else:
            yield Extent("records", torn_at, extent.end, columns=self.one_record(torn_at))

    def next_extent(self, at: int) -> Extent | None:
        """Return what lies at *at*, None where the log's bytes end."""
        if self.segments.find(at) is not None:
            self.log_end = at
        found = self.readable_extent(at)
        return self.unreadable(at, found) if isinstance(found, str) else found

    def readable_extent(self, at: int, until: int | None = None) -> Extent | str:
        """Return the records or the blank at *at*, or the reason why there is neither.

        Args:
            until: all records up to there are read at once, and none behind; None: a piece of the log.

        Raises:
            OffsetOutOfRange: *at* is before the log's begin by now.
        """
        segment = self.segments.find(at)
        if segment is None:
            if at < self.segments.offset_min:
                raise OffsetOutOfRange(
                    f"the log was trimmed while it was read: commit_log_offset={at} "
                    f"offset_min={self.segments.offset_min}",
                    "Ask again.",
                )
            return "a segment is missing or was cut short"
        end = min(segment.end, segment.begin + segment.size)
        size = CHUNK_SIZE
        if until is not None:
            end = min(end, until)
            size = end - at
        while True:
            data = self.pread(segment, at, min(size, end - at))
            columns, stop = locate_records(data, at, segment.end - at)
            good = columns.first_bad_record() if self.verify else None
            if good is not None:
                columns = columns.until(good)
                if not len(columns):
                    return "a CRC does not match"
            if len(columns):
                return Extent("records", at, at + columns.end, columns=columns)
            if stop is None:
                return "the segment was cut short"
            if stop.kind == "blank":
                return Extent("blank", at, segment.end)
            if stop.kind == "damage" or stop.size > end - at:
                return stop.reason or f"the segment was cut short inside of a record: record_size={stop.size}"
            size = max(stop.size, size)

    def learn(self, extent: Extent) -> None:
        """Take over what the records of *extent* say of their queues."""
        columns = extent.columns
        assert columns is not None
        self.log_end = extent.end
        self.record_count += extent.record_count
        self.last_record_offset = int(columns.header["commit_log_offset"][-1])
        self.store_timestamp = max(self.store_timestamp, int(columns.store_timestamp.max()))
        while self.deletions and self.deletions[0].commit_log_offset < extent.end:
            deletion = self.deletions.popleft()
            offsets = columns.header["commit_log_offset"].astype(np.int64)
            before = int(np.searchsorted(offsets, deletion.commit_log_offset))
            self.learn_queue_offsets(columns.until(before))
            self.forget(deletion)
            columns = columns.behind(before)
        self.learn_queue_offsets(columns)

    def learn_queue_offsets(self, columns: RecordColumns) -> None:
        """Take over the queue offsets of records before, between or behind deletions."""
        if not len(columns):
            return
        if self.finds_restarts:
            self.find_restarts(columns)
        for topic, queue_id, next_offset in next_queue_offsets(columns):
            self.queue_offsets.raise_to(topic, queue_id, next_offset)

    def find_restarts(self, columns: RecordColumns) -> None:
        """Let the queues begin anew that have a record with the queue offset 0 behind others."""
        header = columns.header
        offsets = header["queue_offset"].astype(np.int64)
        sys_flag = header["sys_flag"].astype(np.int64)
        # Prepared and rolled back records say 0, too, and have no place in a queue.
        counted = (sys_flag & LEFT_OUT) == 0
        zeros = np.flatnonzero((offsets == 0) & counted)
        if not len(zeros):
            return
        queues, queue_index = columns.queues()
        for number in zeros.tolist():
            own = queue_index[number]
            topic, queue_id = queues[own][0].decode("utf-8", "replace"), queues[own][1]
            earlier = offsets[:number][(queue_index[:number] == own) & counted[:number]]
            next_before = self.queue_offsets.next_offset(topic, queue_id)
            if len(earlier):
                next_before = max(int(earlier[-1]) + 1, next_before)
            if next_before:
                begin = int(header["commit_log_offset"][number])
                end = begin + int(header["record_size"][number])
                self.restarts.append(Restart(topic, queue_id, begin, end, next_before))
                self.queue_offsets.forget_queue(topic, queue_id)

    def forget(self, deletion: TopicDeletion | RecreatedQueue) -> None:
        """Let what was deleted begin with 0 again."""
        if isinstance(deletion, TopicDeletion):
            self.queue_offsets.forget_topic(deletion.topic)
        else:
            self.queue_offsets.forget_queue(deletion.topic, deletion.queue_id)

    def delete_the_rest(self) -> None:
        """Take in the deletions at the end of the log, behind which nothing was put."""
        while self.deletions:
            self.forget(self.deletions.popleft())

    def unreadable(self, at: int, reason: str) -> Extent | None:
        """Judge the bytes from *at* on, which are no record."""
        if self.unforced_from is not None and at >= self.unforced_from:
            last = self.last_data(at)
            reason += ", behind what was known to be on disk when the power was cut"
            return Extent("tail", at, last, reason) if last > at else None
        found = self.find_record(at + 1)
        if found is None:
            last = self.last_data(at)
            return Extent("tail", at, last, reason) if last > at else None
        if self.goes_on(found):
            return Extent("damage", at, found, reason)
        return Extent("stale", at, self.last_data(at), reason)

    def goes_on(self, commit_log_offset: int) -> bool:
        """Tell whether the record there continues the queue offsets and store times met so far."""
        columns = self.one_record(commit_log_offset)
        assert columns is not None
        if int(columns.store_timestamp[0]) < self.store_timestamp:
            return False
        transaction = int(columns.header["sys_flag"][0]) & TRANSACTION_ROLLBACK_TYPE
        if transaction in (TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE):
            return True
        topic, queue_id = columns.topic(0), int(columns.header["queue_id"][0])
        if any(
            part.concerns(topic, queue_id) and part.commit_log_offset <= commit_log_offset for part in self.deletions
        ):
            return True
        return int(columns.header["queue_offset"][0]) >= self.queue_offsets.next_offset(topic, queue_id)

    def find_record(self, at: int) -> int | None:
        """Return the offset of the first whole record at or behind *at*, None if there is none in the log."""
        segment = self.segments.find(at) or self.segments.following(at)
        while segment is not None:
            begin = max(at, segment.begin)
            for candidate in self.magic_places(segment, begin):
                if self.one_record(candidate) is not None:
                    return candidate
            segment = self.segments.following(segment.begin + 1)
        return None

    def magic_places(self, segment: Segment, begin: int) -> Iterator[int]:
        """Yield where in *segment*, from *begin* on, a record's magic code says that one might begin. Skips holes."""
        at, end = begin, segment.begin + segment.size
        # The next record is usually near, and a search for a time or the cuts of a log look in many places.
        size = FIRST_CHUNK_SIZE
        while (at := self.open(segment).seek_data(at)) < end:
            data = self.pread(segment, at, size)
            size = min(2 * size, CHUNK_SIZE)
            for place in sorted(place for magic in MAGICS for place in places(data, magic)):
                if place >= MAGIC_CODE_AT:
                    yield at + place - MAGIC_CODE_AT
            if at + len(data) >= end:
                return
            at += len(data) - (SIZE_AND_MAGIC.size - 1)

    def one_record(self, commit_log_offset: int) -> RecordColumns | None:
        """Return the record at this offset as columns, None if it is not whole."""
        segment = self.segments.find(commit_log_offset)
        if segment is None:
            return None
        end = min(segment.end, segment.begin + segment.size)
        size = int.from_bytes(self.pread(segment, commit_log_offset, SIZE.size), "big")
        if size > end - commit_log_offset:
            return None
        data = self.pread(segment, commit_log_offset, size)
        columns, _ = locate_records(data, commit_log_offset, segment.end - commit_log_offset)
        return columns if len(columns) == 1 and columns.first_bad_record() is None else None


def texts_of_last(columns: RecordColumns) -> bytes:
    """Return topic and properties of the last record; text, in which a zero byte was never written."""
    last = len(columns) - 1
    topic_at = int(columns.topic_at[last])
    return bytes(columns.data[topic_at : topic_at + int(columns.topic_size[last])]) + columns.properties_bytes(last)


def places(data: bytes, pattern: bytes) -> Iterator[int]:
    """Yield each place of *pattern* in *data*."""
    at = data.find(pattern)
    while at >= 0:
        yield at
        at = data.find(pattern, at + 1)


def last_offsets(queue_index: Array, sys_flag: Array, offsets: Array) -> Iterator[tuple[int, int]]:
    """Yield (queue index, queue offset of its last record) of every queue, of one element a record."""
    transaction = sys_flag & TRANSACTION_ROLLBACK_TYPE
    counted = (transaction != TRANSACTION_PREPARED_TYPE) & (transaction != TRANSACTION_ROLLBACK_TYPE)
    # Queue offsets ascend within a queue, so the last record of each holds the highest; the last assignment counts.
    last = np.full(int(queue_index.max(initial=-1)) + 1, -1)
    last[queue_index[counted]] = offsets[counted]
    for index, offset in enumerate(last.tolist()):
        if offset >= 0:
            yield index, offset


def next_queue_offsets(columns: RecordColumns) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, queue id, next queue offset) of every queue that *columns* touches, multi-dispatch included."""
    header = columns.header
    sys_flag = header["sys_flag"].astype(np.int64)
    queues, queue_index = columns.queues()
    offsets = header["queue_offset"].astype(np.int64)
    for index, offset in last_offsets(queue_index, sys_flag, offsets):
        topic, queue_id = queues[index]
        yield topic.decode("utf-8", "replace"), queue_id, offset + 1
    for number in np.flatnonzero(sys_flag & INNER_BATCH_FLAG).tolist():
        count = int_or(columns.properties(number).get(INNER_NUM, "1"), -1)
        if count >= 0:
            yield columns.topic(number), int(header["queue_id"][number]), int(offsets[number]) + count
    if columns.may_have_property(DISPATCH_NAMES.encode()):
        for number in range(len(columns)):
            properties = columns.properties(number)
            names = properties.get(DISPATCH_NAMES, "").split(",")
            values = properties.get(QUEUE_OFFSETS_NAME, "").split(",")
            for name, value in zip(names, values, strict=False):
                if name and (queue_offset := long_or(value, -1)) >= 0:
                    yield name, own_queue_id(name, int(header["queue_id"][number])), queue_offset + 1
