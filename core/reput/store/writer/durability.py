"""Durability: brings appended records to disk, and keeps snapshots that spare a recovery from scanning.

    appended ── commit service, with a transient pool ──▶ committed ── flush service ──▶ durable
                                                                            │
                          queue offsets, mark, checkpoint ◀── every 10 s ───┘

After a failed force nothing is trusted again: the store refuses messages, and the next opening recovers from the disk.

Source: RocketMQ store, CommitLog.FlushManager and StoreCheckpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from reput.errors import StoreError
from reput.settings import Settings
from reput.store.log.commit_service import CommitService
from reput.store.log.flush_service import FlushService
from reput.store.log.pooled_commit_log import PooledCommitLog
from reput.store.log.segments import Segments
from reput.store.queue.queue_offsets import QueueOffsetsSnapshot
from reput.store.state.epochs import make_mark
from reput.store.state.store_checkpoint import write_checkpoint
from reput.store.writer.appender import Appender
from reput.store.writer.publisher import CommittedPublisher, Publisher
from reput.store.writer.store_files import StoreFiles

__all__ = ["Durability"]

SNAPSHOT_INTERVAL_S = 10.0


class Durability:
    """The two services of one log, and its snapshots.

    Attributes:
        epochs: the history of the log, with the newest mark.
        durable_timestamp: store time of a record that is on disk, as are all before it.
        durable_views: returns up to which store time the views that RocketMQ reads are on disk, and up to which
            commit-log offset the index is.
        committed_publisher: keeps records back: with SYNC_FLUSH until they are durable, with a transient pool until
        they
            are in the files; None: records are published at once.
    """

    def __init__(
        self, store_files: StoreFiles, appender: Appender, settings: Settings, on_round: Callable[[], None]
    ) -> None:
        """*on_round* is called by the flusher, every time that it has looked whether there is something to force."""
        self.store_files = store_files
        self.appender = appender
        self.commit_log = commit_log = store_files.commit_log
        self.clock = store_files.clock
        self.sync_flush = appender.sync_flush
        self.sync_flush_timeout = settings.sync_flush_timeout / 1000
        self.epochs = store_files.epochs
        self.durable_timestamp = store_files.store_timestamp
        self.durable_views: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.on_round = on_round
        self.snapshot_at = self.clock.monotonic()
        self.snapshot_offset = commit_log.appended
        self.commit_service: CommitService | None = None
        self.committed_publisher: CommittedPublisher | None = None
        self.flush_service = FlushService(
            commit_log,
            self.clock,
            interval_ms=settings.flush_interval_commit_log,
            least_pages=settings.flush_commit_log_least_pages,
            thorough_interval_ms=settings.flush_commit_log_thorough_interval,
            before_flush=lambda: appender.store_timestamp,
            on_durable=self.on_durable,
            on_failure=appender.set_read_only,
            on_idle=self.after_each_round,
            threads=store_files.threads,
        )
        self.flush_service.hides_unforced = self.sync_flush
        if self.sync_flush:
            self.keep_back(lambda end: None)
        elif isinstance(commit_log, PooledCommitLog):
            self.commit_service = CommitService(
                commit_log,
                self.clock,
                interval_ms=settings.commit_interval_commit_log,
                least_pages=settings.commit_commit_log_least_pages,
                thorough_interval_ms=settings.commit_commit_log_thorough_interval,
                on_committed=self.publish_committed,
                on_failure=self.flush_service.wake.set,
                on_death=self.flush_service.end_waits,
                threads=store_files.threads,
            )
            self.keep_back(self.commit_service.appended)

    def start(self) -> None:
        """Start both threads."""
        self.flush_service.start()
        if self.commit_service is not None:
            self.commit_service.start()

    def keep_back(self, appended: Callable[[int], None]) -> None:
        """Publish records only once they may be seen."""
        self.committed_publisher = CommittedPublisher(self.appender.publisher, appended)
        self.appender.publisher = self.committed_publisher

    def change_publisher(self, publisher: Publisher) -> None:
        """Publish to *publisher* from now on. Under the put lock."""
        if self.committed_publisher is None:
            self.appender.publisher = publisher
            return
        if self.commit_service is not None:
            # The previous publisher gets the records put for it: the new one may need more fields of a record.
            self.commit_service.try_commit()
        self.committed_publisher.change(publisher, self.shown)

    # Positions.

    @property
    def shown(self) -> int:
        """Commit-log offset beyond which no reader may see: `committed`, or with SYNC_FLUSH `durable`."""
        return self.commit_log.durable if self.sync_flush else self.commit_log.committed

    def publish_committed(self) -> None:
        """Publish the records that were kept back and may be seen by now."""
        if self.committed_publisher is not None:
            with self.appender.put_lock:
                self.committed_publisher.release(self.shown)

    # Waiting for the disk.

    def wait(self, end: int) -> bool:
        """Wait until *end* is on disk; False when ``sync_flush_timeout`` went by first.

        Raises:
            StoreReadOnly: the disk refused; what was appended may be lost.
        """
        try:
            return self.flush_service.wait_durable(end, self.sync_flush_timeout)
        except StoreError:
            raise self.appender.refusal() from None

    def flush(self, timeout: float) -> int:
        """Force what was appended so far and return the durable offset.

        Raises:
            StoreError: the disk refused, or did not answer within *timeout* seconds.
        """
        target = self.commit_log.appended
        if not self.flush_service.wait_durable(target, timeout):
            raise StoreError(f"the disk did not answer in time: durable={self.commit_log.durable} appended={target}")
        return self.commit_log.durable

    # Called by the flusher.

    def on_durable(self, durable: int, store_timestamp: int) -> None:
        """Called after each success; *store_timestamp* was the last record's when it began."""
        self.publish_committed()
        self.durable_timestamp = store_timestamp
        self.appender.publisher.durable(durable)

    def after_each_round(self) -> None:
        """Called every time that the flusher has looked whether there is something to force."""
        self.appender.page_cache.look()
        self.appender.put_statistics.sample()
        self.on_round()
        self.snapshot_regularly()

    # Snapshots.

    def snapshot_regularly(self) -> None:
        """Every 10 s, write a snapshot that spares a recovery from scanning, and RocketMQ's checkpoint."""
        now = self.clock.monotonic()
        if (
            now - self.snapshot_at >= SNAPSHOT_INTERVAL_S
            and self.commit_log.durable > self.snapshot_offset
            and self.store_files.store_lock.is_in_place()
        ):
            self.snapshot_at = now
            # A snapshot only saves time: on a disk that is too full for it, the log still has everything.
            with contextlib.suppress(OSError):
                self.write_snapshot(clean=False)
                queue_timestamp, index_durable = self.durable_views()
                write_checkpoint(
                    self.store_files.directory,
                    self.durable_timestamp,
                    queue_timestamp,
                    self.store_files.files,
                    index_durable=index_durable,
                )

    def write_snapshot(self, *, clean: bool) -> None:
        """Write the queue offsets as of a durable offset, and the mark that proves which log they belong to."""
        appender = self.appender
        with appender.put_lock:
            snapshot = QueueOffsetsSnapshot(
                self.epochs.epoch,
                self.commit_log.appended,
                appender.ordinal,
                appender.store_timestamp,
                appender.topic_table.queue_offsets.snapshot(),
            )
        if self.commit_log.durable < snapshot.commit_log_offset:
            self.flush_service.flush()
            if self.commit_log.durable < snapshot.commit_log_offset:
                return
        files, own = self.store_files.files, self.store_files.own
        segments = Segments(self.store_files.log_directory, self.store_files.segment_size)
        epochs = self.epochs.with_mark(make_mark(segments, snapshot.commit_log_offset), clean=clean)
        files.replace(own / "queue_offsets", snapshot.seal())
        files.replace(own / "epochs", epochs.seal())
        self.epochs = epochs
        self.snapshot_offset = snapshot.commit_log_offset

    def stop(self) -> None:
        """Commit and force a last time, and end both threads."""
        if self.commit_service is not None:
            self.commit_service.stop()
        self.flush_service.stop()
