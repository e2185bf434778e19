"""TypedTarget: the typed tables that the dispatcher keeps up to date."""

from __future__ import annotations

from collections.abc import Sequence

from reput.store.state.epochs import read_epochs
from reput.table import BadRange
from reput_hooks import Cursor, DispatcherContext
from reput_plugins.spark_export.log_target import RunRange
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.options import SparkExportOptions
from reput_plugins.spark_export.typed.typed_job import OpenTables, open_tables
from reput_plugins.spark_export.typed.typed_runs import maintenances
from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["TypedTarget"]


class TypedTarget:
    """The typed tables in the dispatcher's folder of tables, as the options describe them."""

    def __init__(self, context: DispatcherContext, options: SparkExportOptions) -> None:
        self.context = context
        self.options = options
        self.opened = self.open()
        self.kept = maintenances(self.opened, options.compact_interval_ms, options.vacuum_hours)

    def open(self) -> OpenTables:
        """Return the tables, cut to where the log continues them."""
        options = self.options
        tables = options.tables
        return open_tables(
            self.context.store_directory,
            options.lake or self.context.directory / "lake",
            tables if isinstance(tables, str) else {"tables": tables},
            name=options.name,
            storage_options=options.storage_options,
            # If retention deletes records before they are exported, the host notes a gap.
            fail_on_data_loss=False,
            on_corruption=options.on_corruption,
            store_id=None,
            accept_truncation=False,
            lake_format=options.lake_format,
            catalog=options.catalog,
        )

    def start(self) -> Cursor | None:
        """Return the cursor of the table that is furthest behind."""
        begin, context = self.committed(), self.context
        if begin is None:
            return None
        epochs = read_epochs(context.store_directory, context.store_id)
        return Cursor(context.store_id, epochs.epoch, begin, 0)

    def committed(self) -> int | None:
        """Return the lowest of the tables' ends, None if one of them is new."""
        return None if any(table.end is None for table in self.opened.tables) else self.opened.begin

    def export(self, begin: int, until: int, run: RunRange) -> tuple[int, list[BadRange]]:
        """Export a range; a table that is ahead of *begin* gets the rest."""
        count = 0

        def run_and_count(plan: TypedPlan, low: int, high: int) -> None:
            nonlocal count
            run(plan, low, high)
            count += len(plan.tables)

        self.opened.create(until)
        self.opened.export(until, run_and_count)
        damage = list(self.opened.damage())
        self.opened.reports()
        return count, damage

    def truncate(self, cursor: Cursor) -> None:
        """Remove rows of the tables and of their dead letters."""
        # With the store's current epochs.
        self.opened = self.open()
        self.opened.truncate(cursor)

    def maintenances(self) -> Sequence[Maintenance]:
        """Return the maintenance of each table and of its dead letters."""
        return self.kept
