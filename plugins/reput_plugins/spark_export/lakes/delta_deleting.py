"""The rows of a Delta table's files that a merge by key replaces, and those that deletion vectors have left.

To find the replaced rows, only the key columns of the files are read. Data files never change, so those of the
last merges are kept in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.changed_keys import (
    ChangedKeys,
    Flags,
    NumberOrder,
    Numbers,
    columns_in,
    without_rows,
)
from reput_plugins.spark_export.lakes.deletion_vectors import read_rows
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.typed.column_types import conform

__all__ = ["KEPT_BYTES_MAX", "kept_rows", "rows_with_keys", "without_deleted"]

# Ten million rows with a whole number as their key take 210 MB: the numbers, their order, and a byte for the store.
KEPT_BYTES_MAX = 256 << 20
THREADS = 2


class FileKeys:
    """The key columns of a data file.

    Attributes:
        own: for each row, whether it has the further values of the merges.
        order: the order of a column of numbers, made when the columns are used for the second time; None: not yet.
    """

    def __init__(self, rows: pa.Table, own: Flags) -> None:
        self.rows = rows
        self.own = own
        self.order: NumberOrder | None = None

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        return int(self.rows.nbytes + self.own.nbytes) + (0 if self.order is None else self.order.nbytes)


class KeptKeys:
    """The key columns of data files, those used last, up to *bytes_max*."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.files: OrderedDict[Any, FileKeys] = OrderedDict()
        self.lock = threading.Lock()

    def take(self, name: Any) -> FileKeys | None:
        """Return the columns kept under *name*, and keep them no longer; None: they are not kept."""
        with self.lock:
            found = self.files.pop(name, None)
            self.bytes -= 0 if found is None else found.nbytes
            return found

    def keep(self, name: Any, keys: FileKeys) -> None:
        """Keep columns, and drop those not used for the longest time if there is no room for all."""
        with self.lock:
            if name not in self.files and keys.nbytes <= self.bytes_max:
                self.files[name] = keys
                self.bytes += keys.nbytes
                while self.bytes > self.bytes_max:
                    self.bytes -= self.files.popitem(last=False)[1].nbytes


# One for the process: a table is opened anew for each transaction.
KEPT = KeptKeys()


def rows_with_keys(
    location: LakeLocation, files: Sequence[ParquetFile], schema: pa.Schema, changed: ChangedKeys
) -> list[Numbers]:
    """Return, for each file, the numbers of the rows that are replaced, ascending; deleted rows may be among them.

    Raises:
        OSError: a file cannot be read.
    """
    names = [*changed.key, *changed.equal]
    columns = columns_in(schema, names)

    def find(file: ParquetFile) -> Numbers:
        name = (location.address, file.path, tuple(changed.key), tuple(changed.equal.items()))
        keys = KEPT.take(name)
        if keys is None:
            rows = pa.concat_tables(rows_of(location, file, columns, names)).combine_chunks()
            keys = FileKeys(rows.select(changed.key), changed.own_rows(rows))
        elif keys.order is None and changed.number_column is not None:
            column = keys.rows[changed.number_column]
            keys.order = None if column.null_count else NumberOrder(column)
        found = changed.rows_in(keys.rows, keys.own, keys.order)
        KEPT.keep(name, keys)
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(find, files))


def kept_rows(
    location: LakeLocation, file: ParquetFile, schema: pa.Schema, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a file that are not deleted, as `rows_of`.

    Raises:
        OSError: the file or its deletion vector cannot be read.
    """
    yield from without_deleted(rows_of(location, file, schema, columns), read_rows(location, file.deletion))


def without_deleted(pieces: Iterable[Any], deleted: Numbers) -> Iterator[Any]:
    """Yield tables or batches, which follow each other in a file, without the rows of the numbers *deleted* in it."""
    first = 0
    for rows in pieces:
        until = first + rows.num_rows
        yield without_rows(rows, deleted[slice(*np.searchsorted(deleted, (first, until)))] - first)
        first = until


def rows_of(
    location: LakeLocation, file: ParquetFile, schema: pa.Schema, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield all rows of a file with the columns of *schema*, which may include those of its folder, by row group.

    *columns*: the columns, and fields of structs, to read, which are those of *schema*; None: all.
    """
    in_folder = {field.name: file.partition[field.name] for field in schema if field.name in file.partition}
    names = None if columns is None else [name for name in columns if name not in in_folder]
    with location.filesystem().open_input_file(file.path) as stream, pq.ParquetFile(stream) as source:
        for number in range(source.num_row_groups):
            rows = source.read_row_group(number, columns=names, use_threads=False)
            for name, text in in_folder.items():
                value = pa.scalar(text, pa.string()).cast(schema.field(name).type)
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
            yield conform(rows, schema)
