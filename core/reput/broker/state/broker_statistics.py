"""BrokerStatistics: how much was put and pulled in the last minute, hour and day, by topic and group.

    counters of the store and of the pulls ── every 10 s what they grew by ──▶ spans of the last minute
                                                                          └──▶ spans of the last hour and day

A span holds only the counters that grew.

Source: RocketMQ common, StatsItem; store, BrokerStats and StoreStatsService.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from reput.consume.registry.statistics import GroupRow
from reput.embedded.store_engine import StoreEngine
from reput.store.reader.results import Records

__all__ = ["BrokerStatistics", "Growth", "GrowthWindows", "Key"]

# Name of the statistics in RocketMQ's terms, and its key: a topic, or topic@group.
Key: TypeAlias = tuple[str, str]

SPANS_OF_MINUTE, SPANS_OF_HOUR, SPANS_OF_DAY = 6, 6, 24
SAMPLES_OF_TEN_MINUTES, SAMPLES_OF_HOUR = 60, 360
PERIODS_S = (10, 60, 600)
DAY_S = 86_400


class Growth(NamedTuple):
    """The growth of a counter, and the seconds in which it grew."""

    sum: int
    seconds: float

    @property
    def per_second(self) -> float:
        """The rate."""
        return self.sum / self.seconds if self.seconds > 0 else 0.0


class Span:
    """The growth of all counters in one interval."""

    __slots__ = ("grown", "samples", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples = 0
        self.grown: Counter[Key] = Counter()

    def add(self, seconds: float, grown: Mapping[Key, int]) -> None:
        """Add an interval."""
        self.seconds += seconds
        self.samples += 1
        self.grown.update(grown)


class GrowthWindows:
    """The growth of *counts* in the last minute, hour and day. Any thread may call."""

    def __init__(self, monotonic: Callable[[], float], counts: Callable[[], Mapping[Key, int]]) -> None:
        self.monotonic = monotonic
        self.counts = counts
        self.lock = threading.Lock()
        self.last = counts()
        self.last_at = monotonic()
        self.minute: deque[Span] = deque(maxlen=SPANS_OF_MINUTE)
        # The last span of each of these is not full yet.
        self.hour: deque[Span] = deque([Span()], maxlen=SPANS_OF_HOUR)
        self.day: deque[Span] = deque([Span()], maxlen=SPANS_OF_DAY)

    def sample(self) -> None:
        """Record the growth of the counters since the last sample."""
        counts = self.counts()
        with self.lock:
            now = self.monotonic()
            grown = {key: count - before for key, count in counts.items() if count > (before := self.last.get(key, 0))}
            seconds = now - self.last_at
            self.last, self.last_at = counts, now
            self.minute.append(Span())
            self.minute[-1].add(seconds, grown)
            for spans, samples_max in ((self.hour, SAMPLES_OF_TEN_MINUTES), (self.day, SAMPLES_OF_HOUR)):
                if spans[-1].samples >= samples_max:
                    spans.append(Span())
                spans[-1].add(seconds, grown)

    def growths(self, key: Key, count: int) -> tuple[Growth, Growth, Growth]:
        """Return a counter's growth in the last minute, hour and day; *count* is its present value."""
        with self.lock:
            since = max(count - self.last.get(key, 0), 0)
            seconds = self.monotonic() - self.last_at
            minute, hour, day = (
                Growth(
                    sum(span.grown.get(key, 0) for span in spans) + since,
                    sum(span.seconds for span in spans) + seconds,
                )
                for spans in (self.minute, self.hour, self.day)
            )
        return minute, hour, day


class BrokerStatistics:
    """Counts pulls, and computes the rate of every counter. Only the loop's thread counts; any thread may ask."""

    def __init__(self, engine: StoreEngine, monotonic: Callable[[], float]) -> None:
        self.engine = engine
        self.monotonic = monotonic
        self.groups = engine.services.statistics
        self.pulls_found = self.pulls_missed = 0
        self.windows = GrowthWindows(monotonic, self.counts)
        # (seconds, pulls found, pulls missed, messages pulled), one every 10 s.
        self.totals: deque[tuple[float, int, int, int]] = deque(maxlen=PERIODS_S[-1] // 10 + 2)
        self.totals.append(self.total())
        self.day = today()
        self.put_yesterday = self.got_yesterday = self.put_before_today = self.got_before_today = 0

    def sample(self) -> None:
        """Sample all counters; called every 10 s."""
        self.windows.sample()
        self.totals.append(self.total())
        if today() != self.day:
            self.day = today()
            self.put_yesterday, self.put_before_today = self.put_before_today, self.put_count()
            self.got_yesterday, self.got_before_today = self.got_before_today, self.got_count()

    def pulled(self, group: str, topic: str, records: Records) -> None:
        """Count a pull that was answered with *records*. Costs a few dictionary look-ups, whatever the records hold."""
        data = records.data
        if not data:
            self.pulls_missed += 1
            return
        self.pulls_found += 1
        counts = self.groups.of_group(group, topic)
        counts.get_nums += len(data)
        counts.get_size += sum(map(len, data))
        counts.look(records.first_stored()[1])

    # What is counted.

    def put_count(self) -> int:
        """Return how many messages were put since the store was opened."""
        return self.engine.writer.put_totals().put_nums

    def got_count(self) -> int:
        """Return how many messages were delivered since the store was opened."""
        return sum(row.get_nums for row in self.groups.group_rows())

    def total(self) -> tuple[float, int, int, int]:
        """Return the present values for `totals`."""
        return self.monotonic(), self.pulls_found, self.pulls_missed, self.got_count()

    def counts(self) -> dict[Key, int]:
        """Return every counter."""
        topics = self.engine.writer.topic_table.topics
        found: dict[Key, int] = {}
        put_total = get_total = 0
        for topic, nums in self.engine.writer.topic_table.put_nums().items():
            found["TOPIC_PUT_NUMS", topic] = nums
            put_total += nums
            if topic in topics:
                found["TOPIC_PUT_SIZE", topic] = topics[topic].put_size
        for row in self.groups.group_rows():
            get_total += row.get_nums
            for (name, key), count in counts_of_row(row):
                found[name, key] = count
        cluster = self.engine.settings.broker_cluster_name
        found["BROKER_PUT_NUMS", cluster] = put_total
        found["BROKER_GET_NUMS", cluster] = get_total
        return found

    # Rates.

    def growths(self, name: str, key: str) -> tuple[Growth, Growth, Growth] | None:
        """Return the growth of a counter in the last minute, hour and day; None: there is no such counter yet."""
        count = self.counts().get((name, key))
        return None if count is None else self.windows.growths((name, key), count)

    def put_tps(self, topic: str) -> float:
        """Return the messages a second that were put to a topic in the last minute."""
        nums = self.engine.writer.topic_table.put_nums_of(topic)
        return self.windows.growths(("TOPIC_PUT_NUMS", topic), nums)[0].per_second

    def get_tps(self, group: str, topic: str) -> float:
        """Return the messages a second that a group received from a topic in the last minute."""
        counts = self.groups.groups.get((group, topic))
        if counts is None:
            return 0.0
        return self.windows.growths(("GROUP_GET_NUMS", f"{topic}@{group}"), counts.get_nums)[0].per_second

    def total_tps(self, index: int) -> list[float]:
        """Return the growth per second of one of the `totals` in the last 10, 60 and 600 s, or since the start."""
        now = self.total()
        samples = list(self.totals)
        rates = []
        for period in PERIODS_S:
            begin = next((sample for sample in reversed(samples) if sample[0] <= now[0] - period), samples[0])
            seconds = now[0] - begin[0]
            rates.append((now[index] - begin[index]) / seconds if seconds > 0 else 0.0)
        return rates


def counts_of_row(row: GroupRow) -> list[tuple[Key, int]]:
    """Return the counters of a group on a topic."""
    key = f"{row.topic}@{row.group}"
    return [
        (("GROUP_GET_NUMS", key), row.get_nums),
        (("GROUP_GET_SIZE", key), row.get_size),
        (("SNDBCK_PUT_NUMS", key), row.send_back_nums),
    ]


def today() -> int:
    """Return the number of the day, in local time."""
    now = time.localtime()
    return now.tm_year * 1000 + now.tm_yday
