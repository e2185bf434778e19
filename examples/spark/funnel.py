"""How far each order got, by its session: python funnel.py STORE OUTPUT CHECKPOINT

A stateful stream. The messages of one order make a session, which ends when the order is shipped or nothing happens for
20 minutes. OUTPUT gets a row for each session.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, unix_millis
from session import session

STEPS = ["orders", "payments", "shipments"]
GAP_MS = 20 * 60_000
SESSION = "customer string, order bigint, reached string, seconds double"
STATE = "customer string, reached int, begin bigint, end bigint"


def sessions(key: tuple[int], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Yield the session of one order once it has ended."""
    if state.hasTimedOut:
        yield ended(key[0], *state.get)
        state.remove()
        return
    customer, reached, begin, end = state.get if state.exists else ("", 0, None, 0)
    for frame in frames:
        times = frame["ms"]
        customer = frame["customer"].iloc[0]
        reached = max(reached, *map(STEPS.index, frame["topic"]))
        begin = int(times.min()) if begin is None else min(begin, int(times.min()))
        end = max(end, int(times.max()))
    if reached == len(STEPS) - 1:
        yield ended(key[0], customer, reached, begin, end)
        state.remove()
        return
    state.update((customer, reached, begin, end))
    state.setTimeoutTimestamp(max(end + GAP_MS, state.getCurrentWatermarkMs() + 1))


def ended(order: int, customer: str, reached: int, begin: int, end: int) -> pd.DataFrame:
    """Return the row of a session: the last step that the order reached, and how long it took."""
    row = customer, order, STEPS[reached], (end - begin) / 1000
    return pd.DataFrame([row], columns=["customer", "order", "reached", "seconds"])


def funnel(spark: SparkSession, store: str, **options: Any) -> DataFrame:
    """Return the stream of ended sessions."""
    log = spark.readStream.format("reput").option("columns", "topic,body,bornTimestamp")
    log = log.option("subscribe", ",".join(STEPS)).option("startingOffsets", "earliest").options(**options).load(store)
    order = from_json(col("body").cast("string"), "order bigint, customer string").alias("order")
    steps = log.select("topic", "bornTimestamp", unix_millis("bornTimestamp").alias("ms"), order)
    # A body that is not JSON has no order.
    steps = steps.select("topic", "bornTimestamp", "ms", "order.*").where(col("order").isNotNull())
    steps = steps.withWatermark("bornTimestamp", "40 minutes")
    return steps.groupBy("order").applyInPandasWithState(sessions, SESSION, STATE, "append", "EventTimeTimeout")


if __name__ == "__main__":
    store, output, checkpoint = sys.argv[1:4]
    rows = funnel(session("funnel"), store, maxOffsetsPerTrigger=10_000).writeStream.format("parquet")
    rows.trigger(availableNow=True).option("checkpointLocation", checkpoint).start(output).awaitTermination()
