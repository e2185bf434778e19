"""Exports of typed tables: bring every table up to the log's end, or keep them there.

Each table records its own end, and an export begins at the lowest one. Some tables may be ahead, because a crash came
between two commits or because another table was added later. A table that is ahead waits until the others have reached
its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from reput.errors import ConfigError, DispatcherError
from reput.table import BadRange, LogTable, TableOptions, table_options
from reput.table.asked_names import require_topics
from reput.table.range_reader import pass_trimmed
from reput_hooks import Cursor
from reput_plugins.spark_export.lake import Commit, Lake
from reput_plugins.spark_export.lake_continuation import continue_lake, truncate_lake
from reput_plugins.spark_export.lake_location import DELTA_FORMAT, ICEBERG_FORMAT, LakeLocation
from reput_plugins.spark_export.lake_marks import committed_marks
from reput_plugins.spark_export.lakes.opening import find_table, format_of_folder, open_table
from reput_plugins.spark_export.typed.resolved_table import ResolvedTable
from reput_plugins.spark_export.typed.schema_resolution import resolve
from reput_plugins.spark_export.typed.table_files import DEAD_SCHEMA, TablePlan, log_fields
from reput_plugins.spark_export.typed.table_specs import DEAD_LETTERS_SUFFIX, TableSpec, load_tables
from reput_plugins.spark_export.typed.typed_folder import inside
from reput_plugins.spark_export.typed.typed_sink import TypedPlan, lakes_of

__all__ = ["OpenTables", "TableReport", "open_tables"]

# The largest part of the log whose changes the driver merges at once, in memory.
KEYED_BYTES_MAX = 256 << 20
RunJob = Callable[[TypedPlan, int, int], None]


class TableReport(msgspec.Struct, frozen=True):
    """What an export added to one typed table: *records*, and as *dead_letters* the bodies that did not fit."""

    table: str
    records: int
    dead_letters: int
    files: int
    bytes: int
    table_version: int


class OpenTable:
    """One typed table during an export.

    Attributes:
        end: commit-log offset up to which the table, and its dead letters, have the log; None: it is new.
    """

    def __init__(self, spec: TableSpec, rows: Lake, dead: Lake) -> None:
        self.spec = spec
        self.rows = rows
        self.dead = dead
        self.end: int | None = None
        self.resolved: ResolvedTable | None = None
        self.plan: TablePlan | None = None
        self.added: list[tuple[Commit | None, Commit | None]] = []

    def find_end(self) -> None:
        """Find the table's end, and remove dead letters that are ahead of it.

        Dead letters are ahead after a crash between the two commits of a range. The range is decoded again, perhaps
        with another schema.
        """
        table, dead = find_table(self.rows.location), find_table(self.dead.location)
        self.end = None if table is None else self.rows.committed(table)
        dead_end = None if dead is None else self.dead.committed(dead)
        for lake, found in ((self.rows, table), (self.dead, dead)):
            if found is not None:
                # There may have been a crash between a transaction and its watermark.
                lake.add_watermarks(found)
        if dead is not None and dead_end is not None and dead_end > (self.end or 0):
            known = committed_marks(dead, self.dead.epochs.store_id, self.dead.export_name) or []
            at = self.end or 0
            cursor = Cursor(self.dead.epochs.store_id, self.dead.epochs.epoch, at, 0)
            self.dead.truncate(cursor, [mark for mark in known if mark.end <= at])

    def create(self, log: LogTable, begin: int, until: int) -> None:
        """Create the table and its dead letters if they are missing; otherwise add new columns of the schema."""
        table = find_table(self.rows.location)
        kept = None if table is None else table.schema()
        self.resolved = resolve(self.spec, kept, log, begin, until)
        topics = self.spec.all_topics
        letters = self.dead.create(DEAD_SCHEMA, topics)
        made = self.rows.create(pa.schema([*self.resolved.schema, *log_fields(self.spec)]), topics)
        columns = made.schema()
        rows = pa.schema([columns.field(name) for name in self.resolved.schema.names])
        in_files = self.rows.location.table_format == ICEBERG_FORMAT
        self.plan = TablePlan(
            self.resolved,
            self.rows.location,
            self.dead.location,
            rows,
            self.rows.store_name,
            self.rows.epochs.store_id,
            self.dead.epochs.store_id,
            made.file_schema(pa.schema([*rows, *log_fields(self.spec)])) if in_files else None,
            letters.file_schema(DEAD_SCHEMA) if in_files else None,
        )


class OpenTables:
    """The typed tables of one export.

    Attributes:
        begin: the lowest of the tables' ends, where the export begins.
    """

    def __init__(self, tables: Sequence[OpenTable], log: LogTable, options: TableOptions, export_name: str) -> None:
        self.tables = tables
        self.log = log
        self.options = options
        self.export_name = export_name

    def ends(self) -> list[int]:
        """Return the end of each table, where its next record begins."""
        offset_min, strict = self.log.offset_min, self.options.fail_on_data_loss
        return [offset_min if t.end is None else pass_trimmed(t.end, offset_min, strict) for t in self.tables]

    @property
    def begin(self) -> int:
        return min(self.ends())

    def create(self, until: int) -> None:
        """Create missing tables and columns for an export up to *until*."""
        for table, begin in zip(self.tables, self.ends(), strict=True):
            table.create(self.log, begin, until)

    def export(self, until: int, run: RunJob) -> None:
        """Bring every table up to *until*."""
        while (begin := self.begin) < until:
            ends = self.ends()
            end = min([until, *(other for other in ends if other > begin)])
            behind = [table for table, at in zip(self.tables, ends, strict=True) if at == begin]
            if any(table.spec.key_columns for table in behind) and end - begin > KEYED_BYTES_MAX:
                end = self.log.next_record(begin + KEYED_BYTES_MAX, end)
            plans = tuple(table.plan for table in behind if table.plan is not None)
            topics = frozenset(topic for plan in plans for topic in plan.spec.all_topics)
            row_filter = msgspec.structs.replace(self.options.row_filter, topics=topics)
            options = msgspec.structs.replace(self.options, row_filter=row_filter)
            run(TypedPlan(str(self.log.store_directory), self.export_name, options, plans), begin, end)
            for table in behind:
                table.added.append((self.found(table.rows, end), self.found(table.dead, end)))
                table.end = end

    def truncate(self, cursor: Cursor) -> None:
        """Remove the rows from *cursor* on. Rows go before dead letters, so that a crash leaves the latter ahead.

        Raises:
            StoreError: a table has a key, or an operator must accept the removal first.
        """
        for table in self.tables:
            for lake in (table.rows, table.dead):
                if find_table(lake.location) is not None:
                    truncate_lake(lake, self.log, cursor)
            table.find_end()

    def found(self, lake: Lake, end: int) -> Commit:
        """Return the additions of the transaction that brought a table to *end*.

        Raises:
            DispatcherError: the table has no such transaction.
        """
        added = lake.last_commit(open_table(lake.location), end)
        if added is None:
            raise DispatcherError(f"the lake lacks written rows: lake={lake.location.address} until={end}")
        return added

    def damage(self) -> tuple[BadRange, ...]:
        """Return the damaged ranges that were skipped since the last call of `reports`."""
        found = {
            damaged for table in self.tables for rows, _ in table.added if rows is not None for damaged in rows.damage
        }
        return tuple(sorted(found, key=lambda damaged: damaged.begin))

    def reports(self) -> tuple[TableReport, ...]:
        """Return the additions to each table since the last call."""
        return tuple(report_of(table) for table in self.tables)


def report_of(table: OpenTable) -> TableReport:
    """Return the additions to one table since the last call."""
    added, table.added = table.added, []
    rows = [commit for commit, _ in added if commit is not None]
    dead = [commit for _, commit in added if commit is not None]
    return TableReport(
        table.spec.name,
        sum(commit.records for commit in rows),
        sum(commit.records for commit in dead),
        sum(commit.files for commit in (*rows, *dead)),
        sum(commit.bytes for commit in (*rows, *dead)),
        open_table(table.rows.location).version(),
    )


def open_tables(
    store: Path,
    lake: Path | str,
    tables: Path | str | Mapping[str, Any],
    *,
    name: str,
    storage_options: Mapping[str, str] | None,
    fail_on_data_loss: bool,
    on_corruption: str,
    store_id: str | None,
    accept_truncation: bool,
    lake_format: str,
    catalog: str | None,
) -> OpenTables:
    """Return the typed tables in the folder *lake*, each cut to where the log continues it.

    Raises:
        ConfigError: a table cannot be made as described, or *lake* is itself a table.
        StoreError: a table holds another store, or rows that the log contradicts.
    """
    specs = load_tables(tables)
    folder = LakeLocation.of(lake, storage_options, lake_format=lake_format, catalog=catalog)
    # A table of a catalog has a place of its own, so only a folder, or a Delta table in a bucket, can be in the way.
    is_bucket = folder.folder is None and folder.table_format == DELTA_FORMAT
    if format_of_folder(folder) is not None or (is_bucket and find_table(folder) is not None):
        raise ConfigError(
            f"the lake is a table of the whole log, not a folder of tables: lake={folder.address}",
            "Name a separate folder for typed tables.",
        )
    options = table_options(fail_on_data_loss=fail_on_data_loss, on_corruption=on_corruption)
    log = LogTable(store, options)
    opened = []
    for spec in specs:
        if find_table(inside(folder, spec.name)) is None:
            # An existing table continues without a topic that was deleted in the meantime.
            require_topics(log, spec.all_topics)
        lakes = [
            continue_lake(
                location,
                name,
                log,
                topics=sorted(set(spec.all_topics)),
                store_id=store_id,
                accept_truncation=accept_truncation,
                make=make,
            )
            for location, make in zip(
                (inside(folder, spec.name), inside(folder, spec.name + DEAD_LETTERS_SUFFIX)),
                lakes_of(spec),
                strict=True,
            )
        ]
        table = OpenTable(spec, *lakes)
        table.find_end()
        opened.append(table)
    return OpenTables(opened, log, options, name)
