"""TypedTarget: the typed tables that an export brings up to date."""

from __future__ import annotations

from collections.abc import Sequence

from reput.table import LogTable
from reput_hooks import Cursor
from reput_plugins.spark_export.log_target import Addition, RunRange
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.options import ExportRequest
from reput_plugins.spark_export.typed.table_specs import DATE_COLUMN
from reput_plugins.spark_export.typed.typed_job import OpenTables, open_tables
from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["TypedTarget"]


class TypedTarget:
    """The typed tables in a folder of tables, as a request describes them.

    Fields are inferred before each range, so a table with an inferred schema gets new fields during a run.
    """

    def __init__(self, request: ExportRequest, compact_interval_ms: int, vacuum_hours: int) -> None:
        self.request = request
        self.opened = self.open()
        self.maintenances: Sequence[Maintenance] = [
            Maintenance(
                lake.location, interval_ms=compact_interval_ms, vacuum_hours=vacuum_hours, date_column=DATE_COLUMN
            )
            for table in self.opened.tables
            for lake in (table.rows, table.dead)
        ]

    def open(self) -> OpenTables:
        """Return the tables, cut to where the log continues them."""
        request = self.request
        assert request.tables is not None
        return open_tables(
            request.store,
            request.lake,
            request.tables,
            name=request.name,
            storage_options=request.storage_options,
            fail_on_data_loss=request.fail_on_data_loss,
            on_corruption=request.on_corruption,
            store_id=request.store_id,
            accept_truncation=request.accept_truncation,
            lake_format=request.lake_format,
            catalog=request.catalog,
        )

    @property
    def log(self) -> LogTable:
        return self.opened.log

    def cursor(self) -> Cursor | None:
        """Return the cursor of the table that is furthest behind, None if one of them is new."""
        if any(table.end is None for table in self.opened.tables):
            return None
        epochs = self.opened.tables[0].rows.epochs
        return Cursor(epochs.store_id, epochs.epoch, self.opened.begin, 0)

    def begin(self) -> int:
        """Return the lowest of the tables' ends."""
        return self.opened.begin

    def export(self, begin: int, until: int, run: RunRange) -> list[Addition]:
        """Export a range; a table that is ahead of *begin* gets the rest."""
        count = 0

        def run_and_count(plan: TypedPlan, low: int, high: int) -> None:
            nonlocal count
            run(plan, low, high)
            count += len(plan.tables)

        self.opened.create(until)
        self.opened.export(until, run_and_count)
        damage, reports = self.opened.damage(), self.opened.reports()
        records, files, size = (sum(getattr(one, name) for one in reports) for name in ("records", "files", "bytes"))
        return [Addition(begin, until, records, files, size, 0, damage, reports, count)]

    def truncate(self, cursor: Cursor) -> None:
        """Remove rows of the tables and of their dead letters."""
        # With the store's current epochs.
        self.opened = self.open()
        self.opened.truncate(cursor)

    def table_version(self) -> int:
        """Return 0: each table has its own version."""
        return 0
