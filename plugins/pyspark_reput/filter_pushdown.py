"""Filters of a query that can be evaluated from a record's header, before its body is read.

Accepted filters are applied exactly, so Spark need not evaluate them again: comparisons of topic, queue, offsets and
store time with a constant. Spark evaluates all others.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from reput.table import RowFilter

__all__ = ["push_filter"]

# Column to the field of `RowFilter` that bounds it. Of a time, the field that is compared in every record, because the
# same query without push-down does so, too.
RANGE_FIELDS = {
    "rocketmq": {
        "queueOffset": "queue_offset",
        "commitLogOffset": "commit_log_offset",
        "storeTimestamp": "any_store_timestamp",
    },
    "kafka": {"offset": "queue_offset"},
}
# Columns that hold a value in every row.
NEVER_NULL = {
    "rocketmq": frozenset(("topic", "queueId", "queueOffset", "commitLogOffset")),
    "kafka": frozenset(("topic", "partition", "offset")),
}
SET_FIELDS = {
    "rocketmq": {"topic": "topics", "queueId": "queue_ids"},
    "kafka": {"topic": "topics", "partition": "queue_ids"},
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

Bounds = tuple[int | None, int | None]


def push_filter(condition: Filter, wanted: RowFilter, schema_mode: str) -> RowFilter | None:
    """Return *wanted* narrowed by *condition*; None if a header is not enough to evaluate the condition exactly."""
    column = ".".join(getattr(condition, "attribute", ()))
    # Spark adds this filter to every comparison. If Spark evaluated it, it would need the column.
    if isinstance(condition, IsNotNull) and column in NEVER_NULL.get(schema_mode, ()):
        return wanted
    set_field = SET_FIELDS.get(schema_mode, {}).get(column)
    if set_field is not None:
        return narrowed_set(condition, wanted, set_field)
    range_field = RANGE_FIELDS.get(schema_mode, {}).get(column)
    if range_field is not None:
        return narrowed_range(condition, wanted, range_field)
    return None


def narrowed_set(condition: Filter, wanted: RowFilter, field: str) -> RowFilter | None:
    """Return *wanted* with a set restricted to the values in *condition*."""
    if isinstance(condition, EqualTo):
        values = frozenset({condition.value})
    elif isinstance(condition, In):
        values = frozenset(condition.value)
    else:
        return None
    present = getattr(wanted, field)
    return msgspec.structs.replace(wanted, **{field: values if present is None else values & present})


def narrowed_range(condition: Filter, wanted: RowFilter, field: str) -> RowFilter | None:
    """Return *wanted* with a narrower range of integers."""
    bounds = BOUNDS_OF.get(type(condition))
    value = getattr(condition, "value", None)
    if bounds is None or not isinstance(value, int | datetime):
        return None
    low, high = bounds(value)
    names = f"{field}_min", f"{field}_until"
    present_low, present_high = (getattr(wanted, name) for name in names)
    narrowed = (
        low if present_low is None else present_low if low is None else max(low, present_low),
        high if present_high is None else present_high if high is None else min(high, present_high),
    )
    return msgspec.structs.replace(wanted, **dict(zip(names, narrowed, strict=True)))


def floor(value: int | datetime) -> int:
    """Return a number unchanged, a time as whole ms since 1970, rounded down."""
    return (value - EPOCH) // MILLISECOND if isinstance(value, datetime) else value


def ceiling(value: int | datetime) -> int:
    """Return a number unchanged, a time as whole ms since 1970, rounded up."""
    return -((EPOCH - value) // MILLISECOND) if isinstance(value, datetime) else value


BOUNDS_OF: dict[type[Filter], Callable[[Any], Bounds]] = {
    EqualTo: lambda value: (ceiling(value), floor(value) + 1),
    GreaterThan: lambda value: (floor(value) + 1, None),
    GreaterThanOrEqual: lambda value: (ceiling(value), None),
    LessThan: lambda value: (None, ceiling(value)),
    LessThanOrEqual: lambda value: (None, floor(value) + 1),
}
