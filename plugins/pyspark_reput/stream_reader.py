"""Streams: ``spark.readStream.format("reput")``.

A checkpoint of another store is refused, and one whose history the log has left: what was read there is gone. See
`stream_position`.

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
    """Follows the log, never beyond what is durable unless that was asked for."""

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
        """Return the table, opened when it is first needed: Spark sends this object from process to process before."""
        if self.table is None:
            table = open_table(self.options)
            self.table, self.positions = table, StreamPositions(table, self.options.store_id)
        return self.table

    def end(self) -> int:
        """Return where the log ends for this stream."""
        return self.log().find_durable_end() if self.options.reads == "durable" else self.log().find_end()

    def offset(self, commit_log_offset: int) -> dict[str, Any]:
        """Return a position of the present history as Spark keeps it."""
        self.log()
        return self.positions.offset(commit_log_offset)

    def position(self, offset: dict[str, Any]) -> int:
        """Return the commit-log offset of a position that Spark kept.

        Raises:
            StoreError: it is of another store, or of a history that the log has left.
        """
        log_end = self.log().find_end()
        return self.positions.position(offset, log_end)

    @advice_noted()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark asks more than once and wants one answer."""
        if self.first is None:
            self.first = self.offset(self.find_first())
        return self.first

    def find_first(self) -> int:
        """Return where the options say that a new query begins. One with a checkpoint outlives its topics.

        Raises:
            ConfigError: a topic is asked for that the store does not have, or a time at which it stored nothing more.
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
            # As in Kafka's source: with single queues' offsets a query begins with them, else with what comes.
            return begin if options.table.row_filter.queue_ranges else until
        if options.starting_offset == EARLIEST:
            return begin
        if options.starting_offset < 0:
            return until
        exact = options.schema_mode == "ranges"
        return options.starting_offset if exact else table.aligned(options.starting_offset, until)

    def prepareForTriggerAvailableNow(self) -> None:
        """Keep the present end as the end of this run."""
        self.target = self.end()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a bound if the options have one. A limit of Spark's has one kind; `limited` keeps to both kinds."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        return ReadAllAvailable()

    @advice_noted()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; *start* as it is if nothing was appended."""
        begin = self.position(start)
        end = self.end() if self.target is None else self.target
        if end <= begin:
            return start
        if isinstance(limit, ReadMaxBytes | ReadMaxRows):
            end = self.limited(begin, end)
        return self.offset(end)

    def limited(self, begin: int, end: int) -> int:
        """Return the end of a micro-batch from *begin* on that keeps to every bound of the options."""
        options, table = self.options, self.log()
        if options.max_bytes_per_trigger is not None:
            end = table.next_record(begin + options.max_bytes_per_trigger, end)
        if options.max_offsets_per_trigger is not None:
            end = table.offset_after(begin, end, options.max_offsets_per_trigger)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return how far the log has grown, for the progress that Spark reports."""
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
        """Nothing: the query's own checkpoint says where it is, and this call comes late or never."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open table: workers open their own."""
        return {name: value for name, value in self.__dict__.items() if name != "positions"} | {"table": None}
