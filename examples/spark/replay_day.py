"""A topic's day again, under another name: python replay_day.py STORE TOPIC DAY NEW_TOPIC

DAY refers to the store time in UTC, like 2026-01-31. No other process may have the store open. The write has a name, so
a second run puts nothing, also if the first one was killed.
"""

import hashlib
import sys
from datetime import date

from pyspark.sql import SparkSession
from session import session


def replay_day(spark: SparkSession, store: str, topic: str, day: str, new_topic: str) -> None:
    """Append what was stored that day to the same log, as messages of another topic."""
    log = spark.read.format("reput").option("subscribe", topic).load(store)
    that_day = log.where(f"date(storeTimestamp) = '{date.fromisoformat(day)}'").orderBy("commitLogOffset")
    # Topics have characters that a write's name cannot have, and are longer.
    name = "replay-" + hashlib.sha256("\n".join((topic, day, new_topic)).encode()).hexdigest()
    that_day.write.format("reput").mode("append").option("topic", new_topic).option("writeId", name).save(store)


if __name__ == "__main__":
    replay_day(session("replay"), *sys.argv[1:5])
