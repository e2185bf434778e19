"""Messages per topic and minute of the store time: python messages_per_minute.py STORE"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, date_trunc
from session import session


def messages_per_minute(spark: SparkSession, store: str) -> DataFrame:
    """Return topic, minute and the number of messages, in that order."""
    log = spark.read.format("reput").option("userTopicsOnly", "true").load(store)
    minute = date_trunc("minute", log.storeTimestamp).alias("minute")
    return log.groupBy(log.topic, minute).agg(count("*").alias("messages")).orderBy("topic", "minute")


if __name__ == "__main__":
    messages_per_minute(session("messages per minute"), sys.argv[1]).show(1000, truncate=False)
