"""Rewriting several data files of an Iceberg table as one: to merge small files, or to drop rows.

pyiceberg cannot merge files, and deletes rows by loading whole files. Here the rows are streamed, and the new file has
the same layout as the files of an export.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table

from reput.store.disk.files import Files
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.iceberg_columns import columns_of_files
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.parquet_files import BUFFERED_BYTES_MAX, PartitionFile, layout_like
from reput_plugins.spark_export.typed.column_types import conform

__all__ = ["Choose", "rewrite", "rows_of"]

# Returns the rows of a table that stay.
Choose = Callable[[pa.Table], pa.Table]


def rewrite(
    location: LakeLocation,
    table: Table,
    tasks: Sequence[FileScanTask],
    first: ParquetFile,
    kept: Choose | None,
) -> ParquetFile | None:
    """Write the rows of *tasks* that *kept* chooses (None: all) into one file, and force it to disk.

    Args:
        first: the file of the first task; all have its partition.

    Returns:
        The file; None if no row is left.
    """
    columns = pa.schema([(field.name, pa.null()) for field in table.schema().fields])
    schema = columns_of_files(table.schema(), columns)
    layout = layout_like(schema, tuple(first.partition), first.null_count, table.properties)
    begin, until = (edge(tasks, number) for number in (0, 1))
    name = f"{begin}-{until}-{uuid.uuid4().hex[:8]}.parquet"
    file = PartitionFile(location, location.filesystem(), tuple(first.partition.values()), name, schema, layout)
    try:
        row_count = buffered = 0
        for rows in rows_of(table, tasks, schema):
            left = rows if kept is None else kept(rows)
            row_count += left.num_rows
            buffered += left.nbytes
            file.batches += left.to_batches()
            if buffered >= BUFFERED_BYTES_MAX:
                file.write()
                buffered = 0
        if not row_count:
            file.abandon()
            return None
        written = file.finish()
    except BaseException:
        file.abandon()
        raise
    if file.path is not None:
        Files().force_together([file.path], file.changed_folders)
    return written


def rows_of(
    table: Table, tasks: Sequence[FileScanTask], schema: pa.Schema, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of *tasks* with the columns of *schema*, one row group at a time.

    *columns*: the columns, and fields of structs, to read, which are those of *schema*; None: all.
    """
    for task in tasks:
        if task.delete_files:
            # Another program has deleted some of the file's rows.
            scan = ArrowScan(table.metadata, table.io, table.schema(), ALWAYS_TRUE)
            yield conform(scan.to_table([task]), schema)
            continue
        with table.io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as source:
            for number in range(source.num_row_groups):
                yield conform(source.read_row_group(number, columns=columns), schema)


def edge(tasks: Sequence[FileScanTask], number: int) -> str:
    """Return the lowest or the highest offset in the names that exports give files."""
    parts = [task.file.file_path.rpartition("/")[2].split("-") for task in tasks]
    known = [part[number] for part in parts if len(part) > 1 and part[number].isdigit()]
    return (min if number == 0 else max)(known, default="0").zfill(20)
