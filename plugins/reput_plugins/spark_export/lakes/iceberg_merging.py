"""Merging rows into an Iceberg table by key: which files hold one of the keys, and the files of the new rows.

pyiceberg's own upsert loads every row of the table that has one of the keys, and compares it. Here only the key columns
are read to find the files that hold a key; these are rewritten, one row group at a time, without the replaced rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import FileScanTask, Table

from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.iceberg_columns import arrow_columns, columns_of_files
from reput_plugins.spark_export.lakes.iceberg_rewriting import rows_of
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.parquet_files import UNKNOWN_RANGE, PartitionWriters, layout_like, values_of

__all__ = ["ChangedKeys", "write_rows"]

ROW = "row"


class ChangedKeys:
    """The keys of a merge: rows of the table that have one of them, and the values in *equal*, are replaced."""

    def __init__(self, rows: pa.Table, key: Sequence[str], equal: Mapping[str, str]) -> None:
        self.key = list(key)
        self.equal = equal
        # By number, because a column may have any name.
        self.names = list(map(str, range(len(self.key))))
        self.keys = rows.select(self.key).rename_columns(self.names)
        numbers = [name for name in key if pa.types.is_integer(rows.schema.field(name).type)]
        self.bounds = {name: pc.min_max(rows[name]).as_py() for name in numbers}

    def may_be_in(self, file: ParquetFile) -> bool:
        """Return whether the bounds of a file's key columns do not exclude all keys."""
        return all(
            name not in file.minimum or (file.minimum[name] <= found["max"] and file.maximum[name] >= found["min"])
            for name, found in self.bounds.items()
        )

    def are_in(self, table: Table, task: FileScanTask) -> bool:
        """Return whether a file holds a row that is replaced. Only the columns that decide over it are read."""
        columns = [*self.key, *self.equal]
        schema = arrow_columns(table.schema(), with_ids=False)
        needed = pa.schema([part_of(schema, name) for name in columns])
        return any(self.rows_in(rows).any() for rows in rows_of(table, [task], needed, columns))

    def without(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are not replaced."""
        return rows.filter(pa.array(~self.rows_in(rows)))

    def rows_in(self, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return, for each of *rows*, whether it is replaced."""
        found, own = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
        for name, value in self.equal.items():
            own &= pc.fill_null(pc.equal(values_of(rows, name), value), False).to_numpy()
        numbers = pa.array(np.arange(rows.num_rows))
        numbered = pa.table([*(rows[name] for name in self.key), numbers], names=[*self.names, ROW])
        same = numbered.filter(pa.array(own)).join(self.keys, self.names, join_type="left semi")
        found[same[ROW].to_numpy()] = True
        return found


def part_of(schema: pa.Schema, name: str) -> pa.Field:
    """Return a column; for the field of a struct (``column.field``), the struct with this field alone."""
    column, _, part = name.partition(".")
    field = schema.field(column)
    return field.with_type(pa.struct([field.type.field(part)])) if part else field


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
