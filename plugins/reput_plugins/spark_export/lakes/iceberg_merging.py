"""Merging rows into an Iceberg table by key: which files hold one of the keys, and the files of the new rows.

pyiceberg's own upsert loads every row of the table that has one of the keys, and compares it. Here only the key columns
are read to find the files that hold a key; these are rewritten, one row group at a time, without the replaced rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.table import FileScanTask, Table

from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.changed_keys import ChangedKeys, columns_in
from reput_plugins.spark_export.lakes.iceberg_columns import arrow_columns, columns_of_files
from reput_plugins.spark_export.lakes.iceberg_rewriting import rows_of
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.parquet_files import UNKNOWN_RANGE, PartitionWriters, layout_like

__all__ = ["holds_key", "write_rows"]


def holds_key(table: Table, task: FileScanTask, changed: ChangedKeys) -> bool:
    """Return whether a file holds a row that is replaced. Only the columns that decide over it are read."""
    columns = [*changed.key, *changed.equal]
    needed = columns_in(arrow_columns(table.schema(), with_ids=False), columns)
    return any(len(changed.rows_in(rows, changed.own_rows(rows))) for rows in rows_of(table, [task], needed, columns))


def write_rows(
    location: LakeLocation,
    table: Table,
    rows: pa.Table,
    partition_columns: Sequence[str],
    statistics: Sequence[str],
) -> list[ParquetFile]:
    """Write *rows* into files of their partitions, and force them to disk.

    Raises:
        OSError: a file cannot be written. The files of this call are removed.
    """
    schema = columns_of_files(table.schema(), rows.schema)
    layout = layout_like(schema, partition_columns, statistics, table.properties)
    writers = PartitionWriters(location, f"{UNKNOWN_RANGE}-{uuid.uuid4().hex[:8]}.parquet", layout)
    try:
        writers.add_table(rows, schema)
        return writers.finish()
    except BaseException:
        writers.abandon()
        raise
