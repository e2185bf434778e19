"""Runs: export typed tables up to the log's end, once or continuously, with Spark's workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reput_plugins.spark_export import spark_job, spark_session
from reput_plugins.spark_export.commit_pacer import COMMIT_BYTES, COMPACT_INTERVAL_MS, CommitPacer
from reput_plugins.spark_export.lakes.opening import find_table
from reput_plugins.spark_export.maintenance import VACUUM_HOURS, Maintenance
from reput_plugins.spark_export.spark_job import Progress
from reput_plugins.spark_export.typed.table_specs import DATE_COLUMN
from reput_plugins.spark_export.typed.typed_job import OpenTables, TableReport, open_tables
from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["export_tables", "follow_tables"]


def export_tables(
    store: Path,
    lake: Path | str,
    tables: Path | str | Mapping[str, Any],
    *,
    until: int | None,
    settings: Mapping[str, str],
    on_progress: Progress | None,
    **chosen: Any,
) -> dict[str, Any]:
    """Bring typed tables up to the durable end of the log, and return the fields of the report.

    Args:
        run_job: exports one range with Spark.
        class_archive_bytes: from this size on, an export makes a class-data archive.
        chosen: the other arguments of `export`.

    Raises:
        ConfigError: a table cannot be made as described.
        DispatcherError: Spark fails, a registry does not answer, or another exporter keeps the tables.
        StoreError: the store is damaged, or a table has rows that the log contradicts.
    """
    began = time.monotonic()
    opened = open_tables(store, lake, tables, **chosen)
    kept = maintenances(opened, 0, 0)
    held = [files_in(maintenance) for maintenance in kept]
    begin, end = opened.begin, opened.log.find_durable_end()
    end = max(begin, end if until is None else min(end, until))
    if begin < end:
        worthwhile = end - begin >= spark_session.CLASS_ARCHIVE_BYTES
        with spark_session.spark_session(settings, f"reput export {store}", make_class_archive=worthwhile) as session:
            # Create the tables only when Spark runs: otherwise a failed start would leave empty tables.
            opened.create(end)

            def run(plan: TypedPlan, first: int, last: int) -> None:
                spark_job.run_job(session, plan, first, last, on_progress)

            opened.export(end, run)
    else:
        opened.create(end)
    damage = opened.damage()
    reports = opened.reports()
    for maintenance, files in zip(kept, held, strict=True):
        maintenance.run(lambda: None, added=files_in(maintenance) - files)
    return {
        "begin": begin,
        "until": end,
        **sums(reports),
        "seconds": time.monotonic() - began,
        "table_version": 0,
        "damage": damage,
        "tables": reports,
    }


def files_in(maintenance: Maintenance) -> frozenset[str]:
    """Return the names of a table's files; none if there is no table yet."""
    table = find_table(maintenance.lake)
    return frozenset() if table is None else frozenset(file.path for file in table.files())


def sums(reports: Sequence[TableReport]) -> dict[str, int]:
    """Return the sums of what was added to all tables."""
    return {
        "records": sum(report.records for report in reports),
        "files": sum(report.files for report in reports),
        "bytes": sum(report.bytes for report in reports),
    }


def follow_tables(
    store: Path,
    lake: Path | str,
    tables: Path | str | Mapping[str, Any],
    *,
    settings: Mapping[str, str],
    interval_ms: int,
    on_progress: Progress | None,
    **chosen: Any,
) -> Iterator[dict[str, Any]]:
    """Bring typed tables up to the durable end of the log and keep them there; yield the fields of each row.

    The arguments are those of `follow`.

    Fields are inferred before each range, so a table with an inferred schema gets new fields during the run.

    Raises:
        ConfigError: a table cannot be made as described.
        DispatcherError: Spark fails, or another exporter keeps the tables.
        StoreError: the store is damaged, or a table has rows that the log contradicts.
    """
    began = time.monotonic()
    opened = open_tables(store, lake, tables, **chosen)
    pacer = CommitPacer(opened.log, opened.begin, interval_ms, on_progress)
    kept = maintenances(opened, COMPACT_INTERVAL_MS, VACUUM_HOURS)
    with spark_session.spark_session(settings, f"reput export {store}") as session:

        def run(plan: TypedPlan, low: int, high: int) -> None:
            spark_job.run_job(session, plan, low, high, None, split_bytes=COMMIT_BYTES)

        while True:
            begin, until = pacer.next_range()
            opened.create(until)
            opened.export(until, run)
            lag = pacer.committed(until)
            damage, reports = opened.damage(), opened.reports()
            now = time.monotonic()
            yield {
                "begin": begin,
                "until": until,
                **sums(reports),
                "seconds": round(now - began, 3),
                "table_version": 0,
                "lag_bytes": lag.byte_count,
                "lag_messages": lag.messages,
                "lag_seconds": lag.seconds,
                "damage": damage,
                "tables": reports,
            }
            began = now
            for maintenance in kept:
                maintenance.after_commit(lambda: None)


def maintenances(opened: OpenTables, interval_ms: int, vacuum_hours: int) -> list[Maintenance]:
    """Return the maintenance of each table and of its dead letters."""
    return [
        Maintenance(lake.location, interval_ms=interval_ms, vacuum_hours=vacuum_hours, date_column=DATE_COLUMN)
        for table in opened.tables
        for lake in (table.rows, table.dead)
    ]
