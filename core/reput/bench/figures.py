"""The figures of each measurement of `reput bench`, with their units and goals.

A goal is an absolute bound, or a multiple of the figure of RocketMQ's store on the same machine in the same run, of the
better of its versions (`benchmarks/beside.py`). Goals are what reput sets itself; no test depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

__all__ = ["FIGURES", "Figure", "at_most", "figure_rows", "figures_of", "look_up", "shown", "yes_or_no"]

Bound = Literal["at least", "at most"]


class Figure(msgspec.Struct, frozen=True):
    """One figure of a report.

    Attributes:
        what: the measured quantity, for display.
        path: names that lead to it in the report, separated by dots; a number picks an item of a list, -1 the last.
        scale: the figure is shown divided by this, in *unit*.
        bound, goal: the goal, in *unit*; None: no goal.
        peer: name of RocketMQ's corresponding measurement, in `benchmarks/rocketmq_peer.py`.
        multiple: the goal as a multiple of RocketMQ's figure.
        peer_version: version of RocketMQ for *multiple*; None: the better one.
        only: the options that the goal applies to, if not all: numbers by their path in the report.
    """

    what: str
    path: str
    unit: str
    bound: Bound = "at most"
    goal: float | None = None
    scale: float = 1
    peer: str | None = None
    multiple: float | None = None
    peer_version: str | None = None
    only: dict[str, float] = {}

    def of(self, report: Mapping[str, Any]) -> float | None:
        """Return the figure in *unit*, None if the report does not have it."""
        found = look_up(report, self.path)
        return None if found is None else found / self.scale

    def is_for(self, report: Mapping[str, Any]) -> bool:
        """Whether *report* was made with the options that this figure applies to."""
        return all(look_up(report, path) == value for path, value in self.only.items())

    def asked(self) -> str:
        """Return the goal as text, empty without one."""
        sign = "≥" if self.bound == "at least" else "≤"
        parts = [f"{sign} {shown(self.goal)}"] if self.goal is not None else []
        if self.multiple is not None:
            parts.append(f"{sign} {self.multiple:g} × RocketMQ{f' {self.peer_version}' if self.peer_version else ''}")
        return ", ".join(parts)

    def kept(self, figure: float | None) -> bool | None:
        """Whether *figure* meets the goal; None without a goal, or if it depends on RocketMQ's figure."""
        if figure is None or self.goal is None:
            return None
        return figure >= self.goal if self.bound == "at least" else figure <= self.goal


def at_least(what: str, path: str, unit: str, goal: float | None = None, **more: Any) -> Figure:
    return Figure(what, path, unit, "at least", goal, **more)


def at_most(what: str, path: str, unit: str, goal: float | None = None, **more: Any) -> Figure:
    return Figure(what, path, unit, "at most", goal, **more)


MIB = 1 << 20
MS = 1e3  # of times in microseconds

PUT_TO_READABLE_P50 = at_most("put to readable, p50", "put_to_readable.p50_us", "µs", 80, peer="visible, p50")
PUT_TO_READABLE_P99 = at_most("put to readable, p99", "put_to_readable.p99_us", "µs", 500, peer="visible, p99")

FIGURES: dict[str, tuple[Figure, ...]] = {
    "append": (
        at_least("put, views keeping up", "put.attached_per_s", "1/s", peer="put", multiple=0.5),
        at_most("put, p99", "put.p99_us", "µs", 20),
        at_most("furthest a view was behind", "put.lag_max_bytes", "MiB", 8, scale=MIB),
        at_least("put_batch of 64, views keeping up", "put_batch.attached_per_s", "1/s", peer="put", multiple=1.2),
        PUT_TO_READABLE_P50,
        PUT_TO_READABLE_P99,
        at_most("put's call to readable, p50", "put_to_readable.from_call_p50_us", "µs"),
        at_most("anonymous memory of the group", "memory.anonymous_bytes", "MiB", scale=MIB),
    ),
    "sync": (
        at_least(
            "put to disk, 64 threads", "put.per_s", "1/s", only={"put.threads": 64}, peer="put to disk", multiple=0.8
        ),
        at_least("put to disk", "put.per_s", "1/s"),
        at_most("put to disk, p99", "put.p99_us", "ms", scale=MS),
        at_least(
            "aput to disk, 1,024 in flight",
            "aput.per_s",
            "1/s",
            only={"aput.in_flight": 1024},
            peer="put to disk, in flight",
            multiple=0.5,
        ),
        at_least("aput to disk", "aput.per_s", "1/s"),
    ),
    "read": (
        at_least("32 at a time, in order", "in_order_per_s", "1/s", 500_000, peer="read in order"),
        at_most("one at random, p50", "one_at_random.p50_us", "µs", 15, peer="read at random"),
        at_most("by key, p50", "by_key.p50_us", "µs", 30, peer="query by key"),
    ),
    "open": (
        at_most("usable after a close", "clean.usable_ms", "ms", 400, peer="open after a close"),
        at_most("usable after a kill, all records checked", "killed.usable_ms", "ms", 2500, peer="open after a kill"),
        at_least("check of the log", "check_mb_per_s", "MB/s", 400),
        at_least("check of the log and its views", "check_with_views_mb_per_s", "MB/s"),
    ),
    "dispatch": (
        PUT_TO_READABLE_P50,
        PUT_TO_READABLE_P99,
        at_most("put past 16 paused dispatchers, more", "paused.attached.-1.difference_percent", "%", 5),
        at_most("back-stop found work", "backstop.found_work", "times", 0),
        at_most(
            "consume queue behind puts at full speed", "full_speed.put.lag_max_bytes.consume_queue", "MiB", 8, scale=MIB
        ),
        at_most(
            "memory of the consume queue, numpy loaded",
            "full_speed.anonymous_bytes.consume_queue",
            "MiB",
            45,
            scale=MIB,
        ),
        at_most("kill -9 of the consume queue to caught up, p50", "restart.p50_us", "ms", 300, scale=MS),
        at_most("kill -9 of the consume queue to caught up, max", "restart.max_us", "ms", 300, scale=MS),
    ),
    "rebuild": (
        at_least(
            "rebuild, one queue",
            "records_per_s",
            "1/s",
            only={"queues": 1},
            peer="rebuild, one queue",
            multiple=1.0,
            peer_version="5.3.3",
        ),
        at_least(
            "rebuild, 1,000 queues",
            "records_per_s",
            "1/s",
            only={"queues": 1000},
            peer="rebuild, 1,000 queues",
            multiple=1.5,
        ),
        at_least("rebuild", "records_per_s", "1/s"),
    ),
    "consume": (
        at_least("one consumer", "consumed_per_s", "1/s", 300_000),
        at_least("units passed by a tag of 1 in 100", "units_passed_by_tag_per_s", "1/s", 3_000_000),
        at_most("put to received in another task, p50", "put_to_received.p50_us", "µs", 150),
        at_most("put's call to received in another task, p50", "put_to_received.from_call_p50_us", "µs"),
        at_most("put to received in another task, p99", "put_to_received.p99_us", "µs", 1000),
        at_most("put to woken among 10,000 pulls, p99", "put_to_woken.p99_us", "µs", 1000),
        at_most("first put to a queue to woken, p50", "put_to_woken_by_first.p50_us", "µs"),
        at_most("memory of a held pull", "bytes_per_held_pull", "bytes", 2048),
        at_most(
            "delivered late beside 100,000 that wait, max",
            "delivered_late.max_us",
            "ms",
            50,
            scale=MS,
            only={"delayed_waiting": 100_000},
        ),
        at_most("delivered late, max", "delivered_late.max_us", "ms", scale=MS),
    ),
    "serve": (
        at_least("aput through the broker", "aput.per_s", "1/s", 73_500),
        at_least("aput_batch of 32 through the broker", "aput_batch.per_s", "1/s"),
        at_most("one put after the other, p50", "one_by_one.p50_us", "µs"),
        at_least("received from the broker", "received.per_s", "1/s"),
        at_most("put to received through the broker, p50", "end_to_end.p50_us", "µs", 300),
        at_most("put to received through the broker, p99", "end_to_end.p99_us", "µs"),
        at_most("ready for clients", "ready_ms", "ms", 600),
        at_most("anonymous memory of the group", "memory.anonymous_bytes", "MiB", 120, scale=MIB),
        at_most("memory of 2,000 idle connections", "idle.anonymous_bytes", "MiB", 40, scale=MIB),
        at_most("puts lost beside 2,000 idle connections", "idle.loss_percent", "%", 5),
        at_most("put p99 beside misbehaving clients, more", "abuse.p99_percent", "%", 20),
    ),
    "export": (
        at_least("decode", "decode.mb_per_s", "MB/s", 800),
        at_least("export to Delta, warm", "export.mb_per_s", "MB/s", 300),
        at_least("export, times df.write", "export.times_df_write", "times", 2),
        at_least("export, Iceberg times Delta", "export.iceberg_times_delta", "times", 0.8),
        at_least("check --lake", "export.check_lake_mb_per_s", "MB/s", 200),
        at_least("typed table of JSON", "typed.mb_per_s", "MB/s", 120),
        at_least("the same, times from_json", "typed.times_from_json", "times", 3),
        at_least("query of one column, times as fast as of all", "export.query_times_all_columns", "times", 5),
        at_least("backlog drained", "follow.drain_mb_per_s", "MB/s", 150),
        at_most("micro-batch, p50", "follow.micro_batch.p50_us", "ms", 400, scale=MS),
        at_most("memory of the JVM", "follow.jvm_memory_bytes_max", "MiB", 1024, scale=MIB),
        at_most("start to first commit", "first_commit.seconds", "s", 12),
    ),
}


def look_up(report: Mapping[str, Any], path: str) -> float | None:
    """Return the number at *path* of a report, None if there is none."""
    at: Any = report
    for name in path.split("."):
        if isinstance(at, Mapping) and name in at:
            at = at[name]
        elif isinstance(at, list) and at and name.lstrip("-").isdigit():
            at = at[int(name)]
        else:
            return None
    return at if isinstance(at, (int, float)) else None


def figures_of(
    report: Mapping[str, Any], figures: Mapping[str, tuple[Figure, ...]] = FIGURES
) -> Iterator[tuple[Figure, float]]:
    """Yield the figures of *report*, each path once: the first of *figures* that applies to the report's options."""
    seen: set[str] = set()
    for figure in figures[report["bench"]]:
        found = figure.of(report)
        if found is not None and figure.is_for(report) and figure.path not in seen:
            seen.add(figure.path)
            yield figure, found


def figure_rows(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row of text for each figure of *report*: what, figure, unit, asked, and whether the goal is met."""
    for figure, found in figures_of(report):
        yield {
            "what": figure.what,
            "figure": shown(found),
            "unit": figure.unit,
            "asked": figure.asked(),
            "kept": yes_or_no(figure.kept(found)),
        }


def yes_or_no(kept: bool | None) -> str:
    """Return whether a goal was met as text; empty if that is undecided."""
    return {True: "yes", False: "NO", None: ""}[kept]


def shown(number: float | None) -> str:
    """Return a figure as text: three significant digits, with thousands separators."""
    if number is None:
        return ""
    if abs(number) >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"
