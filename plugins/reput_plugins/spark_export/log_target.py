"""Targets: what the dispatcher keeps up to date. `LogTarget` is the table of the log, `TypedTarget` typed tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from reput.store.state.epochs import read_epochs
from reput.table import BadRange, LogTable
from reput.table.asked_names import require_topics
from reput_hooks import Cursor, DispatcherContext
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_continuation import continue_lake, truncate_lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sink import SinkPlan
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.options import SparkExportOptions
from reput_plugins.spark_export.parquet_files import lake_schema

if TYPE_CHECKING:
    from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["ExportTarget", "LogTarget", "RunRange"]

# Exports the range [begin, until) of the log with Spark.
RunRange = Callable[["SinkPlan | TypedPlan", int, int], None]


class ExportTarget(Protocol):
    """The tables of one dispatcher."""

    def start(self) -> Cursor | None:
        """Return how far the tables hold the log, None if they hold nothing. Rows that the log contradicts are removed.

        Raises:
            StoreError: the tables hold another store, or an operator must decide what to do about their rows.
        """

    def committed(self) -> int | None:
        """Return the commit-log offset up to which all tables hold the log."""

    def export(self, begin: int, until: int, run: RunRange) -> tuple[int, list[BadRange]]:
        """Bring the tables from *begin* to *until*; return the number of transactions, and damage that was left out."""

    def truncate(self, cursor: Cursor) -> None:
        """Remove the rows from *cursor* on.

        Raises:
            StoreError: an operator must accept that first.
        """

    def maintenances(self) -> Sequence[Maintenance]:
        """Return the maintenance of each table, all of which exist."""


class LogTarget:
    """The table of the log."""

    def __init__(
        self, context: DispatcherContext, options: SparkExportOptions, location: LakeLocation, log: LogTable
    ) -> None:
        self.context = context
        self.options = options
        self.location = location
        self.log = log
        self.topics = None if options.topics is None else sorted(set(options.topics))
        self.schema = lake_schema(log.options.row_format)
        self.store_name: str | None = None
        self.maintenance = Maintenance(
            location, interval_ms=options.compact_interval_ms, vacuum_hours=options.vacuum_hours
        )

    def lake(self) -> Lake:
        """Return the lake with the store's current epochs."""
        context = self.context
        epochs = read_epochs(context.store_directory, context.store_id)
        return Lake(self.location, self.options.name, epochs, self.store_name)

    def start(self) -> Cursor | None:
        """Return the table's cursor."""
        self.store_name = continue_lake(self.location, self.options.name, self.log, topics=self.topics).store_name
        lake = self.lake()
        require_topics(self.log, self.topics or ())
        return lake.cursor(lake.create(self.schema, self.topics))

    def committed(self) -> int | None:
        """Return how far the table holds the log."""
        lake = self.lake()
        return lake.committed(lake.create(self.schema, self.topics))

    def export(self, begin: int, until: int, run: RunRange) -> tuple[int, list[BadRange]]:
        """Export one range in one transaction."""
        lake = self.lake()
        table = lake.create(self.schema, self.topics)
        known = table.version()
        plan = SinkPlan(
            str(self.context.store_directory),
            self.location,
            self.options.name,
            self.log.options,
            store_id=self.context.store_id,
            store_name=self.store_name,
        )
        run(plan.of_table(), begin, until)
        table.update()
        damage = [damaged for _, added in lake.commits_since(table, known) for damaged in added.damage]
        return table.version() - known, damage

    def truncate(self, cursor: Cursor) -> None:
        """Remove rows of the table."""
        truncate_lake(self.lake(), self.log, cursor)

    def maintenances(self) -> Sequence[Maintenance]:
        """Return the table's maintenance."""
        return [self.maintenance]
