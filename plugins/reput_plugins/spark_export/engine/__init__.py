"""The store's own bulk work on Spark, for logs that one machine would take hours over.

    check_store   executors verify ranges of the log; the driver judges, and compares the views. The same report as the
                  local engine's
    rebuild       executors read ranges of the log, and then each builds whole queues and whole index files. The same
                  bytes

Executors see the store, and the target, under the same paths as the driver. Importing this loads no pyspark.
"""

from __future__ import annotations

from reput_plugins.spark_export.engine.checking import check_store
from reput_plugins.spark_export.engine.rebuilding import BuiltView, rebuild

__all__ = ["BuiltView", "check_store", "rebuild"]
