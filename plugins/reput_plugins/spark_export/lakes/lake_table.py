"""LakeTable: the interface between exports and tables, the same for every format. It uses plain values only.

    Lake          how far the table holds each log, which rows a cut removes, when a commit is refused
    └ LakeTable   one version of one table: add files, delete rows, keep a few numbers, list files and transactions

A table keeps *recorded numbers* by name: how far it holds each log. They change in the same transaction as the rows, so
after a crash both changes are there, or neither is. A transaction may carry *info*, JSON objects by name, for people
and checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from reput_plugins.spark_export.lakes.deletion_vectors import DeletionVector

__all__ = [
    "VECTORS_SETTING",
    "CommitConflict",
    "LakeTable",
    "ParquetFile",
    "TableTransaction",
    "TableVersion",
    "TransactionData",
]

# Property of a Delta table: merges may leave replaced rows in their files, marked in deletion vectors.
VECTORS_SETTING = "delta.enableDeletionVectors"


class ParquetFile(msgspec.Struct, frozen=True):
    """One data file of a table.

    Attributes:
        path: relative to the lake, not escaped.
        size: bytes.
        written_ms: time of writing, in ms since 1970.
        row_count: rows.
        partition: value of each partition column as text (a date as 2026-01-31); None for null.
        minimum, maximum: bounds of the columns that have statistics; Python values, times with their zone.
        null_count: number of nulls of these columns.
        crc: sum of `row_crc` over the file's rows; None if it is not known.
        deletion: which of the file's rows are deleted, although they count among its rows; None: no row is.
    """

    path: str
    size: int
    written_ms: int
    row_count: int
    partition: dict[str, str | None]
    minimum: dict[str, Any]
    maximum: dict[str, Any]
    null_count: dict[str, int]
    crc: int | None = None
    deletion: DeletionVector | None = None


class TransactionData(msgspec.Struct, frozen=True):
    """What a transaction carries in addition to rows: *recorded* numbers and *info*, JSON objects, both by name."""

    recorded: Mapping[str, int]
    info: Mapping[str, Any] = {}


class TableTransaction(msgspec.Struct, frozen=True):
    """A transaction in the table's history: the *version* that it made, its time, and its *info*.

    *restored_version*: the version to which it took the table back, except for the recorded numbers; None: to none.
    """

    version: int
    timestamp_ms: int
    info: Mapping[str, Any]
    restored_version: int | None = None


class TableVersion(msgspec.Struct, frozen=True):
    """A version that the table still knows.

    Attributes:
        timestamp_ms: when the version was made; None: unknown.
        readable: whether all files of the version exist.
        stays: whether it is still readable after the removal of the files in question.
    """

    version: int
    timestamp_ms: int | None
    readable: bool
    stays: bool


class CommitConflict(Exception):
    """Another transaction came first, so this one was refused. Raised by the formats; users never see it."""


class LakeTable(Protocol):
    """One version of a table.

    Methods that write change the table's newest version, or raise `CommitConflict` if that is not the loaded one and
    the difference matters. They return when the transaction is durable, and the object shows the new version. If a
    table cannot be written they raise a `DispatcherError` of one sentence.
    """

    def version(self) -> int:
        """Return the number of this version; a later one has a higher number."""

    def update(self) -> None:
        """Load the newest version."""

    def schema(self) -> pa.Schema:
        """Return the columns, in Arrow's types."""

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that data files hold, of a table with the columns *schema*."""

    def partition_columns(self) -> list[str]:
        """Return the columns by which the files are laid out."""

    def properties(self) -> Mapping[str, str]:
        """Return the table's own settings."""

    def recorded(self, name: str) -> int | None:
        """Return one recorded number, None if there is none."""

    def all_recorded(self) -> dict[str, int]:
        """Return all recorded numbers by name."""

    def history(self, count: int | None = None) -> Iterator[TableTransaction]:
        """Yield the newest *count* transactions, newest first; None: all that the table still knows."""

    def files(self) -> list[ParquetFile]:
        """Return the data files of this version with their statistics. No data file is opened."""

    def deleted_row_marks(self) -> str | None:
        """Return how another program marked rows as deleted that the files still have; None: it did not."""

    def dataset(self, columns: Sequence[str] | None = None) -> ds.Dataset:
        """Return the rows as an Arrow dataset, in which filters skip files.

        *columns*: the columns, and fields of structs (``column.field``), that the caller reads; None: all. If the table
        has deletion vectors, these columns are held in memory.
        """

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns of *schema*, nullable, behind the others."""

    def append(self, files: Sequence[ParquetFile], schema: pa.Schema, transaction: TransactionData) -> None:
        """Add *files*, which may be empty, in one transaction. *schema*: the columns in the files and their paths."""

    def delete_rows(
        self, from_offset: int, offset_column: str, equal: Mapping[str, str], transaction: TransactionData
    ) -> None:
        """Delete the rows with *offset_column* ≥ *from_offset* whose columns in *equal* have those values.

        The transaction is made even if no row matches.
        """

    def merge_rows(
        self,
        rows: pa.Table,
        key: Sequence[str],
        equal: Mapping[str, str],
        deleted: str,
        statistics: Sequence[str],
        transaction: TransactionData,
    ) -> None:
        """Replace the table's rows that have the keys of *rows* by *rows*, in one transaction.

        The transaction is made even if no row changes.

        Args:
            rows: the new rows, at most one per key, with the table's columns and the column *deleted*.
            key: the columns that make up a key; none is null in *rows*.
            equal: further values, by column, that the replaced rows must have.
            deleted: boolean column; where it is true, the table's row is removed without a replacement.
            statistics: the columns by which readers skip the files of the new rows.
        """

    def enable_deletion_vectors(self) -> None:
        """Let merges mark the replaced rows from now on, instead of writing their files anew.

        Raises:
            ConfigError: the table's format, place or library does not allow it.
        """

    def add_fields(self, schema: pa.Schema) -> None:
        """Add the columns and struct fields that only *schema* has. Its other columns are those of the table."""

    def widen(self, schema: pa.Schema) -> None:
        """Change the table's columns to those of *schema*: wider types, and additional columns and struct fields.

        The rows stay the same. A format whose readers do not convert types writes its files anew.
        """

    def merge_files(self, day: str | None, target_size: int, date_column: str = "date") -> int:
        """Merge the small files of *day*, None for all, up to *target_size*; return how many files were replaced.

        *date_column*: the partition column of the day.
        """

    def trim_history(self) -> None:
        """Forget the oldest transactions, if their number makes each commit slower."""

    def unnamed_files(self, hours: int) -> list[str]:
        """Return files below the lake, older than *hours*, that this version and its younger ancestors do not name."""

    def versions(self, going: Collection[str]) -> Iterator[TableVersion]:
        """Yield the versions, newest first; each says whether it can be read now, and without the files *going*."""
