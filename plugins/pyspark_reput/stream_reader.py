"""Streams: ``spark.readStream.format("reput")``.

A stream's offset is where it is in the log, exclusive:

    {"v": 1, "store": "<store id>", "epoch": <n>, "offset": <commit-log offset>}

A checkpoint of another store is refused, and one whose history the log has left: what was read there is gone.

`initialOffset`, `latestOffset`, `partitions` and `commit` run in one long-lived process per stream, `read` in workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
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
from reput.errors import ConfigError, StoreError
from reput.store.epochs import read_epochs
from reput.table import LogTable
from reput.table.advice_notes import advice_noted
from reput.table.asked_names import asked_topics, require_queue_offsets, require_topics
from reput_hooks import Cursor

__all__ = ["StreamOffset", "StreamReader"]

OFFSET_VERSION = 1


class StreamOffset(msgspec.Struct, frozen=True, rename={"version": "v"}):
    """Where a stream is: everything below *offset* was read."""

    version: int
    store: str
    epoch: int
    offset: int


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log, never beyond what is durable unless that was asked for."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, value in (("endingOffsets", options.ending_offset), ("endingTimestamp", options.ending_timestamp)):
            if value is not None:
                raise ConfigError(f"a stream has no end: option={name}")
        self.options = with_columns(options, schema)
        self.table: LogTable | None = None
        self.store_id = ""
        self.first: dict[str, Any] | None = None
        self.target: int | None = None

    def log(self) -> LogTable:
        """Return the table, opened when it is first needed: Spark sends this object from process to process before.

        Raises:
            ConfigError: a topic is asked for that the store does not have.
        """
        if self.table is None:
            table = open_table(self.options)
            require_topics(table, asked_topics(self.options.table.row_filter))
            self.table, self.store_id = table, table.store_id
        return self.table

    def end(self) -> int:
        """Return where the log ends for this stream."""
        return self.log().find_durable_end() if self.options.reads == "durable" else self.log().find_end()

    def offset(self, commit_log_offset: int) -> dict[str, Any]:
        """Return a position of the present history as Spark keeps it."""
        table = self.log()
        epoch = read_epochs(table.store_directory, self.store_id).epoch
        found: dict[str, Any] = msgspec.to_builtins(
            StreamOffset(OFFSET_VERSION, self.store_id, epoch, commit_log_offset)
        )
        return found

    def position(self, offset: dict[str, Any]) -> int:
        """Return the commit-log offset of a position that Spark kept.

        Raises:
            StoreError: it is of another store, or of a history that the log has left.
        """
        table = self.log()
        try:
            known = msgspec.convert(offset, StreamOffset)
        except msgspec.ValidationError as error:
            raise StoreError(f"the checkpoint holds no offset of reput's: offset={offset} error={error}") from None
        if known.version != OFFSET_VERSION:
            raise StoreError(f"a newer reput wrote the checkpoint: v={known.version} known={OFFSET_VERSION}")
        if known.store != self.store_id:
            raise StoreError(
                f"the checkpoint is of another store: checkpoint_store_id={known.store} store_id={self.store_id}",
                "Start the query with a checkpoint of its own.",
            )
        cut = read_epochs(table.store_directory, self.store_id).first_difference(
            Cursor(known.store, known.epoch, known.offset, 0), table.offset_min
        )
        if cut is not None:
            raise StoreError(
                f"the log was cut below the checkpoint: cut_at={cut.commit_log_offset} "
                f"checkpoint_offset={known.offset} checkpoint_epoch={known.epoch} epoch={cut.epoch}",
                "Remove the rows from cut_at on from what the query wrote, and start it with a new checkpoint and "
                "startingOffsets set to cut_at.",
            )
        return known.offset

    @advice_noted()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark asks more than once and wants one answer."""
        if self.first is None:
            self.first = self.offset(self.find_first())
        return self.first

    def find_first(self) -> int:
        """Return where the options say that a new query begins."""
        options, table = self.options, self.log()
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
        return {**self.__dict__, "table": None}
