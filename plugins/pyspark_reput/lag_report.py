"""Lag of a stream behind the log, as it stands in Spark's progress reports.

Spark takes no metrics from a Python source, but it reports the latest offset that the source names. The position there
carries the lag after the micro-batch of the report:

    "lag": {"bytes": <of the log>, "records": <that would be rows>, "exact": <whether they were counted>,
            "seconds": <since the oldest of them was stored>}

`stream_lag` takes it out of a query or of a progress, so a `StreamingQueryListener` can send it anywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec

from reput.table import LogTable, RowFilter

__all__ = ["StreamLag", "measured_lag", "stream_lag"]

# Rows of a longer lag are estimated from as many bytes at its beginning: a report must not read the whole log.
COUNTED_BYTES_MAX = 16 << 20


class StreamLag(msgspec.Struct, frozen=True):
    """How far a stream is behind the log.

    Attributes:
        bytes: of the log, of all topics.
        records: that would be rows of the stream.
        exact: whether *records* were counted; else they are estimated.
        seconds: since the first record that the stream has not read was stored; 0 if it has read all.
    """

    bytes: int
    records: int
    exact: bool
    seconds: float


def measured_lag(
    table: LogTable, begin: int, end: int, wanted: RowFilter, clock: Callable[[], float] = time.time
) -> dict[str, Any]:
    """Return the lag of a stream that has read the log up to *begin*; *wanted*: which records are its rows."""
    begin = max(begin, table.offset_min)
    behind = max(end - begin, 0)
    counted_end = end if behind <= COUNTED_BYTES_MAX else table.next_record(begin + COUNTED_BYTES_MAX, end)
    records = table.count_rows(begin, counted_end, wanted) if behind else 0
    if counted_end < end:
        records = round(records * behind / (counted_end - begin))
    stored = table.store_time(begin, end) if behind else None
    seconds = 0.0 if stored is None else max(clock() - stored / 1000, 0.0)
    lag: dict[str, Any] = msgspec.to_builtins(StreamLag(behind, records, counted_end >= end, round(seconds, 3)))
    return lag


def stream_lag(reported: Any) -> list[StreamLag]:
    """Return the lag of each source of reput in a streaming query, or in one of its progress reports.

    Args:
        reported: a `StreamingQuery`, whose last report counts, or a `StreamingQueryProgress`.
    """
    progress = getattr(reported, "lastProgress", reported)
    if progress is None:
        return []
    found = []
    for source in progress["sources"]:
        latest = source["latestOffset"]
        latest = json.loads(latest) if isinstance(latest, str) else latest
        if isinstance(latest, dict) and "lag" in latest:
            found.append(msgspec.convert(latest["lag"], StreamLag))
    return found
