"""Watermarks: a table beside the rows with the number and the checksum of the rows that each transaction added.

    lake/_watermarks/    store, from, until, rows, crc, table_version

*crc* is the sum of `row_crc` over the rows with that *store* whose ``commitLogOffset`` is in [from, until). Any engine
can sum the rows up again. Two Delta tables cannot change in one transaction, so the lake's own transaction carries the
same numbers, and this table is written after it. If a crash comes between, the next transaction catches up: the table
records up to which version of the lake it has come, in the same transaction as its rows.

When rows are deleted because the log was cut, the watermarks after the cut are deleted as well. The watermark that
contains the cut is computed again from the remaining rows.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from reput.errors import DispatcherError
from reput.store.disk.files import Files
from reput_plugins.spark_export.lake_location import LAKE_ADVICE, LakeLocation, one_line
from reput_plugins.spark_export.lakes.delta_table import STATISTICS_SETTING, open_delta_table
from reput_plugins.spark_export.lakes.lake_table import LakeTable, TableTransaction
from reput_plugins.spark_export.proof.row_crc import row_crc

__all__ = ["CUT_INFO", "FOLDER", "Watermark", "catch_up", "read_watermarks"]

FOLDER = "_watermarks"
# The info of a lake's transaction that deleted the rows of this store from this offset on.
CUT_INFO = "reput_cut"
APP_PREFIX = "reput_watermarks"
SCHEMA = pa.schema(
    [
        ("store", pa.string()),
        ("from", pa.int64()),
        ("until", pa.int64()),
        ("rows", pa.int64()),
        ("crc", pa.int64()),
        ("table_version", pa.int64()),
    ]
)
ROW_COLUMNS = ["commitLogOffset", "storeSize", "bodyCRC"]
ATTEMPTS = 3
# Every transaction adds a small file; this many are merged into one.
SMALL_FILES_MAX = 32
SMALL_SIZE = 1 << 20
VACUUM_HOURS = 168


class Watermark(msgspec.Struct, frozen=True):
    """The rows of one transaction, version *table_version* of the lake: those in [begin, until), with their sum."""

    store: str
    begin: int
    until: int
    rows: int
    crc: int
    table_version: int


def location_of(lake: LakeLocation) -> LakeLocation:
    """Return the location of a lake's watermarks."""
    return msgspec.structs.replace(lake, address=f"{lake.address}/{FOLDER}")


def read_watermarks(lake: LakeLocation, store_name: str) -> list[Watermark]:
    """Return the watermarks of a store, ascending; an empty list if the lake has no such table."""
    location = location_of(lake)
    table = open_delta_table(location)
    return [] if table is None else marks_in(location, files_of_store(table.delta, store_name))


def catch_up(lake: LakeLocation, table: LakeTable, store_name: str, store_ids: Iterable[str], export_name: str) -> None:
    """Bring the watermarks of one store up to the present version of the lake's *table*.

    Args:
        store_ids: the ids of the store in the lake's transactions.

    Raises:
        DispatcherError: the watermarks cannot be read or written.
    """
    location = location_of(lake)
    app_id = f"{APP_PREFIX}:{store_name}:{export_name}"
    for attempt in range(ATTEMPTS):
        try:
            opened = open_delta_table(location)
            marks = create(location) if opened is None else opened.delta
            done = marks.transaction_version(app_id)
            if done is not None and table.version() <= done:
                return
            entries = entries_between(table, -1 if done is None else done)
            commit(
                location, marks, table, entries, store_name, frozenset(store_ids), Transaction(app_id, table.version())
            )
            return
        except CommitFailedError as error:
            # Another store's exporter came first.
            if attempt == ATTEMPTS - 1:
                raise refused(location, error) from None
        except (OSError, DeltaError) as error:
            raise refused(location, error) from None


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


def refused(location: LakeLocation, error: Exception) -> DispatcherError:
    """Return the error for a table of watermarks that cannot be written."""
    return DispatcherError(
        f"the watermarks of the lake cannot be written: table={location.address} error={one_line(error)}", LAKE_ADVICE
    )


def create(location: LakeLocation) -> DeltaTable:
    """Create an empty table."""
    return DeltaTable.create(
        location.address,
        SCHEMA,
        mode="ignore",
        configuration={STATISTICS_SETTING: "store,from"},
        storage_options=location.storage_options,
    )


def commit(
    location: LakeLocation,
    marks: DeltaTable,
    table: LakeTable,
    entries: Sequence[TableTransaction],
    store_name: str,
    store_ids: frozenset[str],
    transaction: Transaction,
) -> None:
    """Add the watermarks of the lake's transactions *entries*, in one transaction with *transaction*."""
    added: list[Watermark] = []
    removed: list[dict[str, Any]] = []
    for entry in entries:
        cut, info = entry.info.get(CUT_INFO), entry.info.get("reput")
        if cut and cut["store"] == store_name:
            if not removed:
                removed = files_of_store(marks, store_name)
                added = [*marks_in(location, removed), *added]
            added = cut_marks(added, table, cut["at"])
        if info and info.get("store") in store_ids and info.get("crc") is not None:
            added.append(
                Watermark(store_name, info["from"], info["until"], info["records"], info["crc"], entry.version)
            )
    if not removed:
        small = [file for file in files_of_store(marks, store_name) if file["size_bytes"] < SMALL_SIZE]
        if len(small) >= SMALL_FILES_MAX:
            removed = small
            added = [*marks_in(location, small), *added]
    actions: list[AddAction | RemoveAction] = [remove_action(file) for file in removed]
    if added:
        actions.append(write(location, added))
    marks.create_write_transaction(
        actions, "append", SCHEMA, [], commit_properties=CommitProperties(app_transactions=[transaction])
    )
    force(location, [action.path for action in actions if isinstance(action, AddAction)])
    if removed:
        marks.update_incremental()
        marks.vacuum(retention_hours=VACUUM_HOURS, dry_run=False, enforce_retention_duration=False)


def cut_marks(marks: Sequence[Watermark], table: LakeTable, at: int) -> list[Watermark]:
    """Return the watermarks that remain of *marks* when the rows from *at* on are deleted from *table*."""
    kept = [mark for mark in marks if mark.until <= at]
    for mark in marks:
        if mark.begin < at < mark.until:
            rows, crc = sums_of(table, mark.store, mark.begin, at)
            kept.append(Watermark(mark.store, mark.begin, at, rows, crc, table.version()))
    return kept


def sums_of(table: LakeTable, store_name: str, begin: int, until: int) -> tuple[int, int]:
    """Return count and sum of the rows of a store in [begin, until)."""
    offset = pc.field("commitLogOffset")
    wanted = (offset >= begin) & (offset < until)
    rows = crc = 0
    for batch in table.dataset().scanner(columns=[*ROW_COLUMNS, "store"], filter=wanted).to_batches():
        # The store is not part of the dataset's filter, because statistics and column may have different types of text.
        batch = batch.filter(pc.equal(batch["store"].cast(pa.string()), store_name))
        rows += batch.num_rows
        crc += int(row_crc(*(batch[name].to_numpy() for name in ROW_COLUMNS)).sum())
    return rows, crc


def files_of_store(marks: DeltaTable, store_name: str) -> list[dict[str, Any]]:
    """Return the files with a store's watermarks."""
    files = pa.table(marks.get_add_actions(flatten=True)).to_pylist()
    return [file for file in files if file.get("min.store") == store_name]


def marks_in(location: LakeLocation, files: Sequence[dict[str, Any]]) -> list[Watermark]:
    """Return the watermarks in *files*, ascending."""
    filesystem = location.filesystem()
    found: list[Watermark] = []
    for file in files:
        columns = pq.read_table(file["path"], filesystem=filesystem, schema=SCHEMA).to_pydict()
        found += [Watermark(*row) for row in zip(*columns.values(), strict=True)]
    return sorted(found, key=lambda mark: mark.begin)


def write(location: LakeLocation, marks: Sequence[Watermark]) -> AddAction:
    """Write a file with *marks*, all of one store."""
    name = f"{marks[0].begin:020d}-{marks[-1].until:020d}-{uuid.uuid4().hex[:8]}.parquet"
    rows = sorted(marks, key=lambda mark: mark.begin)
    columns = [list(column) for column in zip(*map(msgspec.structs.astuple, rows), strict=True)]
    with location.filesystem().open_output_stream(name) as stream:
        pq.write_table(pa.table(columns, schema=SCHEMA), stream, compression="zstd")
        size = stream.tell()
    if location.folder is not None:
        Files().force_together([location.folder / name], [location.folder])
    lowest = {"store": rows[0].store, "from": rows[0].begin}
    highest = {"store": rows[0].store, "from": rows[-1].begin}
    statistics = {
        "numRecords": len(rows),
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": dict.fromkeys(lowest, 0),
    }
    return AddAction(name, size, {}, time.time_ns() // 1_000_000, True, json.dumps(statistics))


def remove_action(file: dict[str, Any]) -> RemoveAction:
    """Return the action that takes a file out of the table."""
    return RemoveAction(file["path"], True, time.time_ns() // 1_000_000, file["size_bytes"], {})


def force(location: LakeLocation, names: Sequence[str]) -> None:
    """Force the newest transaction to disk. An object store makes its files durable itself."""
    if location.folder is not None:
        directory = location.folder / "_delta_log"
        newest = max(name for name in os.listdir(directory) if name.endswith(".json"))
        Files().force_together([directory / newest], [directory])
