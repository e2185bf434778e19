"""Batch reads: ``spark.read.format("reput")``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_reput.filter_pushdown import push_filter
from pyspark_reput.log_reading import LogPartition, open_table, partitions_of, read_partition, with_columns
from pyspark_reput.queue_bounds import first_of, queue_places
from pyspark_reput.read_options import EARLIEST, LATEST, ReadOptions
from reput.errors import ConfigError
from reput.table import LogTable, RowFilter
from reput.table.advice_notes import advice_noted
from reput.table.asked_names import asked_topics, require_topics
from reput.table.worker_memory import end_task

__all__ = ["BatchReader", "FilteringBatchReader"]


class BatchReader(DataSourceReader):
    """Plans the splits of a range in one process; reads each in another."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.starting_offset == LATEST:
            raise ConfigError("a batch cannot begin at the latest offset: option=startingOffsets value=latest")
        for (topic, queue_id), offset in sorted(options.starting_queues.items()):
            if offset == LATEST:
                raise ConfigError(
                    "a batch cannot begin at the latest offset: option=startingOffsets "
                    f"topic={topic} queue_id={queue_id}",
                    "Give a queue offset, or -2 for the earliest.",
                )
        if options.ending_offset == EARLIEST:
            raise ConfigError("a batch cannot end at the earliest offset: option=endingOffsets value=earliest")
        # Note the options' topics before the query's filters are added, because filters may name any topic.
        self.topics = asked_topics(options.table.row_filter)
        self.options = with_times(with_columns(options, schema))

    @advice_noted()
    def partitions(self) -> list[LogPartition]:
        """Return the splits of the requested range."""
        options = self.options
        table = open_table(options)
        require_topics(table, self.topics)
        begin, until = self.bounds(table)
        self.refuse_a_time_without_records(table, begin, until)
        places, _ = queue_places(table, options, begin, until)
        begin = first_of(places, options.table.row_filter, begin)
        splits = table.splits(begin, until, split_bytes=options.split_bytes, split_count_min=options.min_partitions)
        end_task()
        return partitions_of(splits, places)

    def bounds(self, table: LogTable) -> tuple[int, int]:
        """Return the requested range as commit-log offsets; it exceeds the durable end only with ``reads=appended``."""
        options = self.options
        end = table.find_durable_end() if options.reads == "durable" else table.find_end()
        begin, until = table.offset_min, end
        if options.starting_timestamp is None and options.starting_offset is not None and options.starting_offset >= 0:
            # With schemaMode=ranges, consecutive ranges must be contiguous, so the offset is used unchanged.
            begin = options.starting_offset
            if options.schema_mode != "ranges":
                begin = table.aligned(begin, end)
        if options.ending_timestamp is None and options.ending_offset is not None and options.ending_offset >= 0:
            until = min(end, options.ending_offset)
            if options.schema_mode != "ranges":
                until = table.aligned(until, end)
        return begin, until

    def refuse_a_time_without_records(self, table: LogTable, begin: int, until: int) -> None:
        """Refuse a starting time after the last record, unless the strategy is to begin at the end."""
        options = self.options
        if options.starting_timestamp is None or options.latest_if_no_record_is_later:
            return
        if table.offset_of_time(options.starting_timestamp, begin, until) == until:
            raise ConfigError(
                f"no record was stored at that time or later: startingTimestamp={options.starting_timestamp}",
                "Set startingOffsetsByTimestampStrategy to latest to read nothing then.",
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        return read_partition(self.options, partition)


class FilteringBatchReader(BatchReader):
    """A batch reader that accepts filters.

    It is a separate class because Spark refuses every read of a reader with `pushFilters` while
    ``spark.sql.python.filterPushdown.enabled`` is false.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept the filters that can be evaluated before a record is decoded; return the others to Spark."""
        options = self.options
        for condition in filters:
            pushed = push_filter(condition, options.table.row_filter, options.schema_mode)
            if pushed is None:
                yield condition
            else:
                options = with_filter(options, pushed)
        self.options = options


def with_filter(options: ReadOptions, row_filter: RowFilter) -> ReadOptions:
    """Return *options* with *row_filter* as the filter."""
    return msgspec.structs.replace(options, table=msgspec.structs.replace(options.table, row_filter=row_filter))


def with_times(options: ReadOptions) -> ReadOptions:
    """Return *options* with the starting and ending times as conditions on the rows."""
    wanted = options.table.row_filter
    times = {"store_timestamp_min": options.starting_timestamp, "store_timestamp_until": options.ending_timestamp}
    return with_filter(options, msgspec.structs.replace(wanted, **times))
