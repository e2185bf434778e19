"""Marks of a lake, by which it recognises the log that its rows came from; see `reput.table.log_marks`.

Each transaction that adds rows carries the marks of everything the lake then holds of that store. A lake made by an
older reput has no marks. Its rows serve instead: each has its record's offset, size, store time and body CRC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.table.log_marks import LogMark
from reput_plugins.spark_export.lakes.lake_table import LakeTable
from reput_plugins.spark_export.parquet_files import STORE_COLUMN

__all__ = ["LogColumns", "committed_marks", "count_rows", "marks_info", "row_marks"]

MARKS_INFO = "reput_marks"
# Searches go back from the newest transaction, which usually has the marks.
LOOKS = (1, 1000)
ROW_COLUMNS = ["commitLogOffset", "storeSize", "storeTimestamp", "bodyCRC"]


class CommittedMarks(msgspec.Struct, frozen=True):
    """The marks in a transaction. They cover everything that the table holds of *store* from the export *export*."""

    store: str
    export: str
    marks: list[LogMark]


class LogColumns(msgspec.Struct, frozen=True):
    """How the rows of a lake name the columns of the log.

    Attributes:
        struct: the struct column whose fields they are; None: they are top-level columns.
        prefix: text before their names.
    """

    struct: str | None = None
    prefix: str = ""

    def name(self, column: str) -> str:
        """Return the name of a column of the log; a point stands before the field of a struct."""
        return f"{self.prefix}{column}" if self.struct is None else f"{self.struct}.{column}"

    def field(self, column: str) -> pc.Expression:
        """Return a column of the log as an expression."""
        return pc.field(*self.name(column).split("."))


def marks_info(store_id: str, export_name: str, marks: Sequence[LogMark]) -> dict[str, Any]:
    """Return the metadata of a transaction that carries *marks*."""
    return {MARKS_INFO: msgspec.to_builtins(CommittedMarks(store_id, export_name, list(marks)))} if marks else {}


def committed_marks(table: LakeTable, store_id: str, export_name: str) -> list[LogMark] | None:
    """Return the table's marks of a store, ascending; None if no remaining transaction has any."""
    for count in LOOKS:
        for entry in table.history(count):
            if MARKS_INFO in entry.info:
                found = msgspec.convert(entry.info[MARKS_INFO], CommittedMarks)
                if (found.store, found.export) == (store_id, export_name):
                    return found.marks
    return None


def row_marks(
    table: LakeTable, columns: LogColumns, store: str | None, begin: int, until: int, segment_size: int
) -> list[LogMark]:
    """Return a mark for each segment's last row that begins in [begin, until), ascending; *store*: None for any."""
    last: dict[int, LogMark] = {}
    wanted = {name: columns.field(name) for name in ROW_COLUMNS}
    read = [columns.name(name) for name in (*ROW_COLUMNS, *([] if store is None else [STORE_COLUMN]))]
    scanner = table.dataset(read).scanner(columns=wanted, filter=in_range(columns, store, begin, until))
    for batch in scanner.to_batches():
        batch = batch.drop_null()
        offsets = batch["commitLogOffset"].to_numpy()
        order = np.argsort(offsets, kind="stable")
        segments = offsets[order] // segment_size
        for number in order[np.flatnonzero(np.diff(segments, append=-1))].tolist():
            mark = mark_of_row(batch, number)
            segment = mark.commit_log_offset // segment_size
            if segment not in last or last[segment].commit_log_offset < mark.commit_log_offset:
                last[segment] = mark
    return [last[segment] for segment in sorted(last)]


def mark_of_row(batch: pa.RecordBatch, number: int) -> LogMark:
    """Return the mark of one row."""
    at, size, stored, crc = (batch.column(name)[number] for name in ROW_COLUMNS)
    return LogMark(at.as_py(), size.as_py(), stored.cast(pa.int64()).as_py() // 1000, crc.as_py())


def count_rows(table: LakeTable, columns: LogColumns, store: str | None, begin: int, until: int | None = None) -> int:
    """Return the number of rows of *store* whose record begins in [begin, until)."""
    read = [columns.name(name) for name in ("commitLogOffset", *([] if store is None else [STORE_COLUMN]))]
    return int(table.dataset(read).count_rows(filter=in_range(columns, store, begin, until)))


def in_range(columns: LogColumns, store: str | None, begin: int, until: int | None) -> pc.Expression:
    """Return the condition that a row belongs to *store* (None: any) and its record begins in [begin, until)."""
    offset = columns.field("commitLogOffset")
    wanted = offset >= begin
    if until is not None:
        wanted &= offset < until
    return wanted if store is None else wanted & (columns.field(STORE_COLUMN) == store)
