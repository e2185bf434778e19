"""An hour of a made-up shop, the same one each time: python sample_shop.py STORE

Three topics, whose bodies are JSON: orders, payments and shipments. Of 300 orders every fifth is never paid, and every
tenth is paid and never shipped. Some orders reach the log half an hour after their birth.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, expr, lit
from session import session

ORDERS = 300
BEGIN = "timestamp'2026-01-31 12:00:00Z'"
# Topic, seconds after the order, and which orders have such a message.
STEPS = (
    ("orders", 0, "true"),
    ("payments", 60, "id % 5 != 0"),
    ("shipments", 300, "id % 5 != 0 and id % 10 != 1"),
)


def sample_shop(spark: SparkSession, store: str) -> None:
    """Write the messages in the order of their arrival; ``bornTimestamp`` is when they happened."""
    order = spark.range(ORDERS).select(
        "id", concat(lit("c"), col("id") % 20).alias("customer"), (10 + 5 * (col("id") % 7)).alias("amount")
    )
    steps = [
        order.where(which).select(
            lit(topic).alias("topic"),
            concat(lit("order-"), "id").alias("keys"),
            expr("to_json(named_struct('order', id, 'customer', customer, 'amount', amount))").alias("body"),
            expr(f"{BEGIN} + make_dt_interval(0, 0, 0, id * 12 + {seconds})").alias("bornTimestamp"),
            # Every fiftieth order was made on a telephone without a network.
            expr(f"id * 12 + {seconds} + if(id % 50 = 7 and '{topic}' = 'orders', 1800, 0)").alias("arrival"),
        )
        for topic, seconds, which in STEPS
    ]
    messages = steps[0].union(steps[1]).union(steps[2]).repartition(1).sortWithinPartitions("arrival", "topic")
    messages.drop("arrival").write.format("reput").mode("append").option("writeId", "sample-shop").save(store)


if __name__ == "__main__":
    sample_shop(session("sample shop"), sys.argv[1])
