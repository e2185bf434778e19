"""spark_export: the log as a Delta table that every lake reader can query.

Spark is the control plane - ranges, retries, cluster - and Python workers are the data plane: they decode ranges of the
raw log and write Parquet files themselves. The table is committed by ``deltalake`` with the log's end offset as version
of the transaction, so every record is in the lake exactly once, for every reader, whatever is killed.

`export` brings a lake up to the log's end once; `follow` and the dispatcher keep it there. Importing this module loads
neither pyspark nor pyarrow. It needs the extra ``spark``, and Java unless Spark runs elsewhere.
"""

from __future__ import annotations

from reput_hooks import CommitLogDispatcher, DispatcherContext, DispatcherDescription, hookimpl
from reput_plugins.spark_export.export_job import ExportReport, export
from reput_plugins.spark_export.follow_job import FollowRow, follow
from reput_plugins.spark_export.options import SparkExportOptions
from reput_plugins.spark_export.requirements import require_packages

__all__ = [
    "ExportReport",
    "FollowRow",
    "SparkExportOptions",
    "export",
    "follow",
    "reput_create_dispatcher",
    "reput_describe_dispatcher",
]


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    """Only durable bytes leave the store, and of them only how far they reach: workers read the log themselves."""
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
    # Only now: it loads the packages whose absence was to be told in a sentence.
    from reput_plugins.spark_export.dispatcher import SparkExport

    return SparkExport(context)
