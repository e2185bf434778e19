"""Lag of a stream behind the log, in Spark's progress reports.

Spark accepts no metrics from a Python source, but it reports the latest offset that the source returns. The position in
this offset carries the lag after the micro-batch of the report:

    "lag": {"bytes": <of the log>, "records": <number that would be rows>, "exact": <whether they were counted>,
            "seconds": <since the oldest of them was stored>}

`stream_lag` reads the lag from a query or a progress report, so a `StreamingQueryListener` can forward it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from reput.table import LogTable, RowFilter

__all__ = ["StreamLag", "reported_lag", "stream_lag"]


class StreamLag(msgspec.Struct, frozen=True):
    """How far a stream is behind the log.

    Attributes:
        bytes: bytes of the log, for all topics.
        records: number of records that would be rows of the stream.
        exact: whether *records* were counted; else they are estimated.
        seconds: time since the first record that the stream has not read was stored; 0 if it has read all records.
    """

    bytes: int
    records: int
    exact: bool
    seconds: float


def reported_lag(table: LogTable, begin: int, end: int, wanted: RowFilter) -> dict[str, Any]:
    """Return the lag of a stream that has read the log up to *begin*; *wanted* selects the stream's records."""
    begin = max(begin, table.offset_min)
    lag = table.lag(begin, max(begin, end), wanted)
    reported: dict[str, Any] = msgspec.to_builtins(StreamLag(lag.byte_count, lag.messages, lag.exact, lag.seconds))
    return reported


def stream_lag(reported: Any) -> list[StreamLag]:
    """Return the lag of each reput source in a streaming query, or in one of its progress reports.

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
