"""export: one batch job that brings a lake up to the log's durable end, then stops.

The driver plans ranges, Spark's workers decode and write them, and one transaction adds all files. A second run finds
nothing to do. A killed run leaves files that no transaction names, and the next run begins where the lake ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reput.errors import ConfigError, DispatcherError
from reput.store.state.identity import require_store
from reput_plugins.spark_export import spark_job
from reput_plugins.spark_export.options import EXPORT_NAME
from reput_plugins.spark_export.requirements import require_format, require_packages
from reput_plugins.spark_export.spark_job import Progress

if TYPE_CHECKING:
    from reput.table import BadRange
    from reput_plugins.spark_export.typed.typed_job import TableReport

__all__ = ["ExportReport", "export", "refuse_beside_tables", "refuse_other_settings"]


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
    if tables is not None:
        from reput_plugins.spark_export.typed.typed_runs import export_tables

        refuse_beside_tables(topics, catalog_table)
        fields = export_tables(
            Path(store).absolute(),
            lake,
            tables,
            until=until,
            name=name,
            settings=settings or {},
            storage_options=storage_options,
            fail_on_data_loss=fail_on_data_loss,
            on_corruption=on_corruption,
            store_id=store_id,
            accept_truncation=accept_truncation,
            lake_format=lake_format,
            catalog=catalog,
            on_progress=on_progress,
        )
        return ExportReport(**fields)
    # Imported after the check, which reports missing packages with a clear message.
    from reput.table import LogTable, table_options
    from reput.table.asked_names import require_topics
    from reput.table.range_reader import pass_trimmed
    from reput_plugins.spark_export.lake_continuation import continue_lake
    from reput_plugins.spark_export.lake_location import LakeLocation
    from reput_plugins.spark_export.lake_sink import SinkPlan
    from reput_plugins.spark_export.lakes.opening import find_table, open_table
    from reput_plugins.spark_export.maintenance import Maintenance
    from reput_plugins.spark_export.parquet_files import lake_schema
    from reput_plugins.spark_export.spark_session import CLASS_ARCHIVE_BYTES, spark_session

    store_directory = Path(store).absolute()
    location = LakeLocation.of(
        lake, storage_options, lake_format=lake_format, catalog=catalog, catalog_table=catalog_table
    )
    chosen = None if topics is None else sorted(set(topics))
    options = table_options(
        topics=None if chosen is None else frozenset(chosen),
        fail_on_data_loss=fail_on_data_loss,
        on_corruption=on_corruption,
    )
    log = LogTable(store_directory, options)
    target = continue_lake(location, name, log, topics=chosen, store_id=store_id, accept_truncation=accept_truncation)
    schema = lake_schema(options.row_format)
    table = find_table(location)
    if table is None:
        # An existing lake continues without a topic that was deleted in the meantime.
        require_topics(log, chosen or ())
    committed = None if table is None else target.committed(table)
    begin = log.offset_min if committed is None else pass_trimmed(committed, log.offset_min, fail_on_data_loss)
    end = log.find_durable_end()
    end = end if until is None else min(end, until)
    if end <= begin:
        table = target.create(schema, chosen)
        target.add_watermarks(table)
        return ExportReport(begin, begin, 0, 0, 0, time.monotonic() - began, table.version())
    plan = SinkPlan(
        str(store_directory), location, name, options, store_id=target.epochs.store_id, store_name=target.store_name
    )
    with spark_session(
        settings or {}, f"reput export {plan.store}", make_class_archive=end - begin >= CLASS_ARCHIVE_BYTES
    ) as session:
        # Create the table only when Spark runs: otherwise a failed start would leave an empty table.
        held = frozenset(file.path for file in target.create(schema, chosen).files())
        spark_job.run_job(session, plan.of_table(), begin, end, on_progress)
    table = target.create(schema, chosen)
    added = target.last_commit(table, end)
    if added is None:
        raise DispatcherError(f"the lake lacks written rows: lake={location.address} until={end}")
    # vacuum_hours=0: a single run removes no files, because readers may still use the older table version.
    added_files = frozenset(file.path for file in table.files()) - held
    if Maintenance(location, interval_ms=0, vacuum_hours=0).run(lambda: None, added=added_files):
        table = open_table(location)
    return ExportReport(
        added.begin,
        added.until,
        added.records,
        added.files,
        added.bytes,
        time.monotonic() - began,
        table.version(),
        added.damage,
    )


def refuse_beside_tables(topics: Iterable[str] | None, catalog_table: str | None) -> None:
    """Refuse arguments that typed tables do not allow: topics, and a name in the catalog. Each table has its own.

    Raises:
        ConfigError: there is such an argument.
    """
    if topics is not None:
        raise ConfigError(
            f"typed tables name their own topics: topics={','.join(topics)}", "Leave out the topics or the tables."
        )
    if catalog_table is not None:
        raise ConfigError(
            f"typed tables have their own names in a catalog: catalog_table={catalog_table}",
            "Leave out the name: the table NAME is reput.NAME in the catalog.",
        )


def refuse_other_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings that are not Spark's.

    Raises:
        ConfigError: there is such a setting.
    """
    for setting in settings:
        if not setting.startswith("spark."):
            raise ConfigError(f"an export takes only settings of Spark: setting={setting}", "Write --set spark.X=Y.")
