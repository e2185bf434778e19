"""Streams: ``spark.readStream.format("reput")``.

A stream refuses the checkpoint of another store. It also refuses a checkpoint whose history the log no longer has,
because the log was cut below the stream's position. See `stream_position`.

`initialOffset`, `latestOffset`, `partitions` and `commit` run in one long-lived process per stream, `read` in workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_reput.lag_report import reported_lag
from pyspark_reput.log_reading import LogPartition, open_table, partitions_of, read_partition, with_columns
from pyspark_reput.queue_bounds import Places, bounded, first_of, queue_places
from pyspark_reput.read_options import EARLIEST, ReadOptions
from pyspark_reput.stream_position import StreamOffset, StreamPositions, begins_of
from reput.errors import ConfigError, OffsetOutOfRange
from reput.table import LogTable
from reput.table.advice_notes import advice_noted
from reput.table.asked_names import asked_topics, require_topics
from reput.table.queue_offsets_in_log import QueueNumbers

__all__ = ["StreamOffset", "StreamReader"]

logger = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log; it reads beyond the durable end only with ``reads=appended``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, is_given in (
            ("endingOffsets", options.ending_offset is not None or options.ending_queues),
            ("endingTimestamp", options.ending_timestamp is not None),
            ("endingOffsetsByTimestamp", options.ending_times),
        ):
            if is_given:
                raise ConfigError(f"a stream has no end: option={name}")
        self.options = with_columns(options, schema)
        self.table: LogTable | None = None
        self.positions: StreamPositions
        self.first: dict[str, Any] | None = None
        self.target: int | None = None
        # End and time of the last micro-batch that Spark was given; the time is in seconds of the monotonic clock.
        self.reached: dict[str, Any] | None = None
        self.triggered: float | None = None
        # Begin, end and number of rows of the next micro-batch while it waits for more rows.
        self.counted = (0, 0, 0)

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
            StoreError: the position belongs to another store, or to a history that the log no longer has.
        """
        log_end = self.log().find_end()
        return self.positions.position(offset, log_end)

    @advice_noted()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark calls this repeatedly and expects the same answer."""
        if self.first is None:
            begin = self.find_first()
            places, numbers = queue_places(self.log(), self.options, begin, self.end())
            self.refuse_future_offsets(numbers)
            begins = [(topic, queue_id, at) for (topic, queue_id), (at, _) in sorted(places.items()) if at is not None]
            self.first = self.positions.offset(first_of(places, self.options.table.row_filter, begin), begins)
        return self.first

    def refuse_future_offsets(self, numbers: dict[tuple[str, int], QueueNumbers]) -> None:
        """Refuse queue offsets that their queue has not reached, or warn that the queue begins at its end.

        Raises:
            OffsetOutOfRange: a queue ends before its starting offset.
        """
        for (topic, queue_id), found in numbers.items():
            asked, known = self.options.starting_queues[topic, queue_id], found.last is not None
            next_offset = 0 if found.last is None else found.last + 1
            if asked > next_offset and (known or self.log().offset_min == 0):
                error = OffsetOutOfRange(
                    f"the queue ends before this queue offset: topic={topic} queue_id={queue_id} queue_offset={asked} "
                    f"next_queue_offset={next_offset}",
                    "If the topic was created again, its queues count from 0. Set failOnDataLoss to false to begin at "
                    "the queue's end.",
                )
                if self.options.table.fail_on_data_loss:
                    raise error
                logger.warning("%s", error)

    def find_first(self) -> int:
        """Return where a new query begins according to the options.

        Only a new query requires its topics to exist; a query with a checkpoint continues after their deletion.

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
        """Return a limit if the options set one. Spark's limit has one kind; `latestOffset` applies all options."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @advice_noted()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, or *start* unchanged if nothing was appended."""
        begin, places = self.position(start), places_of(start)
        end = self.end() if self.target is None else self.target
        self.reached = start
        if end <= begin:
            return start
        if isinstance(limit, ReadMaxBytes | ReadMaxRows | ReadMinRows):
            if self.waits(begin, end, places):
                return start
            end = self.limited(begin, end, places)
        self.triggered = time.monotonic()
        self.reached = self.positions.offset(end, begins_of(start))
        return self.reached

    def waits(self, begin: int, end: int, places: Places) -> bool:
        """Return whether a micro-batch must wait for more rows.

        As in Kafka's source, the first micro-batch of a run never waits. With AvailableNow none waits.
        """
        options = self.options
        if options.min_offsets_per_trigger is None or self.target is not None or self.triggered is None:
            return False
        if time.monotonic() - self.triggered >= options.max_trigger_delay_ms / 1000:
            return False
        # Spark asks many times a second, so only records that are new since the last time are counted.
        known_begin, counted_end, rows = self.counted
        if known_begin != begin:
            counted_end, rows = begin, 0
        rows += self.log().count_rows(counted_end, end, bounded(options.table.row_filter, places))
        self.counted = begin, end, rows
        return rows < options.min_offsets_per_trigger

    def limited(self, begin: int, end: int, places: Places) -> int:
        """Return the end of a micro-batch from *begin* on that respects every limit in the options."""
        options, table = self.options, self.log()
        if options.max_bytes_per_trigger is not None:
            end = table.next_record(begin + options.max_bytes_per_trigger, end)
        if options.max_offsets_per_trigger is not None:
            wanted = bounded(options.table.row_filter, places)
            end = table.offset_after(begin, end, options.max_offsets_per_trigger, wanted)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the log's end and how far the query is behind it, for Spark's progress report; see `lag_report`."""
        end = self.end()
        report = self.offset(end)
        if self.reached is not None:
            wanted = bounded(self.options.table.row_filter, places_of(self.reached))
            report["lag"] = reported_lag(self.log(), self.reached["offset"], end, wanted)
        return report

    @advice_noted()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        """Return the splits of one micro-batch."""
        options = self.options
        begin, until = self.position(start), self.position(end)
        splits = self.log().splits(
            begin, until, split_bytes=options.split_bytes, split_count_min=options.min_partitions
        )
        return partitions_of(splits, places_of(start))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split. Runs in a worker."""
        return read_partition(self.options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the query's checkpoint holds its position, and Spark makes this call late or never."""

    def __getstate__(self) -> dict[str, Any]:
        """Omit the open table: workers open their own."""
        return {name: value for name, value in self.__dict__.items() if name != "positions"} | {"table": None}


def places_of(offset: dict[str, Any]) -> Places:
    """Return the bounds of single queues that a position from Spark's checkpoint holds."""
    return {(topic, queue_id): (begin, None) for topic, queue_id, begin in begins_of(offset)}
