"""The session of the jobs beside this: Spark's own choice of where to run, with the Python that runs this."""

import os
import sys

from pyspark.sql import SparkSession


def session(name: str) -> SparkSession:
    """Return the session for the job *name*."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    # A lake's folders name the topics, which stay texts.
    builder = builder.config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
