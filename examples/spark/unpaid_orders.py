"""Orders with their payments, and those without one after ten minutes: python unpaid_orders.py STORE OUTPUT CHECKPOINT

A join of two topics as streams. Both have a watermark, so that Spark knows when a payment can no longer come.
"""

import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, from_json
from session import session

BODY = "order bigint, customer string, amount double"


def topic_rows(spark: SparkSession, store: str, topic: str, **options: Any) -> DataFrame:
    """Return the fields of a topic's bodies and their time, as a stream."""
    log = spark.readStream.format("reput").option("columns", "body,bornTimestamp").option("subscribe", topic)
    log = log.option("startingOffsets", "earliest").options(**options).load(store)
    fields = log.select("bornTimestamp", from_json(col("body").cast("string"), BODY).alias("fields"))
    # A body that is not JSON has no order.
    rows = fields.select("bornTimestamp", "fields.*").where(col("order").isNotNull())
    return rows.withWatermark("bornTimestamp", "10 minutes")


def orders_with_payments(spark: SparkSession, store: str, **options: Any) -> DataFrame:
    """Return order, customer, amount and when it was paid, null if it was not within ten minutes."""
    orders = topic_rows(spark, store, "orders", **options).alias("o")
    payments = topic_rows(spark, store, "payments", **options).alias("p")
    soon = "p.bornTimestamp between o.bornTimestamp and o.bornTimestamp + interval 10 minutes"
    joined = orders.join(payments, expr(f"o.order = p.order and {soon}"), "left_outer")
    return joined.selectExpr("o.order", "o.customer", "o.amount", "p.bornTimestamp as paid")


if __name__ == "__main__":
    store, output, checkpoint = sys.argv[1:4]
    rows = orders_with_payments(session("unpaid orders"), store, maxOffsetsPerTrigger=10_000).writeStream
    rows.format("parquet").trigger(availableNow=True).option("checkpointLocation", checkpoint).start(
        output
    ).awaitTermination()
