"""spark_export: the log as a Delta or Iceberg table that every lake reader can query.

Spark is the control plane (ranges, retries, cluster). Python workers are the data plane: they decode ranges of the raw
log and write Parquet files themselves. ``deltalake`` or ``pyiceberg`` commits the table with the log's end offset in
the same transaction, so every reader sees every record exactly once, no matter which process is killed.

`export` brings a lake up to the log's end once; `follow` and the dispatcher keep it there; `check_lake` compares it
with the log; `optimize_lake` and `vacuum_lake` merge and remove files. Importing this module loads neither pyspark nor
pyarrow. It needs the extra ``spark``, and Java unless Spark runs elsewhere.
"""

from __future__ import annotations

from reput_hooks import CommitLogDispatcher, DispatcherContext, DispatcherDescription, hookimpl
from reput_plugins.spark_export.check_job import check_lake
from reput_plugins.spark_export.export_job import ExportReport, export
from reput_plugins.spark_export.follow_job import FollowRow, follow
from reput_plugins.spark_export.maintenance_job import optimize_lake, vacuum_lake
from reput_plugins.spark_export.options import SparkExportOptions
from reput_plugins.spark_export.requirements import require_format, require_packages

__all__ = [
    "ExportReport",
    "FollowRow",
    "SparkExportOptions",
    "check_lake",
    "export",
    "follow",
    "optimize_lake",
    "reput_create_dispatcher",
    "reput_describe_dispatcher",
    "vacuum_lake",
]


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    """Ask for positions of durable bytes only: the workers read the log themselves."""
    return DispatcherDescription(
        reads="durable",
        feeds="positions",
        options=SparkExportOptions,
        view_elsewhere=lambda options: bool(options.lake),
    )


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    """Return the dispatcher.

    Raises:
        DispatcherError: a package of the extra ``spark`` is missing.
    """
    require_packages()
    require_format((context.options or SparkExportOptions()).lake_format)
    # Imported after the check, which reports missing packages with a clear message.
    from reput_plugins.spark_export.dispatcher import SparkExport

    return SparkExport(context)
