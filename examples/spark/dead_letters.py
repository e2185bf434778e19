"""Dead letters by cause: python dead_letters.py STORE

Two kinds: messages that a consumer group gave up on, in the topic %DLQ%group, and records that a dispatcher rejected,
in the store's reput/dead_letters.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, concat, count, element_at, expr, input_file_name, lit, regexp_extract
from session import session


def dead_letters(spark: SparkSession, store: str) -> DataFrame:
    """Return the group that gave up, the topic, the cause and the number of messages, the most frequent first."""
    log = spark.read.format("reput").option("subscribePattern", "%DLQ%.*").load(store)
    found = log.select(
        expr("substring(topic, 6)").alias("by"),
        # Where the message was first; what was sent back carries it.
        coalesce(
            element_at("properties", lit("DLQ_ORIGIN_TOPIC")), element_at("properties", lit("RETRY_TOPIC")), "topic"
        ).alias("topic"),
        concat(lit("tried "), "reconsumeTimes", lit(" times")).alias("cause"),
    )
    if any((Path(store) / "reput" / "dead_letters").glob("*.jsonl")):
        rejected = spark.read.json(f"{store}/reput/dead_letters/*.jsonl")
        found = found.union(
            rejected.select(regexp_extract(input_file_name(), r"([^/]+)\.jsonl$", 1), "topic", "reason")
        )
    return found.groupBy("by", "topic", "cause").agg(count("*").alias("messages")).orderBy(col("messages").desc(), "by")


if __name__ == "__main__":
    dead_letters(session("dead letters"), sys.argv[1]).show(1000, truncate=False)
