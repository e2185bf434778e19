"""export: one batch job that brings a lake up to the log's durable end, then stops.

The driver plans ranges, Spark's workers decode and write them, and one transaction adds all files. A second run finds
nothing to do. A killed run leaves files that no transaction names, and the next run begins where the lake ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reput.errors import ConfigError
from reput.store.state.identity import require_store
from reput_plugins.spark_export import spark_job
from reput_plugins.spark_export.options import EXPORT_NAME, ExportRequest
from reput_plugins.spark_export.requirements import require_format, require_packages
from reput_plugins.spark_export.spark_job import Progress

if TYPE_CHECKING:
    from reput.table import BadRange
    from reput_plugins.spark_export.log_target import ExportTarget
    from reput_plugins.spark_export.typed.typed_job import TableReport

__all__ = ["ExportReport", "export", "open_target", "refuse_other_settings"]


class ExportReport(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """The result of one export: *records* in *files* of *bytes*, for the log from *begin* to *until*.

    *table_version* is the lake's. *seconds* count from the call, including Spark's start. *damage* lists the ranges
    that were skipped with ``on_corruption="report"``. *tables* has a report of each typed table; the numbers above are
    then sums, and *table_version* is 0.
    """

    begin: int
    until: int
    records: int
    files: int
    bytes: int
    seconds: float
    table_version: int
    damage: tuple[BadRange, ...] = ()
    tables: tuple[TableReport, ...] = ()


def export(
    store: Path | str,
    lake: Path | str,
    *,
    tables: Path | str | Mapping[str, Any] | None = None,
    topics: Iterable[str] | None = None,
    until: int | None = None,
    name: str = EXPORT_NAME,
    settings: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    fail_on_data_loss: bool = True,
    on_corruption: str = "fail",
    store_id: str | None = None,
    accept_truncation: bool = False,
    lake_format: str = "delta",
    catalog: str | None = None,
    catalog_table: str | None = None,
    on_progress: Progress | None = None,
) -> ExportReport:
    """Bring the table *lake* up to the durable end of the log of *store*, exactly once.

    *lake* is a folder, or an address in an object store such as ``s3://bucket/lake``.

    If the program has a Spark session, the export uses it and leaves it running; else it starts one and stops it.

    Args:
        tables: typed tables to keep in the folder *lake* instead of the table of the log: a TOML file, or a mapping
            of the same form; see `reput_plugins.spark_export.typed.table_specs`.
        topics: names; None: every topic. The first export into a lake fixes the choice. Typed tables have their own.
        until: commit-log offset at which to stop; a record must begin there. None: the durable end.
        name: name of the export in the table.
        settings: ``spark.*`` settings, such as ``spark.master`` or ``spark.remote``.
        storage_options: settings of the Delta library for a lake in an object store, such as ``AWS_REGION``.
        fail_on_data_loss: refuse to continue if the log was trimmed beyond the lake's end.
        on_corruption: what to do with bytes that are not records and bodies that fail their CRC: ``fail``, or
            ``report``: skip them and list them in the report and in the lake's transaction.
        store_id: the store's id in the lake; None: recognise it by its own id, or by the marks in the lake.
        accept_truncation: delete rows that the log contradicts, even if no common record shows where the difference
            begins. Without this, the export refuses, and names the number of rows.
        lake_format: ``delta`` or ``iceberg``.
        catalog: name of the Iceberg catalog in pyiceberg's configuration; None: ``catalog.db`` in the lake's folder.
        catalog_table: the table's name in the catalog, as ``namespace.name``; None: ``reput.lake``.
        on_progress: called at intervals with the exported log bytes, and their total.

    Raises:
        DispatcherError: Java or a package is missing, Spark fails, or another exporter keeps this lake.
        ConfigError: *lake* was not written by reput, or keeps other topics; the store does not have one of *topics*; a
            setting is not a Spark setting.
        StoreError: *store* is not a store, is damaged, or is not the one that the lake holds; the lake has rows that
            the log contradicts, and their deletion was not accepted.
    """
    began = time.monotonic()
    refuse_other_settings(settings or {})
    require_store(Path(store))
    require_packages("pandas")
    require_format(lake_format)
    # Imported after the check, which reports missing packages with a clear message.
    from reput_plugins.spark_export import spark_session

    request = ExportRequest(
        store=Path(store).absolute(),
        lake=lake,
        tables=tables,
        topics=None if topics is None else tuple(topics),
        name=name,
        storage_options=storage_options,
        fail_on_data_loss=fail_on_data_loss,
        on_corruption=on_corruption,
        store_id=store_id,
        accept_truncation=accept_truncation,
        lake_format=lake_format,
        catalog=catalog,
        catalog_table=catalog_table,
    )
    # vacuum_hours=0: a single run removes no files, because readers may still use older versions of the tables.
    target = open_target(request, compact_interval_ms=0, vacuum_hours=0)
    begin, end = target.begin(), target.log.find_durable_end()
    end = max(begin, end if until is None else min(end, until))
    started: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if begin < end:
        worthwhile = end - begin >= spark_session.CLASS_ARCHIVE_BYTES
        started = spark_session.spark_session(
            settings or {}, f"reput export {request.store}", make_class_archive=worthwhile
        )
    # Tables are created only when Spark runs: otherwise a failed start would leave empty tables.
    with started as session:
        held = [maintenance.file_names() for maintenance in target.maintenances]
        added = target.export(
            begin, end, lambda plan, low, high: spark_job.run_job(session, plan, low, high, on_progress)
        )
    if begin < end:
        for maintenance, names in zip(target.maintenances, held, strict=True):
            maintenance.run(lambda: None, added=maintenance.file_names() - names)
    return ExportReport(
        begin,
        end,
        sum(one.records for one in added),
        sum(one.files for one in added),
        sum(one.bytes for one in added),
        time.monotonic() - began,
        target.table_version(),
        tuple(damage for one in added for damage in one.damage),
        tuple(report for one in added for report in one.tables),
    )


def open_target(request: ExportRequest, *, compact_interval_ms: int, vacuum_hours: int) -> ExportTarget:
    """Return what *request* names: the table of the log, or typed tables.

    Raises:
        ConfigError: the request contradicts itself or the tables.
        StoreError: the tables hold another store, or an operator must decide what to do about their rows.
    """
    # Imported only here, so that a missing package is reported with a clear message.
    if request.tables is None:
        from reput_plugins.spark_export.log_target import LogTarget

        return LogTarget(request, compact_interval_ms, vacuum_hours)
    if request.topics is not None:
        raise ConfigError(
            f"typed tables name their own topics: topics={','.join(request.topics)}",
            "Leave out the topics or the tables.",
        )
    if request.catalog_table is not None:
        raise ConfigError(
            f"typed tables have their own names in a catalog: catalog_table={request.catalog_table}",
            "Leave out the name: the table NAME is reput.NAME in the catalog.",
        )
    from reput_plugins.spark_export.typed.typed_target import TypedTarget

    return TypedTarget(request, compact_interval_ms, vacuum_hours)


def refuse_other_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings that are not Spark's.

    Raises:
        ConfigError: there is such a setting.
    """
    for setting in settings:
        if not setting.startswith("spark."):
            raise ConfigError(f"an export takes only settings of Spark: setting={setting}", "Write --set spark.X=Y.")
