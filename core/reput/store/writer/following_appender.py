"""FollowingAppender: appends the records of a master's log, byte for byte, and refuses all others.

    checked records ── append_copied ──▶ commit log, queue offsets, publisher
    messages ── append ──▶ StoreReadOnly

One thread copies. Dispatchers and readers get what they get of records that were put.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from reput.errors import DamagedStore, StoreError
from reput.store.log.log_scan import ROW_DTYPE, LogScan, PlainRows
from reput.store.queue.consume_queue_builder import LEFT_OUT
from reput.store.record.layout import BLANK_SIZE_MIN, INNER_BATCH_FLAG, TRANSACTION_PREPARED_TYPE
from reput.store.record.message import Message, PutMessageResult
from reput.store.record.record_columns import RecordColumns, locate_records
from reput.store.recovery.log_walk import last_offsets, next_queue_offsets
from reput.store.state.followed_master import follows_refusal
from reput.store.state.topic_deletions import TopicDeletion
from reput.store.writer.appender import Admitted, Appender
from reput.store.writer.copied_run import CopiedRun
from reput.store.writer.message_preparer import MessagePreparer, Prepared
from reput.store.writer.publisher import AppendedRecords
from reput.store.writer.store_files import StoreFiles
from reput_hooks import DispatchColumns
from reput_hooks.dispatch import ROW, ROW_FIELDS, ROW_SIZE

__all__ = ["FollowingAppender"]

# Of fewer records a loop finds the ends within a few µs, numpy within a hundred.
FEW_ROWS = 16
QUEUE_OFFSET, STORE_TIMESTAMP, QUEUE_INDEX, SYS_FLAG = 1, 3, 6, 7
assert [ROW_FIELDS[number][0] for number in (QUEUE_OFFSET, STORE_TIMESTAMP, QUEUE_INDEX, SYS_FLAG)] == [
    "queue_offset",
    "store_timestamp",
    "queue_index",
    "sys_flag",
]


class Ends(NamedTuple):
    """What some records change: topic, queue id and next queue offset of each queue, and their highest store time."""

    queues: Sequence[tuple[str, int, int]]
    store_timestamp: int


class FollowingAppender(Appender):
    """The only object that appends to the commit log of a store that follows a master."""

    def __init__(self, store_files: StoreFiles, preparer: MessagePreparer, ha_address: str) -> None:
        """*ha_address*: of the master, for the refusals."""
        super().__init__(store_files, preparer)
        self.ha_address = ha_address
        # Of its work, only the making of requests is used; it opens no file.
        self.scan = LogScan(store_files.directory, delay_history=store_files.delay_history, verify=True)

    # Copying.

    def append_copied(self, run: CopiedRun) -> int:
        """Append records that lie next to the log's end, and return where that is now.

        Raises:
            DamagedStore: the records belong elsewhere.
            StoreFull: the disk has no room; nothing was changed.
            StoreReadOnly, StoreClosed: a force failed, or the store was closed.
        """
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            # From the first byte on: the blank lies before the first record of a publication.
            before = self.commit_log.appended
            if before + len(run.blank) != run.begin:
                raise DamagedStore(
                    f"records of the master do not continue the log: commit_log_offset={run.begin} "
                    f"appended={before} blank_size={len(run.blank)}"
                )
            ends = self.usual_ends(run.plain)
            if ends is not None and run.plain is not None:
                return self.append_part(run.data, before, run.blank, run.plain.columns, ends)
            columns, blank = run.columns, run.blank
            if columns is None:
                columns, _ = locate_records(run.data, run.begin, len(run.data))
            for part in self.between_restarts(columns):
                requests = self.scan.requests(part)
                data = run.data[int(part.position[0]) : part.end]
                ends = Ends(list(next_queue_offsets(part)), int(part.store_timestamp.max()))
                before = self.append_part(data, before, blank, requests, ends)
                blank = b""
        return before

    def usual_ends(self, plain: PlainRows | None) -> Ends | None:
        """Return where the queues of records end whose rows the kernel has made; None: some have to be looked at.

        A queue offset 0 may show that the queue begins anew, and a batch that is stored as one message counts as many.
        """
        if plain is None or plain.with_properties != self.scan.needs_properties:
            return None
        queues, rows = plain.columns.queues, plain.columns.rows
        found = ends_of_few(rows) if len(rows) <= FEW_ROWS * ROW_SIZE else ends_of_many(rows)
        if found is None:
            return None
        last, timestamp = found
        return Ends([(*queues[index], offset + 1) for index, offset in last], timestamp)

    def append_part(
        self,
        data: memoryview,
        before: int,
        blank: bytes,
        requests: DispatchColumns,
        ends: Ends,
    ) -> int:
        """Append and publish records between which no topic was deleted. Under the put lock.

        *before*: where the log ended before the first publication that *blank* belongs to.
        """
        commit_log = self.commit_log
        begin = before + len(blank)
        if begin % commit_log.segment_size + len(data) + BLANK_SIZE_MIN > commit_log.segment_size:
            # `room` would go to the next segment, with a blank that the master's log does not have.
            raise DamagedStore(
                f"the master's records leave no room for a blank: commit_log_offset={begin} size={len(data)} "
                f"segment_size={commit_log.segment_size}"
            )
        if blank:
            self.copy_blank(blank, len(data))
        # Everything that can fail comes before the append: log, queue offsets and publication go together.
        at = commit_log.room(len(data))
        assert at == begin
        timestamp = max(self.store_timestamp, ends.store_timestamp)
        end = commit_log.append(data)
        for topic, queue_id, next_offset in ends.queues:
            self.topic_table.queue_offsets.raise_to(topic, queue_id, next_offset)
        self.origin_head = None
        self.store_timestamp = timestamp
        self.ordinal += len(requests)
        self.publisher.publish(
            AppendedRecords(before, end, timestamp, self.ordinal, requests.queues, requests.rows, requests.texts)
        )
        return end

    def copy_blank(self, blank: bytes, size: int) -> None:
        """Fill the rest of the segment with the master's bytes, and begin the next one. Under the put lock."""
        commit_log = self.commit_log
        rest = blank[BLANK_SIZE_MIN:]
        if any(rest):
            # Before 4.9.1 RocketMQ left stale bytes there. The log forces only what it has written itself.
            at = commit_log.appended - commit_log.begin + BLANK_SIZE_MIN
            commit_log.reserve(commit_log.current, at + len(rest))
            commit_log.current.mapping.write_forced(rest, at)
        commit_log.roll(size)

    def between_restarts(self, columns: RecordColumns) -> Iterable[RecordColumns]:
        """Yield the records, split where a queue begins anew because its topic was deleted on the master.

        The log does not record a deletion: only the queue offset 0 behind others shows it.
        """
        header = columns.header
        counted = (header["sys_flag"].astype(np.int64) & LEFT_OUT) == 0
        zeros = np.flatnonzero((header["queue_offset"] == 0) & counted)
        if not len(zeros):
            yield columns
            return
        done = 0
        for number in zeros.tolist():
            topic, queue_id = columns.topic(number), int(header["queue_id"][number])
            restarts = self.topic_table.queue_offsets.next_offset(topic, queue_id) > 0
            if number > done:
                same = [other for other in range(done, number) if int(header["queue_id"][other]) == queue_id]
                restarts = restarts or any(columns.topic(other) == topic and counted[other] for other in same)
            if not restarts:
                continue
            if number > done:
                yield between(columns, done, number)
            done = number
            self.restart_topic(topic)
        yield between(columns, done, len(columns))

    def restart_topic(self, topic: str) -> None:
        """Let the queues of *topic* begin anew: the master has deleted it. Under the put lock."""
        appended = self.commit_log.appended
        self.topic_deletions.add(TopicDeletion(self.clock.now_ms(), appended, topic))
        self.deleted_at[topic] = appended
        self.topic_table.forget_topic(topic)
        self.publisher.delete_topic(topic, appended, self.ordinal)

    # Refusing.

    def refuse_messages(self) -> NoReturn:
        """Refuse a message of this program's own.

        Raises:
            StoreReadOnly: always, or what makes every put impossible.
        """
        if self.closed or self.read_only_reason is not None:
            raise self.refusal()
        raise follows_refusal(self.directory, self.ha_address)

    def append(self, message: Message) -> PutMessageResult:
        """Refuse it."""
        self.refuse_messages()

    def append_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Refuse them."""
        self.refuse_messages()

    def append_prepared_batch(self, batch: list[Prepared]) -> list[PutMessageResult]:
        """Refuse them."""
        self.refuse_messages()

    def admit(self, message: Message) -> tuple[Message, Admitted]:
        """Refuse it."""
        self.refuse_messages()

    def append_each(
        self, messages: Sequence[Message | None], admitted: list[Admitted]
    ) -> Sequence[PutMessageResult | StoreError]:
        """Refuse each."""
        return [follows_refusal(self.directory, self.ha_address) for _ in admitted]

    def delete_topic(self, topic: str) -> int:
        """Refuse it: the master's deletions count."""
        self.refuse_messages()


def between(columns: RecordColumns, first: int, end: int) -> RecordColumns:
    """Return the records from number *first* to before *end*; positions stay relative to the same data."""
    return columns.until(end).behind(first)


def ends_of_few(rows: bytes) -> tuple[Iterable[tuple[int, int]], int] | None:
    """Return (queue index, queue offset of its last record) of each queue, and the highest store time of all records.

    None: a queue offset is 0, or a batch is stored as one message.
    """
    last: dict[int, int] = {}
    timestamp = 0
    for row in ROW.iter_unpack(rows):
        sys_flag, queue_offset = row[SYS_FLAG], row[QUEUE_OFFSET]
        if queue_offset <= 0 or sys_flag & INNER_BATCH_FLAG:
            return None
        if not sys_flag & TRANSACTION_PREPARED_TYPE:
            last[row[QUEUE_INDEX]] = queue_offset
        timestamp = max(timestamp, row[STORE_TIMESTAMP])
    return last.items(), timestamp


def ends_of_many(rows: bytes) -> tuple[Iterable[tuple[int, int]], int] | None:
    """As `ends_of_few`."""
    array = np.frombuffer(rows, ROW_DTYPE)
    is_usual = (array["queue_offset"] > 0) & ((array["sys_flag"] & INNER_BATCH_FLAG) == 0)
    if not is_usual.all():
        return None
    last = last_offsets(array["queue_index"], array["sys_flag"], array["queue_offset"])
    return last, int(array["store_timestamp"].max())
