"""End-to-end delay by topic, from birth at the producer to the store: python delay.py STORE"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, expr, unix_millis
from session import session


def delay(spark: SparkSession, store: str) -> DataFrame:
    """Return topic, number of messages, and median, 99th percentile and maximum of the delay in ms."""
    log = spark.read.format("reput").option("userTopicsOnly", "true").load(store)
    delays = log.select("topic", (unix_millis("storeTimestamp") - unix_millis("bornTimestamp")).alias("ms"))
    return (
        delays.groupBy("topic")
        .agg(
            count("*").alias("messages"),
            expr("percentile_disc(0.5) within group (order by ms)").alias("p50_ms"),
            expr("percentile_disc(0.99) within group (order by ms)").alias("p99_ms"),
            expr("max(ms)").alias("max_ms"),
        )
        .orderBy("topic")
    )


if __name__ == "__main__":
    delay(session("delay"), sys.argv[1]).show(1000, truncate=False)
