"""Features of customers for a model: python features.py STORE FEATURES.parquet

Which customers pay, how much and how regularly: one row each, ready for a DataFrame library or a model.
"""

import sys

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import avg, col, count, from_json, lag, stddev, sum, unix_seconds, when
from session import session

import pyspark_reput


def features(spark: SparkSession, store: str) -> DataFrame:
    """Return customer, number of orders, share of paid ones, mean amount, and the mean gap between orders in s."""
    log = pyspark_reput.read(spark, store, subscribe="orders,payments")
    fields = from_json(col("body").cast("string"), "order bigint, customer string, amount double").alias("fields")
    rows = log.select("topic", "bornTimestamp", fields).select("topic", "bornTimestamp", "fields.*")
    paid = rows.where("topic = 'payments'").select("order", col("bornTimestamp").alias("paid"))
    orders = rows.where("topic = 'orders'").join(paid, "order", "left")
    before = lag("bornTimestamp").over(Window.partitionBy("customer").orderBy("bornTimestamp"))
    orders = orders.withColumn("gap", unix_seconds("bornTimestamp") - unix_seconds(before))
    return (
        orders.groupBy("customer")
        .agg(
            count("*").alias("orders"),
            (sum(when(col("paid").isNotNull(), 1).otherwise(0)) / count("*")).alias("paid_share"),
            avg("amount").alias("amount_mean"),
            stddev("amount").alias("amount_deviation"),
            avg("gap").alias("gap_seconds"),
        )
        .orderBy("customer")
    )


if __name__ == "__main__":
    store, target = sys.argv[1:3]
    features(session("features"), store).coalesce(1).write.mode("overwrite").parquet(target)
