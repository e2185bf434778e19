"""MessageStore: the writer of one store. Only it appends to, forces, rolls and describes the commit log.

    store_files ── opens ──▶ commit log, epochs, queue offsets
    preparer ───── checks and encodes messages ──┐
    topic_table ── queues and their offsets ─────┴──▶ appender ──▶ log, publisher
    durability ─── commits, forces, snapshots ───────────▶ disk
    retention ──── removes the oldest segments

Any number of threads may put. A put never waits for a view, and for the disk only with SYNC_FLUSH.

Source: RocketMQ store, DefaultMessageStore.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from reput.errors import StoreError
from reput.kernel import kernel
from reput.settings import Settings
from reput.store.disk.disk_space import DiskSpace
from reput.store.disk.files import Clock, Files
from reput.store.disk.shortages import tell_store_error
from reput.store.log.force_times import ForceTotals
from reput.store.log.log_clock import LogClock
from reput.store.record.delay_level import DelayLevels
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
from reput.store.retention.retention import Retention
from reput.store.service.threads import Threads
from reput.store.state.epochs import Epochs
from reput.store.state.followed_master import refuse_follower
from reput.store.state.lease_row import LeaseRow
from reput.store.state.store_checkpoint import ahead_of_clock
from reput.store.writer.appender import Appender
from reput.store.writer.durability import Durability
from reput.store.writer.message_preparer import MessagePreparer, stored_host
from reput.store.writer.publisher import Publisher
from reput.store.writer.put_statistics import PutTotals
from reput.store.writer.store_files import StoreFiles
from reput.store.writer.topic_table import TopicTable

__all__ = ["MessageStore"]

# Between two looks whether the store is still where it was opened.
PLACE_LOOK_S = 1.0
MOVED = "its directory was moved or removed while it was open"

logger = logging.getLogger("reput.store")


class MessageStore:
    """The writer. Open it once in one process; `close` leaves a store that RocketMQ opens as cleanly shut down.

    Attributes:
        settings: with the sizes that the store's files have.
        own: the directory of reput's own files.
        opened_at: what lies before it was there when the store was opened.
        commit_log_offset_min: where the log begins.
    """

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        disk_space: DiskSpace | None = None,
        threads: Threads | None = None,
        change_settings: Collection[str] = (),
        lock_timeout: float | None = 0.0,
    ) -> None:
        """Take the lock, after waiting up to *lock_timeout* seconds for it, recover the log, and be ready to put.

        *change_settings*: names of settings that are recorded with the store and get another value; see
        `recorded_settings`.

        Raises:
            NotAStore: the directory has files, but no commit log.
            StoreReadOnly: this user may not write there, the file system is read-only, or the store follows a master.
            StoreLocked: another process writes it.
            StoreFull: the disk has no space for the store's own files.
            DamagedStore: the log is damaged before its end and no operator has accepted that.
            ConfigError: the settings do not fit the store's files, or what is recorded with it.
        """
        self.directory = directory
        self.files = files or Files()
        self.clock = clock or Clock()
        self.threads = threads or Threads()
        # First what may be wrong with the environment and the settings: nothing is written for them.
        kernel()
        self.refuse_follower()
        self.born_host, self.store_host = stored_host(settings.born_host), stored_host(settings.store_host)
        self.delay_levels = DelayLevels(settings.message_delay_level)
        self.store_files = StoreFiles(
            directory,
            settings,
            self.files,
            self.clock,
            self.threads,
            change_settings=change_settings,
            lock_timeout=lock_timeout,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self.store_files.close)
            # Again under the lock: another process may have begun to follow, or have promoted the copy, meanwhile.
            self.refuse_follower()
            with tell_store_error(f"the store cannot be opened for writing: store={directory}"):
                self.open(disk_space or DiskSpace())
            undo.pop_all()

    def open(self, disk_space: DiskSpace) -> None:
        """Make the parts of the writer over the files, and start its threads last."""
        store_files = self.store_files
        self.settings = settings = store_files.settings
        self.own = store_files.own
        self.store_id = store_files.store_id
        self.segment_size = store_files.segment_size
        self.commit_log = store_files.commit_log
        self.commit_log_offset_min = store_files.commit_log_offset_min
        self.opened_at = self.commit_log.appended
        self.queue_offsets = store_files.queue_offsets
        self.log_clock = LogClock(self.clock, store_files.store_timestamp)
        self.topic_table = TopicTable(self.directory, settings, self.queue_offsets, threading.Lock())
        self.preparer = MessagePreparer(settings, self.topic_table, self.delay_levels, self.born_host, self.store_host)
        self.appender = self.make_appender()
        self.sync_flush = self.appender.sync_flush
        # Set by a broker that has its role by a lease.
        self.lease_row: Callable[[], LeaseRow | None] = lambda: None
        # The last notice that `tell_notice` published.
        self.told_notice = ""
        self.place_at = self.clock.monotonic()
        self.durability = Durability(store_files, self.appender, settings, self.look_after)
        self.retention = Retention(self.directory, settings, self, self.log_clock, disk_space, self.threads)
        notice = self.notice
        if notice is not None:
            logger.warning("%s store=%s", notice, self.directory)
        self.durability.start()

    def refuse_follower(self) -> None:
        """Refuse a store that follows a master.

        Raises:
            StoreReadOnly: it does.
        """
        refuse_follower(self.directory)

    def make_appender(self) -> Appender:
        """Return what appends to the log."""
        return Appender(self.store_files, self.preparer)

    # State.

    @property
    def appended(self) -> int:
        """Commit-log offset up to which messages were put."""
        return self.commit_log.appended

    @property
    def committed(self) -> int:
        """Commit-log offset up to which records are readable: `appended` without the bytes in the transient pool."""
        return self.commit_log.committed

    @property
    def shown(self) -> int:
        """Commit-log offset beyond which no reader may see: `committed`, or with SYNC_FLUSH `durable`."""
        return self.durability.shown

    @property
    def durable(self) -> int:
        """Commit-log offset up to which the log is forced to disk."""
        return self.commit_log.durable

    @property
    def ordinal(self) -> int:
        """How many records the log has had since its birth."""
        return self.appender.ordinal

    @property
    def epochs(self) -> Epochs:
        """The history of the log."""
        return self.durability.epochs

    @property
    def state(self) -> str:
        """``RUNNING``, ``READ_ONLY`` or ``STOPPED``."""
        if self.appender.closed:
            return "STOPPED"
        return "RUNNING" if self.reason is None else "READ_ONLY"

    @property
    def reason(self) -> str | None:
        """Why nothing can be put; None if messages are taken."""
        return self.appender.reason

    @property
    def notice(self) -> str | None:
        """A notice for operators while the store accepts messages; None: there is none."""
        for reason in self.threads.deaths.values():
            return reason
        return ahead_of_clock(self.appender.store_timestamp, self.clock.now_ms()) or self.log_clock.notice()

    def look_after(self) -> None:
        """Called by the flusher, every time that it has looked whether there is something to force."""
        now = self.clock.monotonic()
        if now - self.place_at >= PLACE_LOOK_S:
            self.place_at = now
            if self.appender.read_only_reason is None and not self.store_files.store_lock.is_in_place():
                logger.error("the store is not where it was opened: store=%s", self.directory)
                # Views, topics and offsets have names: they would come into another directory than the log.
                self.appender.set_read_only(MOVED)
        self.tell_notice()

    def tell_notice(self) -> None:
        """Show in `reput status` what an operator should know, or that it is over."""
        # The numbers of a notice change from round to round; the text before the colon does not.
        notice = (self.notice or "").partition(":")[0]
        if notice != self.told_notice:
            self.told_notice = notice
            self.appender.publisher.read_only(self.reason)

    def put_totals(self) -> PutTotals:
        """Return what was put since the store was opened."""
        return self.appender.put_statistics.totals(self.topic_table.put_size())

    def force_totals(self) -> ForceTotals:
        """Return how long the forces of the log took since the store was opened."""
        return self.durability.flush_service.force_times.totals()

    def attach(self, publisher: Publisher, *, needs_properties: bool, reads_durable: bool = False) -> None:
        """Publish to *publisher* from now on.

        Args:
            needs_properties: rows carry the raw properties.
            reads_durable: readers see only what is durable, so the flusher does not wait for whole pages.
        """
        with self.appender.put_lock:
            self.durability.change_publisher(publisher)
            self.preparer.carry_properties(needs_properties)
        self.told_notice = ""
        self.durability.flush_service.durable_wanted = reads_durable

    # Putting.

    def put(self, message: Message) -> PutMessageResult:
        """Store one message and return where; with SYNC_FLUSH, once it is on disk.

        Raises:
            MessageIllegal: it breaks a limit. Nothing was stored, as with every error here but the last.
            StoreFull: the disk has no space.
            StoreReadOnly, StoreClosed: the store no longer accepts messages, or could not force the message to disk.
        """
        if not self.sync_flush:
            return self.appender.append(message)
        begin = self.clock.monotonic()
        result = self.forced(self.appender.append(message))
        self.appender.put_statistics.note(self.clock.monotonic() - begin, 1)
        return result

    def forced(self, result: PutMessageResult) -> PutMessageResult:
        """Return *result* of an append; with SYNC_FLUSH, once its message is on disk.

        Raises:
            StoreReadOnly: the disk refused; what was appended may be lost.
        """
        if not self.sync_flush or self.durability.wait(result.next_commit_log_offset):
            return result
        return msgspec.structs.replace(result, status=PutMessageStatus.FLUSH_DISK_TIMEOUT)

    def put_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages* one behind the other: one lock, one publication, one wait for the disk with SYNC_FLUSH.

        All are checked before the first is stored.

        Raises:
            As `put`; if the disk is full in the middle, the messages before are stored and the error says how many.
        """
        if not self.sync_flush:
            return self.appender.append_batch(messages)
        begin = self.clock.monotonic()
        try:
            results = self.appender.append_batch(messages)
        except StoreError as error:
            if error.stored_count:
                # The error reports as stored only what is on disk.
                self.durability.wait(self.commit_log.appended)
            raise
        if results and not self.durability.wait(results[-1].next_commit_log_offset):
            status = PutMessageStatus.FLUSH_DISK_TIMEOUT
            results = [msgspec.structs.replace(result, status=status) for result in results]
        self.appender.put_statistics.note(self.clock.monotonic() - begin, len(results))
        return results

    def call_when_durable(self, offset: int, done: Callable[[], None]) -> None:
        """Call *done*, from another thread, once the log is durable up to *offset* or never will be."""
        self.durability.flush_service.call_when_durable(offset, done)

    def begin_flush(self, patience: float) -> None:
        """Force what was appended; return once that begins, or after *patience* seconds."""
        self.durability.flush_service.begin(patience)

    def force_soon(self) -> None:
        """Force what was appended without waiting for the flusher's interval. Returns at once."""
        self.durability.flush_service.ask()

    def flush(self, timeout: float = 60.0) -> int:
        """Force what was appended so far and return the durable offset.

        Raises:
            StoreError: the disk refused, or did not answer within *timeout* seconds.
        """
        return self.durability.flush(timeout)

    # Topics and retention.

    def delete_topic(self, topic: str) -> int:
        """Delete *topic* as of now and return the commit-log offset of that. Errors as `Appender.delete_topic`."""
        appended = self.appender.delete_topic(topic)
        self.durability.publish_committed()
        return appended

    def set_disk_full(self, reason: str | None) -> None:
        """Refuse puts because the disk is too full, or take them again."""
        self.appender.set_disk_full(reason)

    def trim(self, path: Path, commit_log_offset_min: int) -> None:
        """Remove the oldest segment; the log then begins at *commit_log_offset_min*.

        Readers in this process learn of it first, so none of them finds only a part of what it reads. Views learn of it
        last: after a crash they may have more than the log, never less.
        """
        before, self.commit_log_offset_min = self.commit_log_offset_min, commit_log_offset_min
        try:
            self.files.remove(path)
        except OSError:
            self.commit_log_offset_min = before
            raise
        self.files.force_directory(path.parent)
        self.appender.publish_expired(commit_log_offset_min)
        # If nothing is kept back before it, no later release would publish it.
        self.durability.publish_committed()

    def begin_epoch(self, number: int | None = None) -> int:
        """Begin a new history at the log's end, and return its number; `close` writes it. *number*: see `Epochs`."""
        epochs = self.durability.epochs.begin(self.appended, self.clock.now_ms(), number=number)
        self.durability.epochs = epochs
        return epochs.epoch

    # Closing.

    def stop_puts(self) -> None:
        """Refuse every put from now on, and force what there is. The views may then catch up, and `close` follows."""
        if self.appender.close():
            self.retention.stop()
            self.durability.stop()

    def close(self, *, views_complete: bool) -> None:
        """Close the log. *views_complete*: consume queue, ext and index, where enabled, are durable up to its end.

        Only then, and if the log itself is durable, is ``abort`` removed; otherwise RocketMQ recovers what is missing.
        """
        self.stop_puts()
        try:
            if self.commit_log.failed is None and self.store_files.store_lock.is_in_place():
                self.durability.write_snapshot(clean=True)
                if views_complete:
                    self.store_files.remove_abort()
        finally:
            self.store_files.close()

    def give_back(self, *, views_complete: bool = True) -> None:
        """Close a store whose opening fails later: nothing was put, so its state on disk is as clean as before.

        *views_complete*: as of `close`, if dispatchers have run already.
        """
        self.stop_puts()
        found = self.store_files.clean_checkpoint if views_complete else None
        try:
            if found is not None:
                self.store_files.restore_checkpoint(found)
        finally:
            self.close(views_complete=found is not None)

    def forget(self) -> None:
        """Close this copy in a forked child; the parent's store stays open."""
        self.appender.forget()
        self.store_files.store_lock.close()
