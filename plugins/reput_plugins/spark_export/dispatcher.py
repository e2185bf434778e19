"""SparkExport: the dispatcher that keeps a lake up to date while the store is written.

It gets positions, not records: how far the log is durable. That is the limit of a streaming query, and `dispatch`
returns when the table holds everything below it. The table is also the cursor: its transactions say up to where it
holds the log.
"""

from __future__ import annotations

import contextlib

import msgspec

from reput.store.epochs import read_epochs
from reput.table import LogTable, table_options
from reput.table.asked_names import require_topics
from reput_hooks import CommitLogDispatcher, Cursor, DispatchBatch, DispatcherContext, replace_durably
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sink import SinkPlan
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.options import SparkExportOptions
from reput_plugins.spark_export.parquet_files import lake_schema
from reput_plugins.spark_export.spark_session import spark_session
from reput_plugins.spark_export.streaming_query import StreamingQuery

__all__ = ["SparkExport"]

# A batch is seen when it is a twentieth older than it had to be, and a large one does not cost hundreds of looks.
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.01, 0.25
LOOK_GROWTH = 1.05


class SparkExport(CommitLogDispatcher):
    """One lake. Spark is started with the first batch, and again by a new process if anything fails."""

    def __init__(self, context: DispatcherContext) -> None:
        options: SparkExportOptions = context.options or SparkExportOptions()
        self.context = context
        self.options = options
        self.topics = None if options.topics is None else sorted(set(options.topics))
        self.location = LakeLocation.of(options.lake or context.directory / "lake", options.storage_options)
        self.cursor_file = context.directory / "cursor.json"
        # What retention deleted before it was exported is noted by the host as a gap; the lake goes on behind it.
        self.table_options = table_options(
            topics=None if self.topics is None else frozenset(self.topics),
            fail_on_data_loss=False,
            on_corruption=options.on_corruption,
        )
        self.schema = lake_schema(self.table_options.row_format)
        self.running = contextlib.ExitStack()
        self.query: StreamingQuery | None = None
        self.end: Cursor | None = None
        self.commits = context.counter("commits")
        self.removed_files = context.counter("removed_files")
        self.damaged_ranges = context.counter("damaged_ranges")
        self.maintenance = Maintenance(
            self.location, interval_ms=options.compact_interval_ms, vacuum_hours=options.vacuum_hours
        )

    def lake(self) -> Lake:
        """Return the lake, with the store's present epochs."""
        context = self.context
        return Lake(self.location, self.options.name, read_epochs(context.store_directory, context.store_id))

    def start(self) -> Cursor | None:
        """Return what the table holds, with the store time that was kept beside it."""
        lake = self.lake()
        require_topics(LogTable(self.context.store_directory, self.table_options), self.topics or ())
        self.end = lake.cursor(lake.create(self.schema, self.topics))
        if self.end is not None and self.cursor_file.exists():
            kept = msgspec.json.decode(self.cursor_file.read_bytes(), type=Cursor)
            # A kill between commit and flush leaves an older one, whose time is only too early.
            if kept.store_id == self.end.store_id and kept.commit_log_offset <= self.end.commit_log_offset:
                self.end = msgspec.structs.replace(self.end, store_timestamp=kept.store_timestamp)
        return self.end

    def dispatch(self, batch: DispatchBatch) -> None:
        """Let the query read up to the batch's end, and wait until the table holds it."""
        target = batch.end.commit_log_offset
        query = self.query or self.begin(batch.commit_log_offset)
        query.set_limit(target)
        lake = self.lake()
        table = lake.create(self.schema, self.topics)
        known = table.version()
        look_seconds = LOOK_SECONDS_MIN
        while (lake.committed(table) or 0) < target:
            query.wait(look_seconds)
            look_seconds = min(look_seconds * LOOK_GROWTH, LOOK_SECONDS_MAX)
            self.context.alive()
            table.update_incremental()
        self.commits.value += table.version() - known
        for _, added in lake.commits_since(table, known):
            for damaged in added.damage:
                self.damaged_ranges.value += 1
                self.context.logger.error(
                    "damage of the log was left out of the lake: from=%d until=%d reason=%s",
                    damaged.begin,
                    damaged.until,
                    damaged.reason,
                )
        self.end = batch.end
        if self.maintenance.due():
            self.removed_files.value += self.maintenance.run(self.context.alive)

    def begin(self, commit_log_offset: int) -> StreamingQuery:
        """Start Spark and the query.

        Raises:
            DispatcherError: Spark cannot be started; the sentence names what is missing.
        """
        context, options = self.context, self.options
        context.alive()
        session = self.running.enter_context(spark_session(context.settings["spark_options"], f"reput {context.name}"))
        context.alive()
        plan = SinkPlan(str(context.store_directory), self.location, options.name, self.table_options)
        self.query = StreamingQuery(
            session,
            plan,
            context.directory / "scratch",
            commit_log_offset,
            interval_ms=options.interval_ms,
            batch_bytes_max=options.batch_bytes_max,
            split_bytes=options.split_bytes,
        )
        self.running.callback(self.query.stop)
        return self.query

    def flush(self) -> Cursor | None:
        """Keep the cursor. The table is durable already: each commit was forced to disk with its files."""
        if self.end is not None:
            replace_durably(self.cursor_file, msgspec.json.encode(self.end))
        return self.end

    def truncate(self, cursor: Cursor) -> None:
        """Take out of the table what the log does not have any more."""
        self.stop_spark()
        self.lake().truncate(cursor)
        self.end = cursor

    def expire(self, commit_log_offset_min: int) -> None:
        """Nothing: a lake keeps what the log lets go."""

    def delete_topic(self, topic: str) -> None:
        """Nothing: a lake keeps what was once sent."""

    def close(self) -> None:
        """Stop the query and Spark."""
        self.stop_spark()

    def stop_spark(self) -> None:
        """Stop the query and Spark; the next batch starts them again."""
        self.query = None
        self.running.close()
