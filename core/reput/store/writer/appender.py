"""Appender: puts messages into the log, under the put lock, and publishes them.

    message ── prepare ──▶ EncodedMessage ── put lock: room, store time, queue offset ──▶ record and row
                                                                                          │       │
                                                                          commit log ◀────┘       └────▶ publisher

Any number of threads may put. A put never waits for a view here, nor for the disk: with SYNC_FLUSH its caller does.

Source: RocketMQ store, CommitLog.asyncPutMessage and asyncPutMessages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import setitem
from typing import TypeAlias

import msgspec

from reput.errors import StoreBusy, StoreError, StoreFull, StoreReadOnly
from reput.kernel import AdmittedMessage
from reput.store.disk.shortages import tell_store_error
from reput.store.log.commit_log import take_all
from reput.store.log.page_cache_watch import PageCacheWatch
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus, check_topic
from reput.store.record.message_encoder import (
    EncodedMessage,
    RecordHead,
    encode_message,
    encode_run,
    with_further_offsets,
)
from reput.store.record.multi_dispatch import QUEUE_OFFSETS_NAME
from reput.store.record.record import decode_record
from reput.store.state.closed_store import closed_store
from reput.store.state.topic_deletions import TopicDeletion, last_deletions
from reput.store.writer.kernel_puts import kernel_puts
from reput.store.writer.message_preparer import MessagePreparer, Prepared
from reput.store.writer.publisher import AppendedRecords, Publisher
from reput.store.writer.put_statistics import PutStatistics
from reput.store.writer.store_files import StoreFiles
from reput_hooks import Record

__all__ = ["Admitted", "Appender"]

# Looked up once: reading an enum's attribute costs as much as making the result that holds it.
PUT_OK = PutMessageStatus.PUT_OK

# A message that is checked, with its queue: encoded, or for the kernel.
Admitted: TypeAlias = Prepared | AdmittedMessage


class Appender:
    """The only object that appends to a commit log.

    Attributes:
        publisher: receives everything appended. Changed under the put lock.
        ordinal: records in the log since its birth.
        store_timestamp: of the last record, ms.
        read_only_reason, disk_full_reason: why puts are refused: for good, or until the disk has room again.
        forked_from: in a forked child, the process that opened the store.
        kernel: the compiled puts; None: all takes the Python path.
        deleted_at: topic → commit-log offset of its last deletion.
        on_delayed: called with the delay level and the deliver time (ms) of each delayed message, under the put lock.
    """

    # The kernel reads and changes the slots at each put.
    __slots__ = (
        "__dict__",
        "closed",
        "disk_full_reason",
        "ordinal",
        "origin_head",
        "publisher",
        "read_only_reason",
        "store_timestamp",
    )

    def __init__(self, store_files: StoreFiles, preparer: MessagePreparer) -> None:
        self.directory = store_files.directory
        self.settings = settings = store_files.settings
        self.commit_log = store_files.commit_log
        self.preparer = preparer
        self.prepare = preparer.prepare
        self.topic_table = preparer.topic_table
        self.put_lock = self.topic_table.put_lock
        self.topic_deletions = store_files.topic_deletions
        self.deleted_at = last_deletions(self.topic_deletions.following(0))
        self.clock = store_files.clock
        self.monotonic = self.clock.monotonic
        self.now_ms = self.clock.now_ms
        self.ordinal = store_files.ordinal
        self.store_timestamp = store_files.store_timestamp
        # Fields 8 to 14 of records with this head and the newest store time, which many single puts share.
        self.origin = b""
        self.origin_head: RecordHead | None = None
        self.sync_flush = settings.flush_disk_type == "SYNC_FLUSH"
        self.multi_dispatch = settings.enable_multi_dispatch
        self.publisher = Publisher()
        self.on_delayed: Callable[[int, int], None] = lambda level, deliver_timestamp: None
        self.closed = False
        self.forked_from: int | None = None
        self.read_only_reason: str | None = None
        self.disk_full_reason: str | None = None
        self.page_cache = PageCacheWatch(
            self.put_lock, self.commit_log, self.clock, settings.os_page_cache_busy_time_out_mills
        )
        self.put_statistics = PutStatistics(self.monotonic, lambda: self.ordinal, tells_all=self.sync_flush)
        # Hooks get each message, so a subclass takes the Python path.
        self.kernel = kernel_puts(self, self.commit_log, self.clock) if type(self) is Appender else None

    # One message.

    def append(self, message: Message) -> PutMessageResult:
        """Store one message and return where, without waiting for the disk.

        Raises:
            MessageIllegal: it breaks a limit. Nothing was stored, as with every error here.
            StoreBusy: another put is stuck.
            StoreFull: the disk has no space.
            StoreReadOnly, StoreClosed: the store refuses messages.
        """
        if self.kernel is not None:
            result: PutMessageResult | None = self.kernel.put(message)
            if result is not None:
                return result
        called = self.monotonic()
        if self.put_lock.locked() and self.page_cache.is_stuck():
            raise self.busy_refusal()
        prepared = self.prepare(message)
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            if prepared.further:
                prepared = self.with_further_offsets(prepared)
            topic, queue_id, record_size = prepared.topic, prepared.queue_id, prepared.record_size
            commit_log = self.commit_log
            begin = before = commit_log.appended
            if begin + record_size > commit_log.safe_until:
                begin = commit_log.room(record_size)
            timestamp = self.now_ms()
            if timestamp != self.store_timestamp or prepared.head is not self.origin_head:
                timestamp = self.begin_millisecond(timestamp, prepared.head)
            queue_offset = topic.offsets.get(queue_id, 0)
            record, row = encode_message(prepared, queue_offset, begin, timestamp, self.origin)
            end = commit_log.append(record)
            topic.offsets[queue_id] = queue_offset + 1
            topic.put_size += record_size
            if prepared.further_offsets:
                take_further_offsets(prepared)
            if prepared.deliver_after >= 0:
                self.on_delayed(queue_id + 1, timestamp + prepared.deliver_after)
            self.ordinal += 1
            queues = topic.queues.get(queue_id)
            if queues is None:
                queues = topic.queues[queue_id] = [(topic.name, queue_id)]
            self.publisher.publish(AppendedRecords(before, end, timestamp, self.ordinal, queues, row, prepared.texts))
        taken = self.monotonic() - called
        if taken > self.put_statistics.threshold and not self.sync_flush:
            self.put_statistics.note(taken, 1)
        return PutMessageResult(
            PUT_OK, begin, end, record_size, queue_id, queue_offset, timestamp, prepared.head.store_host
        )

    # Several messages.

    def append_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages* one behind the other, under one lock, without waiting for the disk.

        All are checked before the first is stored.

        Raises:
            As `append`; if the disk is full in the middle, the messages before are stored and the error says how many.
        """
        if self.kernel is not None and type(messages) is list:
            results = self.kernel.put_batch(messages)
            if results is not None:
                return results
        self.refuse_when_stuck()
        return self.append_prepared_batch([self.prepare(message) for message in messages])

    def append_prepared_batch(self, batch: list[Prepared]) -> list[PutMessageResult]:
        """As `append_batch`, for messages that are encoded already, after `refuse_when_stuck`."""
        if not batch:
            return []
        called = self.monotonic()
        results: list[PutMessageResult] = []
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            timestamp = self.now()
            try:
                if self.multi_dispatch and any(prepared.further for prepared in batch):
                    # A message in a further queue moves the next one's place there, and with it its size.
                    for prepared in batch:
                        results += self.append_prepared(prepared, timestamp)
                else:
                    for run, size in self.runs_of_batch(batch):
                        results += self.append_run(run, size, timestamp)
            except StoreError as error:
                error.args = (f"{error} stored_count={len(results)}",)
                error.stored_count = len(results)
                raise
        taken = self.monotonic() - called
        if taken > self.put_statistics.threshold and not self.sync_flush:
            self.put_statistics.note(taken, len(results))
        return results

    def admit(self, message: Message) -> tuple[Message, Admitted]:
        """Check and encode *message* for `append_each`; return what will be stored, and that encoded.

        Raises:
            MessageIllegal: it breaks a limit.
            StoreBusy: another put is stuck.
        """
        self.refuse_when_stuck()
        admitted = None if self.kernel is None else self.kernel.admit(message)
        return message, self.prepare(message) if admitted is None else admitted

    def refuse_when_stuck(self) -> None:
        """Refuse a put while another one is stuck.

        Raises:
            StoreBusy: one is.
        """
        if self.put_lock.locked() and self.page_cache.is_stuck():
            raise self.busy_refusal()

    def append_each(
        self, messages: Sequence[Message | None], admitted: list[Admitted]
    ) -> Sequence[PutMessageResult | StoreError]:
        """Store *messages*, admitted as *admitted*, each as a put of its own, under one lock, without waiting for the
        disk.

        Args:
            messages: None for one that was encoded without a `Message`; hooks need it.

        Returns:
            for each message where it is, or why it is not stored.
        """
        if self.kernel is not None:
            results = self.kernel.append_each(admitted)
            if results is not None:
                return results
        batch = [self.prepare_admitted(*each) for each in zip(messages, admitted, strict=True)]
        outcomes: list[PutMessageResult | StoreError] = []
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                return [self.refusal() for _ in batch]
            timestamp = self.now()
            if self.multi_dispatch and any(prepared.further for prepared in batch):
                return [self.append_alone(prepared, timestamp) for prepared in batch]
            for run, size in self.runs(batch):
                try:
                    outcomes += self.append_run(run, size, timestamp)
                except StoreError:
                    # Nothing of the run is stored. There may be room for one message, though not for all.
                    outcomes += [self.append_alone(prepared, timestamp) for prepared in run]
        return outcomes

    def prepare_admitted(self, message: Message | None, admitted: Admitted) -> Prepared:
        """Return an admitted message encoded for the Python path."""
        if isinstance(admitted, EncodedMessage):
            return admitted
        assert message is not None
        return self.prepare(msgspec.structs.replace(message, queue_id=admitted.queue_id))

    def append_alone(self, prepared: Prepared, timestamp: int) -> PutMessageResult | StoreError:
        """Append one message, or return why not. Under the put lock."""
        try:
            return self.append_prepared(prepared, timestamp)[0]
        except StoreError as error:
            return error

    def append_prepared(self, prepared: Prepared, timestamp: int) -> list[PutMessageResult]:
        """Append one message, with its offsets in further queues. Under the put lock."""
        if prepared.further:
            prepared = self.with_further_offsets(prepared)
        return self.append_run([prepared], prepared.record_size, timestamp)

    def with_further_offsets(self, prepared: Prepared) -> Prepared:
        """Return *prepared* with its offsets in the further queues that it names. Under the put lock.

        Raises:
            MessageIllegal: the store has as many light queues as the settings allow.
        """
        further_offsets = self.topic_table.further_offsets(prepared.further, prepared.queue_id)
        return with_further_offsets(prepared, QUEUE_OFFSETS_NAME, further_offsets)

    def runs_of_batch(self, batch: list[Prepared]) -> Iterator[tuple[list[Prepared], int]]:
        """Yield *batch* whole even if the segment has no room for it, as RocketMQ moves a batch to the next segment.

        A batch that is larger than RocketMQ takes is split.
        """
        size = sum([prepared.record_size for prepared in batch])
        if size <= self.preparer.record_size_max:
            yield batch, size
        else:
            yield from self.runs(batch)

    def runs(self, batch: list[Prepared]) -> Iterator[tuple[list[Prepared], int]]:
        """Split *batch* where a segment ends; yield each run with its bytes."""
        left = self.commit_log.limit - self.commit_log.appended
        size = sum([prepared.record_size for prepared in batch])
        if size <= left:
            yield batch, size
            return
        run: list[Prepared] = []
        size = 0
        for prepared in batch:
            record_size = prepared.record_size
            if size + record_size > left and run:
                yield run, size
                run, size = [], 0
                left = self.commit_log.limit - self.commit_log.appended
            run.append(prepared)
            size += record_size
        yield run, size

    def append_run(self, run: list[Prepared], size: int, timestamp: int) -> list[PutMessageResult]:
        """Append *run*, which takes *size* bytes, to one segment, and publish it as one piece. Under the put lock."""
        commit_log = self.commit_log
        before = commit_log.appended
        encoded = encode_run(run, commit_log.room(size), timestamp)
        moves = map(
            setitem,
            [topic.offsets for topic, _, _, _ in encoded.following],
            [queue_id for _, queue_id, _, _ in encoded.following],
            [queue_offset for _, _, queue_offset, _ in encoded.following],
        )
        end = commit_log.append_run(encoded.data, encoded.sizes)
        # One call: Ctrl-C in a loop would leave the offsets of some queues behind, which the next put would give again.
        take_all(moves)
        has_delays = False
        for topic, _, _, queue_size in encoded.following:
            topic.put_size += queue_size
            has_delays |= topic.is_scheduled
        if self.multi_dispatch:
            for prepared in run:
                take_further_offsets(prepared)
        if has_delays:
            for prepared in run:
                if prepared.deliver_after >= 0:
                    self.on_delayed(prepared.queue_id + 1, timestamp + prepared.deliver_after)
        self.ordinal += len(run)
        self.publisher.publish(
            AppendedRecords(before, end, timestamp, self.ordinal, encoded.queues, encoded.rows, encoded.texts)
        )
        return encoded.results

    # Other operations under the put lock.

    def begin_millisecond(self, timestamp: int, head: RecordHead) -> int:
        """Return the store time of the next record, and keep what all records of *head* have in this millisecond."""
        # None meanwhile: Ctrl-C must not leave the origin of another time in use.
        self.origin_head = None
        timestamp = self.store_timestamp = max(timestamp, self.store_timestamp)
        self.origin = head.origin(timestamp)
        self.origin_head = head
        return timestamp

    def now(self) -> int:
        """Return the store time of the next record, which never goes back within a log. Under the put lock."""
        self.origin_head = None
        timestamp = self.store_timestamp = max(self.now_ms(), self.store_timestamp)
        return timestamp

    def peek(self, commit_log_offset: int) -> Record | None:
        """Return the record at *commit_log_offset* that is in no file yet; None: the files have these bytes.

        Raises:
            DamagedStore: no record begins there.
        """
        with self.put_lock:
            data = self.commit_log.peek(commit_log_offset)
            return None if data is None else decode_record(data)

    def delete_topic(self, topic: str) -> int:
        """Delete *topic* now and return the commit-log offset of the deletion; views follow.

        Its records stay in the log until retention removes them. Later messages to *topic* belong to a new topic, whose
        queue offsets begin with 0.

        Raises:
            MessageIllegal: no topic may have this name.
            StoreReadOnly, StoreFull, StoreClosed: as `append`; or the deletion cannot be kept.
        """
        check_topic(topic)
        with self.put_lock:
            if self.closed or self.read_only_reason is not None or self.disk_full_reason is not None:
                raise self.refusal()
            appended = self.commit_log.appended
            with tell_store_error(f"the deletion cannot be kept, so the topic is still there: topic={topic}"):
                self.topic_deletions.add(TopicDeletion(self.clock.now_ms(), appended, topic))
            self.deleted_at[topic] = appended
            self.topic_table.forget_topic(topic)
            self.publisher.delete_topic(topic, appended, self.ordinal)
        return appended

    def publish_expired(self, commit_log_offset_min: int) -> None:
        """Publish that the log begins at *commit_log_offset_min* now."""
        with self.put_lock:
            self.publisher.expire(commit_log_offset_min, self.commit_log.appended, self.ordinal)

    # Whether anything can be put.

    @property
    def reason(self) -> str | None:
        """Why nothing can be put; None if messages are taken."""
        return self.read_only_reason or self.disk_full_reason

    def set_read_only(self, reason: str) -> None:
        """Refuse every put from now on."""
        with self.put_lock:
            self.read_only_reason = reason
        self.publisher.read_only(reason)

    def set_disk_full(self, reason: str | None) -> None:
        """Refuse puts because the disk is too full, or take them again."""
        with self.put_lock:
            changed = (reason is None) != (self.disk_full_reason is None)
            self.disk_full_reason = reason
        if changed and self.read_only_reason is None:
            self.publisher.read_only(reason)

    def refusal(self) -> StoreError:
        """Return why nothing can be put."""
        if self.closed:
            return closed_store(self.directory, self.forked_from)
        if self.read_only_reason is None:
            return StoreFull(
                f"the store refuses writes: reason={self.disk_full_reason!r} store={self.directory}",
                "Free space on the disk; the store then accepts messages again. Nothing was stored.",
            )
        return StoreReadOnly(
            f"the store refuses writes: reason={self.read_only_reason!r} store={self.directory}",
            "Repair what the reason names, then close and open the store again: it recovers from what is on disk.",
        )

    def busy_refusal(self) -> StoreBusy:
        """Return why a put is refused while another put is stuck."""
        return StoreBusy(
            f"another put has been waiting for the disk: status=OS_PAGECACHE_BUSY store={self.directory} "
            f"os_page_cache_busy_time_out_mills={self.settings.os_page_cache_busy_time_out_mills}"
        )

    def close(self) -> bool:
        """Refuse every put from now on; return False if that was the case before."""
        with self.put_lock:
            was_open, self.closed = not self.closed, True
        return was_open

    def forget(self) -> None:
        """Close this copy in a forked child; the parent's store stays open."""
        self.closed = True
        self.forked_from = os.getppid()
        self.topic_table.forget_locks()
        self.put_lock = self.topic_table.put_lock
        self.commit_log.forget()


def take_further_offsets(prepared: Prepared) -> None:
    """Move the next offset of each further queue behind this message. Under the put lock."""
    for table, queue_id, queue_offset in prepared.further_offsets:
        table[queue_id] = queue_offset + 1
