"""An hour of made-up messages, the same ones each time: python sample_orders.py STORE"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, expr, lit, sin
from session import session

MESSAGES = 6000


def sample_orders(spark: SparkSession, store: str) -> None:
    """Write messages of three topics, whose birth is spread over one hour with a rush in it."""
    rows = spark.range(0, MESSAGES, numPartitions=1)
    second = col("id") * 3600 / MESSAGES + 240 * sin(col("id") * 6.28318 / MESSAGES)
    messages = rows.select(
        expr(
            "element_at(array('orders', 'orders', 'orders', 'payments', 'payments', 'shipments'), int(id % 6) + 1)"
        ).alias("topic"),
        concat(lit("order-"), "id").alias("keys"),
        concat(lit("message "), "id").alias("body"),
        expr("int(id % 4)").alias("queueId"),
        expr("timestamp'2026-01-31 12:00:00Z'").alias("hour"),
        second.alias("second"),
    )
    born = expr("timestamp_millis(unix_millis(hour) + bigint(second * 1000))").alias("bornTimestamp")
    messages = messages.select("topic", "keys", "body", "queueId", born)
    messages.write.format("reput").mode("append").option("writeId", "sample-orders").save(store)


if __name__ == "__main__":
    sample_orders(session("sample orders"), sys.argv[1])
