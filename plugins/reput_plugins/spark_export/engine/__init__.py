"""The store's bulk work on Spark, for logs that would take one machine hours.

    check_store   executors verify ranges of the log and compare the views with them; the driver judges what spans
                  ranges. The report is the same as that of the local engine
    rebuild       executors read ranges of the log, then each builds whole queues and whole index files. The bytes are
                  the same as those of the local engine

Executors must see the store and the target under the same paths as the driver. Importing this loads no pyspark.
"""

from __future__ import annotations

from reput_plugins.spark_export.engine.checking import check_store
from reput_plugins.spark_export.engine.rebuilding import BuiltView, rebuild

__all__ = ["BuiltView", "check_store", "rebuild"]
