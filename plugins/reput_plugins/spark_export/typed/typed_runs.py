"""Runs: one export of typed tables up to the log's end, or one that keeps them there, with Spark's workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reput_plugins.spark_export import export_job, follow_job, spark_session
from reput_plugins.spark_export.export_job import CLASS_ARCHIVE_BYTES, ExportReport
from reput_plugins.spark_export.follow_job import FollowRow
from reput_plugins.spark_export.maintenance import VACUUM_HOURS, Maintenance
from reput_plugins.spark_export.typed.table_specs import DATE_COLUMN
from reput_plugins.spark_export.typed.typed_job import OpenTables, open_tables
from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["export_tables", "follow_tables"]

Progress = Callable[[int, int], None]


def export_tables(
    store: Path,
    lake: Path | str,
    tables: Path | str | Mapping[str, Any],
    *,
    until: int | None,
    settings: Mapping[str, str],
    on_progress: Progress | None,
    **chosen: Any,
) -> ExportReport:
    """Bring typed tables up to the durable end of the log; the arguments are those of `export`.

    Raises:
        ConfigError: a table cannot be made as described.
        DispatcherError: Spark fails, a registry does not answer, or another exporter keeps the tables.
        StoreError: the store is damaged, or a table has rows that the log contradicts.
    """
    began = time.monotonic()
    opened = open_tables(store, lake, tables, **chosen)
    begin, end = opened.begin, opened.log.find_durable_end()
    end = max(begin, end if until is None else min(end, until))
    worthwhile = end - begin >= CLASS_ARCHIVE_BYTES
    if begin < end:
        with spark_session.spark_session(settings, f"reput export {store}", make_class_archive=worthwhile) as session:
            # Only once Spark runs: otherwise a failed start would leave empty tables.
            opened.create(end)

            def run(plan: TypedPlan, first: int, last: int) -> None:
                export_job.run_job(session, plan, first, last, on_progress)

            opened.export(end, run)
    else:
        opened.create(end)
    damage = opened.damage()
    reports = opened.reports()
    for maintenance in maintenances(opened, 0, 0):
        maintenance.run(lambda: None)
    return ExportReport(
        begin,
        end,
        sum(report.records for report in reports),
        sum(report.files for report in reports),
        sum(report.bytes for report in reports),
        time.monotonic() - began,
        0,
        damage,
        reports,
    )


def follow_tables(
    store: Path,
    lake: Path | str,
    tables: Path | str | Mapping[str, Any],
    *,
    settings: Mapping[str, str],
    interval_ms: int,
    on_progress: Progress | None,
    **chosen: Any,
) -> Iterator[FollowRow]:
    """Bring typed tables up to the durable end of the log and keep them there; the arguments are those of `follow`.

    Fields are looked for before each range, so a table whose schema is inferred gets new ones while it is followed.

    Raises:
        ConfigError: a table cannot be made as described.
        DispatcherError: Spark fails, or another exporter keeps the tables.
        StoreError: the store is damaged, or a table has rows that the log contradicts.
    """
    began = time.monotonic()
    opened = open_tables(store, lake, tables, **chosen)
    log = opened.log
    first = done = end = opened.begin
    kept = maintenances(opened, follow_job.COMPACT_INTERVAL_MS, VACUUM_HOURS)
    committed_at: float | None = None
    # Never set: files give no signal when they grow, so the loop polls.
    nothing = threading.Event()
    with spark_session.spark_session(settings, f"reput export {store}") as session:

        def run(plan: TypedPlan, low: int, high: int) -> None:
            export_job.run_job(session, plan, low, high, None, split_bytes=follow_job.SPLIT_BYTES)

        while True:
            end = max(end, log.find_durable_end())
            now = time.monotonic()
            is_time = committed_at is None or now - committed_at >= interval_ms / 1000
            if on_progress is not None:
                on_progress(done - first, end - first)
            if end - done < (1 if is_time else follow_job.COMMIT_BYTES):
                nothing.wait(follow_job.LOOK_SECONDS)
                continue
            until = end
            if end - done > follow_job.BATCH_BYTES_MAX:
                until = log.next_record(done + follow_job.BATCH_BYTES_MAX, end)
            begin = done
            opened.create(until)
            opened.export(until, run)
            done, committed_at = until, time.monotonic()
            end = max(end, log.find_durable_end())
            lag = log.lag(done, end)
            damage, reports = opened.damage(), opened.reports()
            now = time.monotonic()
            yield FollowRow(
                begin,
                done,
                sum(report.records for report in reports),
                sum(report.files for report in reports),
                sum(report.bytes for report in reports),
                round(now - began, 3),
                0,
                lag.byte_count,
                lag.messages,
                lag.seconds,
                damage,
                reports,
            )
            began = now
            for maintenance in kept:
                maintenance.after_commit(lambda: None)


def maintenances(opened: OpenTables, interval_ms: int, vacuum_hours: int) -> list[Maintenance]:
    """Return what maintains the tables and their dead letters."""
    return [
        Maintenance(lake.location, interval_ms=interval_ms, vacuum_hours=vacuum_hours, date_column=DATE_COLUMN)
        for table in opened.tables
        for lake in (table.rows, table.dead)
    ]
