"""The functions that a program calls with its session: `register`, `read` and `read_stream`."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_reput.column_pruning import prune_columns

__all__ = ["read", "read_stream", "register"]

PUSH_DOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Let queries of this session read only the columns and the records that they use.

    Without `register`, queries return the same rows, but every column goes to Spark, and Spark evaluates the filters.
    """
    spark.conf.set(PUSH_DOWN_SETTING, "true")
    prune_columns(spark)


def read(spark: SparkSession, store: str | os.PathLike[str], **options: Any) -> DataFrame:
    """Return the log of *store* as a frame whose queries read only the columns and the records that they use.

    Args:
        options: options of the format ``reput`` by name, such as ``subscribe="orders"``.
    """
    register(spark)
    return spark.read.format("reput").options(**options).load(os.fspath(store))


def read_stream(spark: SparkSession, store: str | os.PathLike[str], **options: Any) -> DataFrame:
    """Return the log of *store* as a stream. Spark prunes no columns there: name the wanted ones in ``columns``."""
    return spark.readStream.format("reput").options(**options).load(os.fspath(store))
