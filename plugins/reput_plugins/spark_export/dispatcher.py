"""SparkExport: the dispatcher that keeps a lake up to date while the store is written.

It receives positions, not records: how far the log is durable. `dispatch` runs a Spark export up to that offset, as
`export` does, and returns when the target, the table of the log or typed tables, holds everything below it. The tables
are also the cursor: their transactions record how far they hold the log.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from reput_hooks import CommitLogDispatcher, Cursor, DispatchBatch, DispatcherContext, replace_durably
from reput_plugins.spark_export import spark_job, spark_session
from reput_plugins.spark_export.export_job import open_target
from reput_plugins.spark_export.lake_sink import SinkPlan
from reput_plugins.spark_export.log_target import ExportTarget
from reput_plugins.spark_export.options import ExportRequest, SparkExportOptions
from reput_plugins.spark_export.typed.typed_sink import TypedPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkExport"]

WAIT_SECONDS = 0.25


class SparkExport(CommitLogDispatcher):
    """Keep one lake. The first batch starts Spark; after a failure a new process starts it again."""

    def __init__(self, context: DispatcherContext) -> None:
        options: SparkExportOptions = context.options or SparkExportOptions()
        self.context = context
        self.options = options
        self.cursor_file = context.directory / "cursor.json"
        self.running = contextlib.ExitStack()
        self.session: SparkSession | None = None
        self.committed_at: float | None = None
        self.closed = threading.Event()
        self.target: ExportTarget | None = None
        self.end: Cursor | None = None
        self.commits = context.counter("commits")
        self.removed_files = context.counter("removed_files")
        self.damaged_ranges = context.counter("damaged_ranges")

    def open_target(self) -> ExportTarget:
        """Return what the options name: the table of the log, or typed tables.

        Raises:
            ConfigError: the options contradict each other.
        """
        options = self.options
        request = ExportRequest(
            store=self.context.store_directory,
            lake=options.lake or self.context.directory / "lake",
            tables={"tables": options.tables} if isinstance(options.tables, dict) else options.tables,
            topics=options.topics,
            name=options.name,
            storage_options=options.storage_options,
            # If retention deletes records before they are exported, the host notes a gap, and the lake continues there.
            fail_on_data_loss=False,
            on_corruption=options.on_corruption,
            store_id=None,
            accept_truncation=False,
            lake_format=options.lake_format,
            catalog=options.catalog,
            catalog_table=options.catalog_table,
        )
        return open_target(request, compact_interval_ms=options.compact_interval_ms, vacuum_hours=options.vacuum_hours)

    def start(self) -> Cursor | None:
        """Return the cursor of the lake, with the store time from the cursor file.

        Raises:
            StoreError: the lake holds another store, or has rows that contradict the log, so that an operator must
                decide what to do.
        """
        self.target = self.open_target()
        self.end = self.target.cursor()
        if self.end is not None and self.cursor_file.exists():
            kept = msgspec.json.decode(self.cursor_file.read_bytes(), type=Cursor)
            # A kill between commit and flush leaves an older cursor, whose store time is merely too early.
            if kept.store_id == self.end.store_id and kept.commit_log_offset <= self.end.commit_log_offset:
                self.end = msgspec.structs.replace(self.end, store_timestamp=kept.store_timestamp)
        return self.end

    def dispatch(self, batch: DispatchBatch) -> None:
        """Export everything below the batch's end.

        A small batch waits until the last transaction is old enough, which avoids many small transactions. Records
        that become durable during the wait are exported with it; later batches find them in the table.
        """
        assert self.target is not None
        held = self.target.cursor()
        done = max(0 if held is None else held.commit_log_offset, batch.commit_log_offset)
        end = batch.end.commit_log_offset
        if done < end:
            if end - done < self.options.commit_bytes:
                self.wait_for_interval()
                end = max(end, self.target.log.find_durable_end())
            self.export(self.target, done, end)
            for maintenance in self.target.maintenances:
                self.removed_files.value += maintenance.after_commit(self.context.alive)
        self.end = batch.end

    def wait_for_interval(self) -> None:
        """Wait until the interval since the last commit has passed."""
        if self.committed_at is None:
            return
        due = self.committed_at + self.options.interval_ms / 1000
        while (left := due - time.monotonic()) > 0:
            self.closed.wait(min(left, WAIT_SECONDS))
            self.context.alive()

    def export(self, target: ExportTarget, begin: int, until: int) -> None:
        """Export [begin, until) of the log, in one transaction or several.

        Raises:
            DispatcherError: Spark cannot be started, or fails; the message says why.
        """
        while begin < until:
            end = until
            if until - begin > self.options.batch_bytes_max:
                end = target.log.next_record(begin + self.options.batch_bytes_max, until)
            added = target.export(begin, end, self.run)
            begin, self.committed_at = end, time.monotonic()
            damage = [damaged for one in added for damaged in one.damage]
            self.commits.value += sum(one.commits for one in added)
            self.damaged_ranges.value += len(damage)
            for damaged in damage:
                self.context.logger.error(
                    "damaged parts of the log were omitted from the lake: from=%d until=%d reason=%s",
                    damaged.begin,
                    damaged.end,
                    damaged.reason,
                )

    def run(self, plan: SinkPlan | TypedPlan, begin: int, until: int) -> None:
        """Export one range with Spark."""
        spark_job.run_job(self.spark(), plan, begin, until, self.is_at_work, split_bytes=self.options.split_bytes)

    def is_at_work(self, done: int, total: int) -> None:
        """Tell the host that the dispatcher is alive, ignoring the progress numbers."""
        self.context.alive()

    def spark(self) -> SparkSession:
        """Return the Spark session; start it if there is none."""
        if self.session is None:
            context = self.context
            context.alive()
            settings = context.settings["spark_options"]
            started = spark_session.spark_session(settings, f"reput {context.name}")
            self.session = self.running.enter_context(started)
            context.alive()
        return self.session

    def flush(self) -> Cursor | None:
        """Save the cursor. The table is already durable: each commit forced itself and its files to disk."""
        if self.end is not None:
            replace_durably(self.cursor_file, msgspec.json.encode(self.end))
        return self.end

    def truncate(self, cursor: Cursor) -> None:
        """Delete the rows that the log no longer has.

        Raises:
            StoreError: an operator must accept the deletion first.
        """
        self.stop_spark()
        assert self.target is not None
        self.target.truncate(cursor)
        self.end = cursor

    def expire(self, commit_log_offset_min: int) -> None:
        """Do nothing: a lake keeps records that the log deletes."""

    def delete_topic(self, topic: str) -> None:
        """Do nothing: a lake keeps the messages of deleted topics."""

    def close(self) -> None:
        """Stop Spark."""
        self.closed.set()
        self.stop_spark()

    def stop_spark(self) -> None:
        """Stop Spark; the next batch starts it again."""
        self.session = None
        self.running.close()
