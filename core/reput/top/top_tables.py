"""The tables of `reput top`: columns that fit into 80 characters, and the rows of one reading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from reput.client.administration import BrokerRow
from reput.metrics.store_figures import GroupLag
from reput.process.control.dispatcher_row import DispatcherRow
from reput.process.logs.exception_text import exception_line
from reput.watched.overview import Overview
from reput.watched.rates import GOT_NAMES, PUT_NAMES, Rates, broker_rate
from reput.watched.short_text import short_count, short_rate, short_seconds, short_size

__all__ = [
    "BROKERS",
    "DISPATCHERS",
    "GROUPS",
    "TOPICS",
    "Cells",
    "Table",
    "broker_rows",
    "dispatcher_rows",
    "group_rows",
    "head",
    "topic_rows",
]

Cells: TypeAlias = tuple[str, ...]


class Table(NamedTuple):
    """A table: its name, and its columns with the width of each."""

    name: str
    columns: tuple[tuple[str, int], ...]


# With a blank on both sides of each cell, and the scroll bar, these are at most 80 wide.
DISPATCHERS = Table(
    "dispatchers",
    (("dispatcher", 17), ("state", 8), ("lag", 9), ("behind", 7), ("restarts", 8), ("dead", 5), ("memory", 8)),
)
GROUPS = Table("groups", (("group", 21), ("topic", 22), ("lag", 8), ("oldest", 8), ("delivered", 9)))
TOPICS = Table("topics", (("topic", 32), ("messages", 10), ("put", 10), ("bytes", 12)))
BROKERS = Table("brokers", (("broker", 20), ("address", 21), ("version", 8), ("put", 9), ("delivered", 9)))


def head(overview: Overview, rates: Rates) -> str:
    """Return two lines about the whole: what is watched, in which state, and how fast it grows."""
    figures = overview.figures
    if figures is None:
        failing = [row for row in overview.brokers if row.error is not None]
        state = f"{len(overview.brokers)} brokers" + (f", {len(failing)} DO NOT ANSWER" if failing else "")
        return f"{overview.target}   {state}\nput {short_rate(rates.put)}   delivered {short_rate(rates.got)}"
    status = figures.status
    writer = status.writer
    reason = f": {exception_line(writer.reason)}" if writer.reason else ""
    lease = "" if status.lease is None else f"   {status.lease.role}, {len(status.lease.in_sync)} in sync"
    damage = sum(not part.accepted for part in status.damage)
    unforced = None if writer.appended is None or writer.durable is None else max(writer.appended - writer.durable, 0)
    size = None if writer.appended is None else writer.appended - (writer.commit_log_offset_min or 0)
    first = (
        f"{overview.target}   {writer.state}{reason}   epoch {writer.epoch}{lease}"
        + (f"   {damage} DAMAGED RANGES" if damage else "")
        + f"   log {short_size(size)} in {figures.segment_nums} files   disk free {short_size(figures.disk_free)}"
    )
    second = (
        f"put {short_rate(rates.put)}  {short_size(rates.put_size)}/s   delivered {short_rate(rates.got)}   "
        f"not forced {short_size(unforced)}   waiting {short_count(waiting(overview))}"
    )
    return f"{first}\n{second}"


def waiting(overview: Overview) -> int | None:
    """Return how many delayed messages wait."""
    delays = None if overview.figures is None else overview.figures.status.waiting_delays
    return None if delays is None else sum(delays.values())


def dispatcher_rows(rows: Iterable[DispatcherRow]) -> list[Cells]:
    """Return a row per dispatcher, in the order of the status."""
    return [
        (
            row.name,
            "REBUILD" if row.rebuild_progress is not None and row.state == "RUNNING" else row.state,
            short_size(row.lag_bytes),
            short_seconds(row.lag_seconds),
            short_count(row.restart_count),
            short_count(row.rejected_count),
            short_size(row.rss_bytes),
        )
        for row in rows
    ]


def group_rows(lags: Iterable[GroupLag], rates: Rates, now_ms: int) -> list[Cells]:
    """Return a row per group and topic; those furthest behind first."""
    return [
        (
            row.group,
            row.topic,
            short_count(row.lag),
            short_seconds(None if row.waiting_since is None else max(now_ms - row.waiting_since, 0) / 1000),
            short_rate(rates.got_by_group.get((row.group, row.topic))),
        )
        for row in sorted(lags, key=lambda row: (-row.lag, row.group, row.topic))
    ]


def topic_rows(overview: Overview, rates: Rates) -> list[Cells]:
    """Return a row per topic that was put to since the store was opened; the fastest first."""
    counts = overview.counts
    if counts is None:
        return []
    sizes = rates.put_size_by_topic
    return [
        (
            topic,
            short_count(count),
            short_rate(rates.put_by_topic.get(topic)),
            f"{short_size(sizes[topic])}/s" if topic in sizes else "-",
        )
        for topic, count in sorted(
            counts.put.items(), key=lambda item: (-rates.put_by_topic.get(item[0], 0), -item[1], item[0])
        )
    ]


def broker_rows(rows: Iterable[BrokerRow]) -> list[Cells]:
    """Return a row per broker."""
    return [
        (
            f"{row.broker_name} {row.broker_id}",
            row.address,
            "DOWN" if row.runtime is None else row.runtime.get("brokerVersionDesc", "-"),
            short_rate(broker_rate(row.runtime, *PUT_NAMES)),
            short_rate(broker_rate(row.runtime, *GOT_NAMES)),
        )
        for row in rows
    ]
