"""spark_export: the log as a Delta table that every lake reader can query.

Spark is the control plane - ranges, retries, cluster - and Python workers are the data plane: they decode ranges of the
raw log and write Parquet files themselves. The table is committed by ``deltalake`` with the log's end offset as version
of the transaction, so every record is in the lake exactly once, for every reader, whatever is killed.

Importing this module loads neither pyspark nor pyarrow. It needs the extra ``spark``, and Java unless Spark runs
elsewhere.
"""

from __future__ import annotations

from reput_plugins.spark_export.export_job import ExportReport, export

__all__ = ["ExportReport", "export"]
