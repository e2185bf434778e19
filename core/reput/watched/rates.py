"""Rates: what was put and delivered a second, between two readings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from reput.watched.overview import Counts, Overview

__all__ = ["GOT_NAMES", "PUT_NAMES", "RateMeter", "Rates", "broker_rate"]

Name = TypeVar("Name", str, tuple[str, str])

# In a broker's runtime figures. RocketMQ 4.9 misspells one.
PUT_NAMES = ("putTps",)
GOT_NAMES = ("getTransferredTps", "getTransferedTps")


class Rates(msgspec.Struct, frozen=True):
    """Messages, or bytes, a second. None: there is no reading to compare with yet, or nothing is counted.

    Attributes:
        got_by_group: by group and topic.
    """

    put: float | None = None
    put_size: float | None = None
    got: float | None = None
    put_by_topic: dict[str, float] = {}
    put_size_by_topic: dict[str, float] = {}
    got_by_group: dict[tuple[str, str], float] = {}


class RateMeter:
    """Compares each reading with the one before."""

    def __init__(self) -> None:
        self.before: tuple[float, Counts, int | None] | None = None

    def rates(self, overview: Overview) -> Rates:
        """Return the rates since the last reading."""
        if overview.figures is None:
            brokers = [row.runtime for row in overview.brokers]
            return Rates(
                put=total([broker_rate(runtime, *PUT_NAMES) for runtime in brokers]),
                got=total([broker_rate(runtime, *GOT_NAMES) for runtime in brokers]),
            )
        counts, started = overview.counts, overview.figures.status.started
        before, self.before = self.before, None if counts is None else (overview.at, counts, started)
        # Another opening counts from 0 again.
        if counts is None or before is None or before[2] != started or overview.at <= before[0]:
            return Rates()
        seconds, old = overview.at - before[0], before[1]
        put = growth(counts.put, old.put, seconds)
        put_size = growth(counts.put_size, old.put_size, seconds)
        got = growth(counts.got, old.got, seconds)
        return Rates(sum(put.values()), sum(put_size.values()), sum(got.values()), put, put_size, got)


def growth(now: Mapping[Name, int], before: Mapping[Name, int], seconds: float) -> dict[Name, float]:
    """Return what each count grew by, a second; a topic that was created again begins at 0."""
    return {name: max(count - before.get(name, 0), 0) / seconds for name, count in now.items()}


def broker_rate(runtime: Mapping[str, str] | None, *names: str) -> float | None:
    """Return the first of RocketMQ's numbers for ten seconds, a minute and ten minutes."""
    for name in names:
        words = (runtime or {}).get(name, "").split()
        if words:
            try:
                return round(float(words[0]), 2)
            except ValueError:
                return None
    return None


def total(rates: list[float | None]) -> float | None:
    """Return the sum of the known *rates*; None: none is known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
