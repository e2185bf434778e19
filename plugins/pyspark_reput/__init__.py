"""Spark's data source: the commit log of a store as a table, batch or streaming.

    spark.read.format("reput").load("/path/of/a/store")
    spark.readStream.format("reput").option("subscribe", "orders").load("/path/of/a/store")

Spark finds this package by its name, so no call is needed. After `register`, queries of the session read only the
columns and the records that they use; `read` and `read_stream` are shorter ways to write the above.
Needs the extra ``spark``: pyspark 4.2 or later, and Java.
"""

from __future__ import annotations

import pyspark

from reput.errors import ConfigError

if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
    raise ConfigError(
        f"reput needs a later pyspark: pyspark={pyspark.__version__} needed=4.2",
        'Install it with: pip install "reput[spark]".',
    )

from pyspark_reput.data_source import DefaultSource
from pyspark_reput.lag_report import StreamLag, stream_lag
from pyspark_reput.session import read, read_stream, register

__all__ = ["DefaultSource", "StreamLag", "read", "read_stream", "register", "stream_lag"]
