"""Turnover per ten minutes, with late orders counted: python late_orders.py STORE CHECKPOINT MINUTES

MINUTES is how long a window waits for late orders. The job prints the windows, and how often one had closed too early.
"""

import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, from_json, window
from pyspark.sql.functions import sum as total
from session import session


def turnover(spark: SparkSession, store: str, minutes: int, **options: Any) -> DataFrame:
    """Return the stream of closed windows: begin, number of orders, amount."""
    log = spark.readStream.format("reput").option("columns", "body,bornTimestamp").option("subscribe", "orders")
    log = log.option("startingOffsets", "earliest").options(**options).load(store)
    orders = log.withColumn("amount", from_json(col("body").cast("string"), "amount double")["amount"])
    windows = orders.withWatermark("bornTimestamp", f"{minutes} minutes").groupBy(window("bornTimestamp", "10 minutes"))
    rows = windows.agg(count("*").alias("orders"), total("amount").alias("amount"))
    return rows.select(col("window.start").alias("begin"), "orders", "amount")


def too_late(query: Any) -> int:
    """Return how often a run has left out orders because their window was closed.

    Spark counts the orders of one window in one micro-batch as one: it adds them up before it sees that they are late.
    """
    operators = [operator for progress in query.recentProgress for operator in progress["stateOperators"]]
    return sum(operator["numRowsDroppedByWatermark"] for operator in operators)


if __name__ == "__main__":
    store, checkpoint, minutes = sys.argv[1:4]
    spark = session("late orders")
    # Otherwise Spark keeps the reports of the last 100 micro-batches only.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000_000)
    rows = turnover(spark, store, int(minutes), maxOffsetsPerTrigger=10_000).writeStream
    query = rows.format("console").trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    print(f"too late: {too_late(query)}")
