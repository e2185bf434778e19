"""Streams: ``spark.readStream.format("reput")``.

It refuses a checkpoint of another store, and one whose history the log no longer has: the log was cut below what the
stream has read. See `stream_position`.

`initialOffset`, `latestOffset`, `partitions` and `commit` run in one long-lived process per stream, `read` in workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_reput.log_reading import LogPartition, open_table, partitions_of, read_partition, with_columns
from pyspark_reput.read_options import EARLIEST, ReadOptions
from pyspark_reput.stream_position import StreamOffset, StreamPositions
from reput.errors import ConfigError
from reput.table import LogTable
from reput.table.advice_notes import advice_noted
from reput.table.asked_names import asked_topics, require_queue_offsets, require_topics

__all__ = ["StreamOffset", "StreamReader"]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log; it reads beyond the durable end only with ``reads=appended``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, value in (("endingOffsets", options.ending_offset), ("endingTimestamp", options.ending_timestamp)):
            if value is not None:
                raise ConfigError(f"a stream has no end: option={name}")
        self.options = with_columns(options, schema)
        self.table: LogTable | None = None
        self.positions: StreamPositions
        self.first: dict[str, Any] | None = None
        self.target: int | None = None

    def log(self) -> LogTable:
        """Return the table, opened on first use, because Spark first pickles this object between processes."""
        if self.table is None:
            table = open_table(self.options)
            self.table, self.positions = table, StreamPositions(table, self.options.store_id)
        return self.table

    def end(self) -> int:
        """Return where the log ends for this stream."""
        return self.log().find_durable_end() if self.options.reads == "durable" else self.log().find_end()

    def offset(self, commit_log_offset: int) -> dict[str, Any]:
        """Return a position in the current history, in the form of Spark's checkpoint."""
        self.log()
        return self.positions.offset(commit_log_offset)

    def position(self, offset: dict[str, Any]) -> int:
        """Return the commit-log offset of a position from Spark's checkpoint.

        Raises:
            StoreError: it belongs to another store, or to a history that the log no longer has.
        """
        log_end = self.log().find_end()
        return self.positions.position(offset, log_end)

    @advice_noted()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark calls this repeatedly and expects the same answer."""
        if self.first is None:
            self.first = self.offset(self.find_first())
        return self.first

    def find_first(self) -> int:
        """Return where a new query begins according to the options.

        Only a new query requires its topics to exist; one with a checkpoint continues after their deletion.

        Raises:
            ConfigError: the store lacks a requested topic, or has no record at or after the starting time.
        """
        options, table = self.options, self.log()
        require_topics(table, asked_topics(options.table.row_filter))
        begin, until = table.offset_min, self.end()
        if options.starting_timestamp is not None:
            found = table.offset_of_time(options.starting_timestamp, begin, until)
            if found == until and not options.latest_if_no_record_is_later:
                raise ConfigError(
                    f"no record was stored at that time or later: startingTimestamp={options.starting_timestamp}",
                    "Set startingOffsetsByTimestampStrategy to latest to begin at the end then.",
                )
            return found
        if options.starting_offset is None:
            require_queue_offsets(table)
            # As in Kafka's source: if offsets are given by queue, the query begins with them, else at the end.
            return begin if options.table.row_filter.queue_ranges else until
        if options.starting_offset == EARLIEST:
            return begin
        if options.starting_offset < 0:
            return until
        exact = options.schema_mode == "ranges"
        return options.starting_offset if exact else table.aligned(options.starting_offset, until)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current end as the end of this run."""
        self.target = self.end()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit if the options set one. Spark's limit has one kind; `limited` applies both options."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        return ReadAllAvailable()

    @advice_noted()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, or *start* unchanged if nothing was appended."""
        begin = self.position(start)
        end = self.end() if self.target is None else self.target
        if end <= begin:
            return start
        if isinstance(limit, ReadMaxBytes | ReadMaxRows):
            end = self.limited(begin, end)
        return self.offset(end)

    def limited(self, begin: int, end: int) -> int:
        """Return the end of a micro-batch from *begin* on that respects every limit in the options."""
        options, table = self.options, self.log()
        if options.max_bytes_per_trigger is not None:
            end = table.next_record(begin + options.max_bytes_per_trigger, end)
        if options.max_offsets_per_trigger is not None:
            end = table.offset_after(begin, end, options.max_offsets_per_trigger)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the log's end, for Spark's progress report."""
        return self.offset(self.end())

    @advice_noted()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        """Return the splits of one micro-batch."""
        options = self.options
        begin, until = self.position(start), self.position(end)
        splits = self.log().splits(
            begin, until, split_bytes=options.split_bytes, split_count_min=options.min_partitions
        )
        return partitions_of(splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split. Runs in a worker."""
        return read_partition(self.options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the query's checkpoint holds its position, and Spark makes this call late or never."""

    def __getstate__(self) -> dict[str, Any]:
        """Omit the open table: workers open their own."""
        return {name: value for name, value in self.__dict__.items() if name != "positions"} | {"table": None}
