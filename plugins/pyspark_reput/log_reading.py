"""Code shared by batch reads and streams: the table with the chosen columns, partitions, and the rows of one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_reput.queue_bounds import Places, bounded
from pyspark_reput.read_options import ReadOptions
from pyspark_reput.spark_schema import DAMAGE_SCHEMA, RANGES_SCHEMA, chosen_columns
from reput.table import LogTable, Split
from reput.table.advice_notes import advice_noted
from reput.table.worker_memory import end_task

__all__ = ["LogPartition", "open_table", "partitions_of", "read_partition", "with_columns"]

# Columns that show bytes of bodies.
BODY_COLUMNS = frozenset(("body", "value"))
# What one task reads, unless `splitBytes` says otherwise. Without bodies a record takes less time, and a task about as
# long to begin.
SPLIT_BYTES, SPLIT_BYTES_WITHOUT_BODIES = 64 << 20, 256 << 20


class LogPartition(InputPartition):
    """The records that begin at commit-log offsets from *begin* on, below *until*: one task.

    *places* bounds single queues.
    """

    def __init__(self, begin: int, until: int, places: Places) -> None:
        super().__init__((begin, until))
        self.begin = begin
        self.until = until
        self.places = places


def with_columns(options: ReadOptions, schema: StructType) -> ReadOptions:
    """Return *options* with the columns of *schema*, which Spark or the user chose, and the size of the splits.

    Raises:
        ConfigError: a column does not exist, or has another type.
    """
    columns = chosen_columns(options, schema)
    replace = msgspec.structs.replace
    without_bodies = options.schema_mode in ("rocketmq", "kafka") and BODY_COLUMNS.isdisjoint(columns)
    split_bytes = SPLIT_BYTES_WITHOUT_BODIES if without_bodies else SPLIT_BYTES
    options = replace(options, split_bytes=options.split_bytes or split_bytes)
    if options.schema_mode in ("ranges", "damage"):
        return options
    table = replace(options.table, row_format=replace(options.table.row_format, columns=columns))
    if options.verifies_what_is_read and without_bodies:
        # The bodies are not even read into the processor's cache; reading them would be most of the query's cost.
        table = replace(table, verify_crc="tail")
    return replace(options, table=table)


def open_table(options: ReadOptions, places: Places | None = None) -> LogTable:
    """Return the table of *options*; *places* bounds single queues."""
    table = options.table
    table = msgspec.structs.replace(table, row_filter=bounded(table.row_filter, places or {}))
    if options.schema_mode == "damage":
        row_format = msgspec.structs.replace(table.row_format, columns=("commitLogOffset",))
        table = msgspec.structs.replace(table, on_corruption="report", row_format=row_format)
    return LogTable(options.store, table)


def partitions_of(splits: list[Split], places: Places) -> list[LogPartition]:
    """Return one partition for each split; *places* bounds single queues."""
    return [LogPartition(split.begin, split.until, places) for split in splits]


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *partition*. Runs in a worker on any machine that sees the store under the same path."""
    # If there are no partitions, Spark creates one of its own.
    if not isinstance(partition, LogPartition):
        return
    if options.schema_mode == "ranges":
        yield pa.record_batch([[partition.begin], [partition.until]], schema=RANGES_SCHEMA)
        return
    with advice_noted():
        table = open_table(options, partition.places)
        batches = table.batches(partition.begin, partition.until)
        if options.schema_mode != "damage":
            yield from batches
            del table, batches
            end_task()
            return
        for _ in batches:
            pass
    if table.damage:
        columns = zip(*((damaged.begin, damaged.end, damaged.reason) for damaged in table.damage), strict=True)
        yield pa.record_batch([list(column) for column in columns], schema=DAMAGE_SCHEMA)
