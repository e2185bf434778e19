"""Targets: what an export brings up to date, once, continuously, or for as long as the store is open.

`LogTarget` is the table of the log, `TypedTarget` typed tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from reput.errors import DispatcherError
from reput.table import BadRange, LogTable, table_options
from reput.table.asked_names import require_topics
from reput.table.range_reader import pass_trimmed
from reput_hooks import Cursor
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_continuation import continue_lake, lake_of_store, truncate_lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sink import SinkPlan
from reput_plugins.spark_export.lakes.opening import find_table, open_table
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.options import ExportRequest
from reput_plugins.spark_export.parquet_files import lake_schema

if TYPE_CHECKING:
    from reput_plugins.spark_export.typed.typed_job import TableReport
    from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["Addition", "ExportTarget", "LogTarget", "RunRange"]

# Exports the range [begin, until) of the log with Spark.
RunRange = Callable[["SinkPlan | TypedPlan", int, int], None]


class Addition(msgspec.Struct, frozen=True):
    """What one range of the log added: *records* in *files* of *bytes*, in *commits* transactions.

    *damage* lists the ranges that were skipped. *tables* has a report of each typed table; *table_version* is then 0.
    """

    begin: int
    until: int
    records: int
    files: int
    bytes: int
    table_version: int
    damage: tuple[BadRange, ...] = ()
    tables: tuple[TableReport, ...] = ()
    commits: int = 1


class ExportTarget(Protocol):
    """The tables of one export of one store. When it is opened, rows that the log contradicts are removed."""

    @property
    def log(self) -> LogTable:
        """The store's log."""

    @property
    def maintenances(self) -> Sequence[Maintenance]:
        """The maintenance of each table."""

    def cursor(self) -> Cursor | None:
        """Return how far all tables hold the log, None if one of them holds nothing."""

    def begin(self) -> int:
        """Return the commit-log offset at which an export begins."""

    def export(self, begin: int, until: int, run: RunRange) -> list[Addition]:
        """Bring the tables from *begin* to *until*, which may be *begin*. Missing tables and columns are created."""

    def truncate(self, cursor: Cursor) -> None:
        """Remove the rows from *cursor* on.

        Raises:
            StoreError: an operator must accept that first.
        """

    def table_version(self) -> int:
        """Return the version of the table of the log; 0 for typed tables."""


class LogTarget:
    """The table of the log."""

    def __init__(self, request: ExportRequest, compact_interval_ms: int, vacuum_hours: int) -> None:
        self.request = request
        self.location = LakeLocation.of(
            request.lake,
            request.storage_options,
            lake_format=request.lake_format,
            catalog=request.catalog,
            catalog_table=request.catalog_table,
        )
        self.topics = None if request.topics is None else sorted(set(request.topics))
        options = table_options(
            topics=None if self.topics is None else frozenset(self.topics),
            fail_on_data_loss=request.fail_on_data_loss,
            on_corruption=request.on_corruption,
        )
        self.log = LogTable(request.store, options)
        self.schema = lake_schema(options.row_format)
        lake = continue_lake(
            self.location,
            request.name,
            self.log,
            topics=self.topics,
            store_id=request.store_id,
            accept_truncation=request.accept_truncation,
        )
        self.store_id, self.store_name = lake.epochs.store_id, lake.store_name
        table = find_table(self.location)
        if table is None:
            # An existing lake continues without a topic that was deleted in the meantime.
            require_topics(self.log, self.topics or ())
        else:
            # There may have been a crash between a transaction and its watermark.
            lake.add_watermarks(table)
        self.maintenances: Sequence[Maintenance] = [
            Maintenance(self.location, interval_ms=compact_interval_ms, vacuum_hours=vacuum_hours)
        ]

    def lake(self) -> Lake:
        """Return the lake with the store's current epochs."""
        return lake_of_store(self.location, self.request.name, self.request.store, self.store_id, self.store_name)

    def cursor(self) -> Cursor | None:
        """Return the table's cursor."""
        table = find_table(self.location)
        if table is None:
            return None
        lake = self.lake()
        lake.committed(table)
        return lake.cursor(table)

    def begin(self) -> int:
        """Return where the table ends, or where the log begins."""
        found = self.cursor()
        if found is None:
            return self.log.offset_min
        return pass_trimmed(found.commit_log_offset, self.log.offset_min, self.request.fail_on_data_loss)

    def export(self, begin: int, until: int, run: RunRange) -> list[Addition]:
        """Export one range in one transaction.

        Raises:
            DispatcherError: the table has no such transaction afterwards.
        """
        lake = self.lake()
        table = lake.create(self.schema, self.topics)
        if begin == until:
            return []
        known = table.version()
        plan = SinkPlan(
            str(self.request.store),
            self.location,
            self.request.name,
            self.log.options,
            store_id=self.store_id,
            store_name=self.store_name,
        )
        run(plan.of_table(), begin, until)
        table.update()
        added = lake.commits_since(table, known)
        if not added:
            raise DispatcherError(f"the lake lacks written rows: lake={self.location.address} until={until}")
        return [
            Addition(found.begin, found.until, found.records, found.files, found.bytes, version, found.damage)
            for version, found in added
        ]

    def truncate(self, cursor: Cursor) -> None:
        """Remove rows of the table."""
        truncate_lake(self.lake(), self.log, cursor)

    def table_version(self) -> int:
        """Return the table's version."""
        return open_table(self.location).version()
