"""FollowingAppender: appends the records of a master's log, byte for byte, and refuses all others.

    checked records ── append_copied ──▶ commit log, queue offsets, publisher
    messages ── append ──▶ StoreReadOnly

One thread copies. Dispatchers and readers get what they get of records that were put.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import numpy as np

from reput.errors import DamagedStore, StoreError
from reput.store.log.log_scan import LogScan
from reput.store.queue.consume_queue_builder import LEFT_OUT
from reput.store.record.layout import BLANK_SIZE_MIN
from reput.store.record.message import Message, PutMessageResult
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.log_walk import next_queue_offsets
from reput.store.state.followed_master import follows_refusal
from reput.store.state.topic_deletions import TopicDeletion
from reput.store.writer.appender import Appender
from reput.store.writer.message_preparer import MessagePreparer, Prepared
from reput.store.writer.publisher import AppendedRecords
from reput.store.writer.store_files import StoreFiles

__all__ = ["FollowingAppender"]


class FollowingAppender(Appender):
    """The only object that appends to the commit log of a store that follows a master."""

    def __init__(self, store_files: StoreFiles, preparer: MessagePreparer, ha_address: str) -> None:
        """*ha_address*: of the master, for the refusals."""
        super().__init__(store_files, preparer)
        self.ha_address = ha_address
        # Of its work, only the making of requests is used; it opens no file.
        self.scan = LogScan(store_files.directory, delay_history=store_files.delay_history)

    # Copying.

    def append_copied(self, columns: RecordColumns, blank: bytes) -> int:
        """Append the records of *columns*, which fill its data, and return where the log ends now.

        Args:
            columns: checked, of one segment, and next to the log's end.
            blank: the bytes between the log's end and the first record, if that begins a segment.

        Raises:
            DamagedStore: the records belong elsewhere.
            StoreFull: the disk has no room; nothing was changed.
            StoreReadOnly, StoreClosed: a force failed, or the store was closed.
        """
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            begin = int(columns.header["commit_log_offset"][0])
            if self.commit_log.appended + len(blank) != begin:
                raise DamagedStore(
                    f"records of the master do not continue the log: commit_log_offset={begin} "
                    f"appended={self.commit_log.appended} blank_size={len(blank)}"
                )
            # From the first byte on: the blank lies before the first record of a publication.
            before = self.commit_log.appended
            for part in self.between_restarts(columns):
                before = self.append_part(part, before, blank)
                blank = b""
        return before

    def append_part(self, columns: RecordColumns, before: int, blank: bytes) -> int:
        """Append and publish records between which no topic was deleted. Under the put lock."""
        commit_log = self.commit_log
        position = int(columns.position[0])
        data = bytes(columns.data[position : columns.end])
        begin = int(columns.header["commit_log_offset"][0])
        if begin % commit_log.segment_size + len(data) + BLANK_SIZE_MIN > commit_log.segment_size:
            # `room` would go to the next segment, with a blank that the master's log does not have.
            raise DamagedStore(
                f"the master's records leave no room for a blank: commit_log_offset={begin} size={len(data)} "
                f"segment_size={commit_log.segment_size}"
            )
        if blank:
            self.copy_blank(blank, len(data))
        at = commit_log.room(len(data))
        assert at == begin
        # Everything that can fail comes before the append: log, queue offsets and publication go together.
        requests = self.scan.requests_of(data, columns, begin)
        following = list(next_queue_offsets(columns))
        timestamp = max(self.store_timestamp, int(columns.store_timestamp.max()))
        run = np.frombuffer(data, np.uint8).copy()
        run[(columns.position - position)[:, None] + np.arange(4)] = 0
        end = commit_log.append_run(run.tobytes(), columns.header["record_size"].tolist())
        for topic, queue_id, next_offset in following:
            self.topic_table.queue_offsets.raise_to(topic, queue_id, next_offset)
        self.origin_head = None
        self.store_timestamp = timestamp
        self.ordinal += len(columns)
        self.publisher.publish(
            AppendedRecords(before, end, timestamp, self.ordinal, requests.queues, requests.rows, requests.texts)
        )
        return end

    def copy_blank(self, blank: bytes, size: int) -> None:
        """Fill the rest of the segment with the master's bytes, and begin the next one. Under the put lock."""
        commit_log = self.commit_log
        rest = blank[BLANK_SIZE_MIN:]
        if any(rest):
            # Before 4.9.1 RocketMQ left stale bytes there.
            at = commit_log.appended - commit_log.begin
            commit_log.reserve(commit_log.current, at + len(blank))
            commit_log.memory[at + BLANK_SIZE_MIN : at + len(blank)] = rest
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

    def admit(self, message: Message) -> tuple[Message, Prepared]:
        """Refuse it."""
        self.refuse_messages()

    def append_each(
        self, messages: Sequence[Message | None], batch: list[Prepared]
    ) -> Sequence[PutMessageResult | StoreError]:
        """Refuse each."""
        return [follows_refusal(self.directory, self.ha_address) for _ in batch]

    def delete_topic(self, topic: str) -> int:
        """Refuse it: the master's deletions count."""
        self.refuse_messages()


def between(columns: RecordColumns, first: int, end: int) -> RecordColumns:
    """Return the records from number *first* to before *end*; positions stay relative to the same data."""
    return columns.until(end).behind(first)
