"""Watermarks: a table beside the rows with the number and the checksum of the rows that each transaction added.

    lake/_watermarks/    store, from, until, rows, crc, table_version

*crc* is the sum of `row_crc` over the rows with that *store* whose ``commitLogOffset`` is in [from, until). Any engine
can sum the rows up again. Two tables cannot change in one transaction, so the lake's own transaction carries the same
numbers, and this table, which has the lake's format, is written after it. If a crash comes between, the next
transaction catches up: the table records up to which version of the lake it has come, in the same transaction as its
rows.

When rows are deleted because the log was cut, the watermarks after the cut are deleted as well. The watermark that
contains the cut is computed again from the remaining rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from reput_plugins.spark_export.lake_location import LakeLocation, lake_errors
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.lakes.delta_table import STATISTICS_SETTING
from reput_plugins.spark_export.lakes.lake_table import (
    CommitConflict,
    LakeTable,
    ParquetFile,
    TableTransaction,
    TransactionData,
)
from reput_plugins.spark_export.lakes.opening import create_table, find_table
from reput_plugins.spark_export.maintenance import VACUUM_HOURS, Maintenance
from reput_plugins.spark_export.parquet_files import (
    CRC_COLUMNS,
    STORE_COLUMN,
    UNKNOWN_RANGE,
    FileLayout,
    PartitionWriters,
)
from reput_plugins.spark_export.proof.row_crc import row_crc

__all__ = ["CUT_INFO", "FOLDER", "Watermark", "catch_up", "location_of", "read_watermarks"]

FOLDER = "_watermarks"
# The info of a lake's transaction that deleted the rows of this store from this offset on.
CUT_INFO = "reput_cut"
APP_PREFIX = "reput_watermarks"
SCHEMA = pa.schema(
    [
        (STORE_COLUMN, pa.string()),
        ("from", pa.int64()),
        ("until", pa.int64()),
        ("rows", pa.int64()),
        ("crc", pa.int64()),
        ("table_version", pa.int64()),
    ]
)
# Each store has one watermark that begins at an offset.
KEY = (STORE_COLUMN, "from")
DELETED = "deleted"
LAYOUT = FileLayout(partition_columns=(), dictionary=(STORE_COLUMN,), statistics=KEY, checksum=())
ATTEMPTS = 10
# Every transaction adds a small file; this many are merged into one.
SMALL_FILES_MAX = 32
SMALL_SIZE = 1 << 20


class Watermark(msgspec.Struct, frozen=True):
    """The rows of one transaction, version *table_version* of the lake: those in [begin, until), with their sum."""

    store: str
    begin: int
    until: int
    rows: int
    crc: int
    table_version: int


def location_of(lake: LakeLocation) -> LakeLocation:
    """Return the location of a lake's watermarks, and their name in its catalog."""
    name = None
    if lake.catalog is not None:
        # Imported only here, because it needs the extra ``iceberg``.
        from reput_plugins.spark_export.lakes.iceberg_catalog import table_name

        name = table_name(lake) + FOLDER
    return msgspec.structs.replace(lake, address=f"{lake.address}/{FOLDER}", catalog_table=name)


def read_watermarks(lake: LakeLocation, store_name: str) -> list[Watermark]:
    """Return the watermarks of a store, ascending; an empty list if the lake has no such table."""
    marks = find_table(location_of(lake))
    return [] if marks is None else marks_in(marks, store_name)


def catch_up(
    lake: LakeLocation,
    table: LakeTable,
    columns: LogColumns,
    store_name: str,
    store_ids: Iterable[str],
    export_name: str,
) -> None:
    """Bring the watermarks of one store up to the present version of the lake's *table*.

    Args:
        columns: how the rows name the columns of the log.
        store_ids: the ids of the store in the lake's transactions.

    Raises:
        DispatcherError: the watermarks cannot be read or written.
        CommitConflict: other exporters came first, each time.
    """
    location = location_of(lake)
    name = f"{APP_PREFIX}:{store_name}:{export_name}"
    for attempt in range(ATTEMPTS):
        try:
            marks = find_table(location) or create_table(location, SCHEMA, [], {STATISTICS_SETTING: ",".join(KEY)})
            done = marks.recorded(name)
            if done is not None and table.version() < done:
                table.update()
            if done == table.version():
                return
            if done is not None and table.version() < done:
                # The lake's catalog was replaced by an older copy, and the numbers of versions come again.
                done = None
            entries = entries_between(table, -1 if done is None else done)
            transaction = TransactionData({name: table.version()})
            commit(location, marks, table, columns, entries, store_name, frozenset(store_ids), transaction)
            return
        except CommitConflict:
            # Another store's exporter came first.
            if attempt == ATTEMPTS - 1:
                raise


def entries_between(table: LakeTable, done: int) -> list[TableTransaction]:
    """Return the transactions after version *done* up to that of *table*, oldest first."""
    wanted = table.version() - done
    entries: list[TableTransaction] = []
    for count in (wanted, None):
        # The newest transactions may be later than the version of *table*.
        entries = [entry for entry in table.history(count) if done < entry.version <= table.version()]
        if len(entries) == wanted:
            break
    return sorted(entries, key=lambda entry: entry.version)


def commit(
    location: LakeLocation,
    marks: LakeTable,
    table: LakeTable,
    columns: LogColumns,
    entries: Sequence[TableTransaction],
    store_name: str,
    store_ids: frozenset[str],
    transaction: TransactionData,
) -> None:
    """Add the watermarks of the lake's transactions *entries*, in one transaction with *transaction*."""
    files = [file for file in marks.files() if may_hold(file, store_name)]
    known: list[Watermark] | None = None
    added: list[Watermark] = []
    for entry in entries:
        cut, info = entry.info.get(CUT_INFO), entry.info.get("reput")
        mark = None
        if info and info.get("store") in store_ids and info.get("crc") is not None:
            mark = Watermark(store_name, info["from"], info["until"], info["records"], info["crc"], entry.version)
        at = cut["at"] if cut and cut["store"] == store_name else None
        if mark is not None and (reach(files) >= mark.begin or any(one.until > mark.begin for one in added)):
            # Someone went back to an earlier version of the lake, so the rows were added again.
            at = mark.begin
        if at is not None:
            if known is None:
                known = marks_in(marks, store_name)
                added = [*known, *added]
            added = cut_marks(added, table, columns, at)
        added += [] if mark is None else [mark]
    if known is None:
        written = write(location, marks, rows_of(added)) if added else []
        marks.append(written, SCHEMA, transaction)
    else:
        gone = {mark.begin: mark for mark in known}
        new = [mark for mark in added if gone.pop(mark.begin, None) != mark]
        rows = rows_of([*new, *gone.values()])
        flags = pa.array([False] * len(new) + [True] * len(gone), pa.bool_())
        marks.merge_rows(rows.append_column(DELETED, flags), KEY, {}, DELETED, KEY, transaction)
    if sum(file.size < SMALL_SIZE for file in files) >= SMALL_FILES_MAX:
        maintenance = Maintenance(location, interval_ms=0, vacuum_hours=VACUUM_HOURS)
        maintenance.run(lambda: None)


def reach(files: Sequence[ParquetFile]) -> int:
    """Return where the last watermark in *files* begins; -1 without one."""
    return max((file.maximum["from"] for file in files if "from" in file.maximum), default=-1)


def may_hold(file: ParquetFile, store_name: str) -> bool:
    """Return whether a file may have watermarks of a store."""
    return bool(file.minimum.get(STORE_COLUMN, store_name) <= store_name <= file.maximum.get(STORE_COLUMN, store_name))


def cut_marks(marks: Sequence[Watermark], table: LakeTable, columns: LogColumns, at: int) -> list[Watermark]:
    """Return the watermarks that remain of *marks* when the rows from *at* on are deleted from *table*."""
    kept = [mark for mark in marks if mark.until <= at]
    for mark in marks:
        if mark.begin < at < mark.until:
            rows, crc = sums_of(table, columns, mark.store, mark.begin, at)
            kept.append(Watermark(mark.store, mark.begin, at, rows, crc, table.version()))
    return kept


def sums_of(table: LakeTable, columns: LogColumns, store_name: str, begin: int, until: int) -> tuple[int, int]:
    """Return count and sum of the rows of a store in [begin, until)."""
    offset = columns.field("commitLogOffset")
    wanted = {name: columns.field(name) for name in (*CRC_COLUMNS, STORE_COLUMN)}
    rows = crc = 0
    scanner = table.dataset().scanner(columns=wanted, filter=(offset >= begin) & (offset < until))
    for batch in scanner.to_batches():
        # The store is not part of the dataset's filter, because statistics and column may have different types of text.
        batch = of_store(batch, store_name)
        rows += batch.num_rows
        crc += int(row_crc(*(batch[name].to_numpy() for name in CRC_COLUMNS)).sum())
    return rows, crc


def of_store(batch: pa.RecordBatch, store_name: str) -> pa.RecordBatch:
    """Return the rows of a store."""
    return batch.filter(pc.equal(batch[STORE_COLUMN].cast(pa.string()), store_name))


def marks_in(marks: LakeTable, store_name: str) -> list[Watermark]:
    """Return the watermarks of a store in their table, ascending."""
    found: list[Watermark] = []
    for batch in marks.dataset().scanner(columns=SCHEMA.names).to_batches():
        columns = of_store(batch, store_name).to_pydict()
        found += [Watermark(*row) for row in zip(*columns.values(), strict=True)]
    return sorted(found, key=lambda mark: mark.begin)


def rows_of(marks: Sequence[Watermark]) -> pa.Table:
    """Return *marks* as rows."""
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, msgspec.structs.astuple(mark), strict=True)) for mark in marks], SCHEMA
    )


def write(location: LakeLocation, marks: LakeTable, rows: pa.Table) -> list[ParquetFile]:
    """Write *rows* into a file, and force it to disk."""
    writers = PartitionWriters(location, f"{UNKNOWN_RANGE}-{uuid.uuid4().hex[:8]}.parquet", LAYOUT)
    with lake_errors(location.address):
        try:
            writers.add_table(rows, marks.file_schema(rows.schema))
            return writers.finish()
        except BaseException:
            writers.abandon()
            raise
