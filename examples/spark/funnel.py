"""How far each order got, by its session: python funnel.py STORE OUTPUT CHECKPOINT

A stateful stream. The messages of one order make a session, which ends when the order is shipped or nothing happens for
20 minutes. OUTPUT gets a row for each session.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from session import session

STEPS = ["orders", "payments", "shipments"]
GAP_MS = 20 * 60_000
SESSION = "customer string, order bigint, reached string, seconds double"
STATE = "customer string, steps array<string>, begin bigint, end bigint"


def sessions(key: tuple[int], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Yield the session of one order once it has ended."""
    if state.hasTimedOut:
        yield ended(key[0], state.get)
        state.remove()
        return
    customer, steps, begin, end = state.get if state.exists else ("", [], None, 0)
    for frame in frames:
        times = frame["bornTimestamp"].astype("datetime64[ms, UTC]").astype("int64")
        customer = frame["customer"].iloc[0]
        steps = [*steps, *frame["topic"]]
        begin = int(times.min()) if begin is None else min(begin, int(times.min()))
        end = max(end, int(times.max()))
    if STEPS[-1] in steps:
        yield ended(key[0], (customer, steps, begin, end))
        state.remove()
        return
    state.update((customer, steps, begin, end))
    state.setTimeoutTimestamp(max(end + GAP_MS, state.getCurrentWatermarkMs() + 1))


def ended(order: int, session: tuple[str, list[str], int, int]) -> pd.DataFrame:
    """Return the row of a session: the last step that the order reached, and how long it took."""
    customer, steps, begin, end = session
    reached = max(steps, key=STEPS.index)
    return pd.DataFrame(
        [(customer, order, reached, (end - begin) / 1000)], columns=["customer", "order", "reached", "seconds"]
    )


def funnel(spark: SparkSession, store: str, **options: Any) -> DataFrame:
    """Return the stream of ended sessions."""
    log = spark.readStream.format("reput").option("columns", "topic,body,bornTimestamp")
    log = log.option("subscribe", ",".join(STEPS)).option("startingOffsets", "earliest").options(**options).load(store)
    order = from_json(col("body").cast("string"), "order bigint, customer string").alias("order")
    steps = log.select("topic", "bornTimestamp", order).select("topic", "bornTimestamp", "order.*")
    steps = steps.withWatermark("bornTimestamp", "40 minutes")
    return steps.groupBy("order").applyInPandasWithState(sessions, SESSION, STATE, "append", "EventTimeTimeout")


if __name__ == "__main__":
    store, output, checkpoint = sys.argv[1:4]
    rows = funnel(session("funnel"), store, maxOffsetsPerTrigger=10_000).writeStream.format("parquet")
    rows.trigger(availableNow=True).option("checkpointLocation", checkpoint).start(output).awaitTermination()
