"""ChangedKeys: the keys of a merge, and which rows of a table have one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.parquet_files import values_of

__all__ = ["ChangedKeys", "columns_in", "without_rows"]

ROW = "row"
# Knuth's multiplier: the upper bits of a product depend on all bits of the number.
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# A hundred thousand keys then share 2 ** 22 places, so two of a hundred other numbers pass. They fit into a cache.
PLACES_OF_KEY_BITS, PLACES_BITS_MAX = 5, 22
CHUNK_ROWS = 1 << 16

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class ChangedKeys:
    """The keys of a merge: rows of the table that have one of them, and the values in *equal*, are replaced."""

    def __init__(self, rows: pa.Table, key: Sequence[str], equal: Mapping[str, str]) -> None:
        self.key = list(key)
        self.equal = equal
        # By number, because a column may have any name.
        self.names = list(map(str, range(len(self.key))))
        self.keys = rows.select(self.key).rename_columns(self.names).combine_chunks()
        numbers = [name for name in key if pa.types.is_integer(rows.schema.field(name).type)]
        self.bounds = {name: pc.min_max(rows[name]).as_py() for name in numbers}
        self.number_column = next(iter(numbers), None)
        self.numbers = None if self.number_column is None else NumberSet(rows[self.number_column])

    def may_be_in(self, file: ParquetFile) -> bool:
        """Return whether the bounds of a file's key columns do not exclude all keys."""
        return all(
            name not in file.minimum or (file.minimum[name] <= found["max"] and file.maximum[name] >= found["min"])
            for name, found in self.bounds.items()
        )

    def without(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are not replaced."""
        return without_rows(rows, self.rows_in(rows, self.own_rows(rows)))

    def own_rows(self, rows: pa.Table) -> Flags:
        """Return, for each of *rows*, whether it has the values in *equal*."""
        own = np.ones(rows.num_rows, bool)
        for name, value in self.equal.items():
            same = pc.fill_null(pc.equal(values_of(rows, name), value), False)
            own &= same.to_numpy() if isinstance(same, pa.ChunkedArray) else same.to_numpy(zero_copy_only=False)
        return own

    def rows_in(self, rows: pa.Table, own: Flags, order: NumberOrder | None = None) -> Numbers:
        """Return the numbers of those of *rows* that are replaced, ascending.

        Args:
            own: the answer of `own_rows`.
            order: the order of the numbers in `number_column`; None: it is not known.
        """
        found: Numbers | None = None
        if self.numbers is not None:
            found = self.numbers.rows_in(rows[self.number_column]) if order is None else order.rows_of(self.numbers)
        for name, number in zip(self.key, self.names, strict=True):
            if found is None or (name != self.number_column and len(found)):
                values = rows[name] if found is None else rows[name].take(pa.array(found))
                same = np.flatnonzero(pc.is_in(values, value_set=self.keys[number]).to_numpy())
                found = same if found is None else found[same]
        assert found is not None
        found = found[own[found]]
        if len(self.key) > 1 and len(found):
            # Each column has a value of some key, but not all of the same.
            chosen = rows.select(self.key).take(pa.array(found)).rename_columns(self.names)
            numbered = chosen.append_column(ROW, pa.array(found))
            same = numbered.join(self.keys, self.names, join_type="left semi", use_threads=False)
            found = np.sort(same[ROW].to_numpy())
        return found


class NumberSet:
    """A set of whole numbers, the key column of a merge.

    Mostly, other numbers are asked for. One look at a table of places, a Bloom filter with one hash, tells most of
    them.
    """

    def __init__(self, values: pa.ChunkedArray) -> None:
        numbers = np.sort(values.to_numpy().astype(np.int64))
        self.sorted = numbers[np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))]
        bits = min(len(self.sorted).bit_length() + PLACES_OF_KEY_BITS, PLACES_BITS_MAX)
        self.shift = np.uint64(64 - bits)
        self.places = np.zeros(1 << bits, bool)
        self.places[self.place_of(self.sorted)] = True

    def rows_in(self, values: pa.ChunkedArray) -> Numbers:
        """Return where *values* are in the set, ascending; nulls are not."""
        found, first = [np.empty(0, np.int64)], 0
        for chunk in values.chunks:
            numbers = pc.fill_null(chunk, 0).to_numpy().astype(np.int64, copy=False)
            for begin in range(0, len(numbers), CHUNK_ROWS):
                part = numbers[begin : begin + CHUNK_ROWS]
                rows = np.flatnonzero(self.places[self.place_of(part)])
                rows = rows[self.has(part[rows])] + begin
                found.append((rows if not chunk.null_count else rows[chunk.take(pa.array(rows)).is_valid()]) + first)
            first += len(numbers)
        return np.concatenate(found)

    def has(self, numbers: Numbers) -> Flags:
        """Return, for each of *numbers*, whether it is in the set."""
        at = np.searchsorted(self.sorted, numbers)
        return self.sorted[np.minimum(at, len(self.sorted) - 1)] == numbers if len(self.sorted) else at < 0

    def place_of(self, numbers: Numbers) -> Numbers:
        """Return the place of each number in the table."""
        return ((numbers.view(np.uint64) * MULTIPLIER) >> self.shift).view(np.int64)


class NumberOrder:
    """The numbers of a column in ascending order. It takes a while to make, and is then searched in no time."""

    def __init__(self, values: pa.ChunkedArray) -> None:
        numbers = values.to_numpy()
        order = np.argsort(numbers, kind="stable")
        self.numbers = numbers[order]
        # No file has 2 ** 32 rows.
        self.rows = order.astype(np.uint32)
        self.distinct = bool((self.numbers[1:] != self.numbers[:-1]).all())

    @property
    def nbytes(self) -> int:
        """The size in memory."""
        return int(self.numbers.nbytes + self.rows.nbytes)

    def rows_of(self, wanted: NumberSet) -> Numbers:
        """Return the rows whose number is wanted, ascending."""
        if not len(self.numbers):
            return np.empty(0, np.int64)
        # A file often has a narrow range of keys.
        first = np.searchsorted(wanted.sorted, self.numbers[0])
        numbers = wanted.sorted[first : np.searchsorted(wanted.sorted, self.numbers[-1], "right")]
        at = np.searchsorted(self.numbers, numbers)
        if self.distinct:
            at = at[self.numbers[np.minimum(at, len(self.numbers) - 1)] == numbers]
        else:
            counts = np.searchsorted(self.numbers, numbers, "right") - at
            at = np.repeat(at - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return np.sort(self.rows[at]).astype(np.int64)


def without_rows(rows: Any, gone: Numbers) -> Any:
    """Return a table or batch without the rows with the numbers *gone*."""
    if not len(gone):
        return rows
    kept = np.ones(rows.num_rows, bool)
    kept[gone] = False
    return rows.filter(pa.array(kept))


def columns_in(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the named columns of a table; a struct has only those fields that are named (``column.field``)."""
    wanted: dict[str, set[str]] = {}
    for name in names:
        column, _, field = name.partition(".")
        wanted.setdefault(column, set()).update([field] if field else [])
    found = []
    for column, fields in wanted.items():
        kept = schema.field(column)
        found.append(kept.with_type(pa.struct([part for part in kept.type if part.name in fields])) if fields else kept)
    return pa.schema(found)
