"""StoreCollector: the metrics of one store, for a registry of prometheus_client.

Every scrape reads the store; between scrapes nothing is done. The number of series is bounded: of topics, and of groups
in topics, the busiest `SERIES_MAX` are shown when the bound is met first, and the same ones stay shown from then on. A
counter that came and went would look like a restart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeAlias, TypeVar

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from reput.consume.registry.statistics import GroupRow, StoreStatistics, TopicRow
from reput.consume.registry.subscription_groups import is_system_group
from reput.consume.registry.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from reput.embedded.reading_engine import ReadingEngine
from reput.errors import StoreClosed
from reput.metrics.metric_list import FORMER_NAMES, METRICS
from reput.metrics.store_figures import ConnectionCount, GroupLag, StoreFigures, read_figures
from reput.process.control.dispatcher_row import UNKNOWN, DispatcherRow
from reput.process.dispatcher.states import State
from reput.store.log.force_times import FORCE_BOUNDS_MS
from reput.store.writer.put_statistics import BUCKET_BEGINS_MS, PutTotals

__all__ = ["SERIES_MAX", "StoreCollector"]

Name = TypeVar("Name")
Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

SERIES_MAX = 1000
WRITER_STATES = ("RUNNING", "READ_ONLY", "STOPPED", UNKNOWN)
DISPATCHER_STATES = (*(state.name for state in State), UNKNOWN)
STORAGE = {"storage_type": "local", "storage_medium": "disk"}
CONSUME_QUEUE = "consume_queue"


class Families:
    """Samples, each in the family of its metric."""

    def __init__(self, everywhere: Mapping[str, str]) -> None:
        """*everywhere*: the labels of all metrics of RocketMQ."""
        self.everywhere = everywhere
        self.found: dict[str, Family] = {}

    def family(self, name: str) -> Family:
        """Return the family of a metric."""
        family = self.found.get(name)
        if family is None:
            metric = METRICS[name]
            labels = [*self.labels_of_all(name), *metric.labels]
            if metric.kind == "counter":
                family = CounterMetricFamily(name, metric.meaning, labels=labels)
            elif metric.kind == "gauge":
                family = GaugeMetricFamily(name, metric.meaning, labels=labels)
            else:
                family = HistogramMetricFamily(name, metric.meaning, labels=labels)
            self.found[name] = family
        return family

    def labels_of_all(self, name: str) -> Mapping[str, str]:
        """Return the labels that a metric has besides its own."""
        return self.everywhere if name.startswith("rocketmq_") else {}

    def add(self, name: str, value: float | None, **labels: str) -> None:
        """Add a sample, unless its value is unknown."""
        family = self.family(name)
        assert not isinstance(family, HistogramMetricFamily)
        assert labels.keys() == {*METRICS[name].labels}
        if value is not None:
            family.add_metric(
                [*self.labels_of_all(name).values(), *(labels[key] for key in METRICS[name].labels)], value
            )
        if name in FORMER_NAMES:
            self.add(FORMER_NAMES[name], value, **labels)

    def add_states(self, name: str, states: Iterable[str], current: str, **labels: str) -> None:
        """Add a sample for each of *states*: 1 for the current one, 0 for the others."""
        for state in states:
            self.add(name, float(state == current), state=state, **labels)

    def add_histogram(
        self, name: str, bounds_ms: Sequence[float], counts: Sequence[int], total_ms: float | None
    ) -> None:
        """Add the buckets of a histogram; *counts* has one more, of what is longer than the last bound."""
        family = self.family(name)
        assert isinstance(family, HistogramMetricFamily)
        bounds = [*(str(bound / 1000) for bound in bounds_ms), "+Inf"]
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric([], buckets, None if total_ms is None else total_ms / 1000)


class ShownNames(Generic[Name]):
    """Names that have series: what was shown once is shown at each scrape, while it exists. Any thread may call."""

    def __init__(self) -> None:
        # Two scrapes may come at the same time.
        self.lock = threading.Lock()
        self.names: dict[Name, None] = {}

    def kept(self, weights: Mapping[Name, int]) -> set[Name]:
        """Return which of the keys of *weights* are shown: those that were, and the heaviest while there is room."""
        with self.lock:
            for gone in [name for name in self.names if name not in weights]:
                del self.names[gone]
            new = [name for name in weights if name not in self.names]
            for name in sorted(new, key=lambda name: -weights[name])[: max(SERIES_MAX - len(self.names), 0)]:
                self.names[name] = None
            return set(self.names)


class ShownSeries:
    """The topics and groups that have series."""

    def __init__(self) -> None:
        self.topics = ShownNames[str]()
        self.groups = ShownNames[tuple[str, str]]()


class StoreCollector(Collector):
    """Any thread may scrape; a registry does so in the thread that asks it."""

    def __init__(
        self,
        engine: ReadingEngine,
        connections: Callable[[], Iterable[ConnectionCount]] = lambda: (),
        *,
        quota_refusals: Callable[[], Mapping[str, int]] = dict,
        shown: ShownSeries | None = None,
    ) -> None:
        """Show *engine*, and the connections that its broker has.

        Args:
            quota_refusals: returns what the broker's quotas have refused, by the kind of their rules.
            shown: which topics and groups have series; collectors that follow one another share it. None: a new one.
        """
        self.engine = engine
        self.connections = connections
        self.quota_refusals = quota_refusals
        settings = engine.settings
        self.everywhere = {
            "cluster": settings.broker_cluster_name,
            "node_type": "broker",
            "node_id": settings.broker_name,
        }
        self.shown = shown or ShownSeries()

    def describe(self) -> Iterator[Family]:
        """Yield every family without a sample: registering must not read the store."""
        families = Families(self.everywhere)
        yield from map(families.family, METRICS)

    def collect(self) -> Iterator[Family]:
        """Read the store, and yield the families that have samples.

        Raises:
            StoreError: a file of the store cannot be read.
        """
        begun = time.perf_counter()
        families = Families(self.everywhere)
        try:
            self.engine.require_open()
            figures = read_figures(self.engine)
        except StoreClosed:
            families.add("reput_store_open", 0)
        else:
            families.add("reput_store_open", 1)
            self.add_store(families, figures)
            for row in figures.status.dispatchers:
                add_dispatcher(families, row)
            self.add_traffic(families, figures)
            self.add_connections(families)
        families.add("reput_scrape_seconds", time.perf_counter() - begun)
        yield from (family for family in families.found.values() if family.samples)

    def add_store(self, families: Families, figures: StoreFigures) -> None:
        """Add the writer, its log, its disk and its ring."""
        add, status, now = families.add, figures.status, time.time()
        writer = status.writer
        add(
            "reput_info",
            1,
            version=status.version,
            kernel=status.kernel or "none",
            store_id=status.store_id or "none",
        )
        families.add_states("reput_writer_state", WRITER_STATES, writer.state)
        add("reput_store_started_timestamp_seconds", None if status.started is None else status.started / 1000)
        add("reput_log_begin_offset_bytes", writer.commit_log_offset_min)
        add("reput_log_appended_offset_bytes", writer.appended)
        add("reput_log_durable_offset_bytes", writer.durable)
        add("reput_log_epoch", writer.epoch)
        add("reput_log_segments", figures.segment_nums)
        for accepted in (True, False):
            count = sum(part.accepted is accepted for part in status.damage)
            add("reput_log_damaged_ranges", count, accepted=truth(accepted))
        if (lease := status.lease) is not None:
            add("reput_lease_is_master", float(lease.member == lease.holder), lease=lease.name)
            add("reput_lease_epoch", lease.epoch, lease=lease.name)
            add("reput_lease_in_sync_members", len(lease.in_sync), lease=lease.name)
            add("reput_lease_seconds_left", lease.seconds_left, lease=lease.name)
        add("reput_disk_free_bytes", figures.disk_free)
        add("reput_ring_size_bytes", figures.ring_size)
        add("reput_ring_published_bytes_total", figures.ring_published)
        for level, count in (status.waiting_delays or {}).items():
            add("reput_delayed_messages", count, level=str(level))
        add("rocketmq_half_messages", status.half_messages)
        add("rocketmq_broker_permission", self.engine.settings.broker_permission)
        add("rocketmq_topic_number", figures.topic_nums)
        add("rocketmq_consumer_group_number", figures.group_nums)
        add("rocketmq_storage_size_bytes", figures.disk_used, **STORAGE)
        behind = None if None in (writer.appended, writer.durable) else (writer.appended or 0) - (writer.durable or 0)
        add("rocketmq_storage_flush_behind_bytes", None if behind is None else max(behind, 0), **STORAGE)
        lags = {row.name: row.lag_bytes for row in status.dispatchers}
        add("rocketmq_storage_dispatch_behind_bytes", lags.get(CONSUME_QUEUE), **STORAGE)
        first = figures.first_timestamp
        age = None if first is None else max(now * 1000 - first, 0)
        add("rocketmq_storage_message_reserve_time_milliseconds", age, **STORAGE)

    def add_traffic(self, families: Families, figures: StoreFigures) -> None:
        """Add what was put and delivered, by topic and group, and the lags of groups."""
        row = figures.status.statistics
        topics: Sequence[TopicRow] = ()
        groups: Sequence[GroupRow] = ()
        left_out = {"topics": 0, "groups": 0}
        if row is not None:
            counted = {"waiting_delays": None, "half_messages": None}
            statistics = msgspec.convert(row | counted, StoreStatistics)
            topics, groups = statistics.topics, statistics.groups
            left_out = {"topics": statistics.topics_left_out, "groups": statistics.groups_left_out}
            add_times(families, statistics)
        kept_topics = self.shown.topics.kept({row.topic: row.put_nums for row in topics})
        for topic in topics:
            if topic.topic in kept_topics:
                labels = {"topic": topic.topic, "is_system": truth(is_system_topic(topic.topic))}
                families.add("rocketmq_messages_in_total", topic.put_nums, **labels)
                families.add("rocketmq_throughput_in_total", topic.put_size, **labels)
        weights = {(lag.group, lag.topic): lag.lag for lag in figures.lags}
        for group in groups:
            weights[group.group, group.topic] = weights.get((group.group, group.topic), 0) + group.get_nums
        kept_groups = self.shown.groups.kept(weights)
        for group in groups:
            if (group.group, group.topic) in kept_groups:
                labels = group_labels(group.group, group.topic)
                families.add("rocketmq_messages_out_total", group.get_nums, **labels)
                families.add("rocketmq_throughput_out_total", group.get_size, **labels)
                families.add("rocketmq_send_to_dlq_messages_total", group.dead_letter_nums, **labels)
        for lag in figures.lags:
            if (lag.group, lag.topic) in kept_groups:
                add_lag(families, lag)
        left_out["topics"] += len(topics) - len(kept_topics)
        left_out["groups"] += len(weights) - len(kept_groups)
        for kind, count in left_out.items():
            families.add("reput_metrics_left_out", count, kind=kind)

    def add_connections(self, families: Families) -> None:
        """Add the connections of clients to the broker, and what its quotas refused to them."""
        for kind, count in self.quota_refusals().items():
            families.add("reput_quota_refused_total", count, kind=kind)
        for row in self.connections():
            labels = {"language": row.language, "version": row.version, "protocol_type": "remoting"}
            if row.consumer_group is None:
                families.add("rocketmq_producer_connections", row.count, **labels)
            else:
                families.add(
                    "rocketmq_consumer_connections",
                    row.count,
                    consumer_group=row.consumer_group,
                    consume_mode=row.consume_mode,
                    is_system=truth(is_system_group(row.consumer_group)),
                    **labels,
                )


def add_times(families: Families, statistics: StoreStatistics) -> None:
    """Add how long puts and forces took."""
    put: PutTotals = statistics.put
    families.add_histogram("reput_put_seconds", BUCKET_BEGINS_MS, list(put.put_distribute_time.values()), None)
    longest = put.put_entire_time_max_ms
    families.add("reput_put_longest_seconds", None if longest is None else longest / 1000)
    forces = statistics.forces
    if forces is not None:
        families.add_histogram(
            "reput_force_seconds", FORCE_BOUNDS_MS, forces.force_distribute, forces.force_time_total_ms
        )


def add_lag(families: Families, lag: GroupLag) -> None:
    """Add how far a group is behind in a topic."""
    labels = group_labels(lag.group, lag.topic)
    age = None if lag.waiting_since is None else max(time.time() * 1000 - lag.waiting_since, 0.0)
    # Of a damaged message that waits, nobody knows the age.
    age = age if lag.lag else 0.0
    families.add("rocketmq_consumer_lag_messages", lag.lag, **labels)
    families.add("rocketmq_consumer_lag_latency_milliseconds", age, **labels)


def add_dispatcher(families: Families, row: DispatcherRow) -> None:
    """Add one dispatcher."""
    families.add_states("reput_dispatcher_state", DISPATCHER_STATES, row.state, dispatcher=row.name)
    beat = row.heartbeat_age_ms
    for name, value in (
        ("progress_offset_bytes", row.progress),
        ("durable_offset_bytes", row.durable_cursor),
        ("lag_bytes", row.lag_bytes),
        ("lag_messages", row.lag_messages),
        ("lag_seconds", row.lag_seconds),
        ("restarts_total", row.restart_count),
        ("lapped_total", row.lapped_count),
        ("gap_bytes", row.gap_bytes),
        ("dead_letters", row.rejected_count),
        ("backstops_total", row.backstop_count),
        ("heartbeat_age_seconds", None if beat is None else beat / 1000),
        ("memory_bytes", row.rss_bytes),
        ("rebuild_offset_bytes", row.rebuild_progress),
    ):
        families.add(f"reput_dispatcher_{name}", value, dispatcher=row.name)
    # A cell has room for 32.
    for counter, count in row.counters.items():
        families.add("reput_dispatcher_plugin_value", count, dispatcher=row.name, counter=counter)


def group_labels(group: str, topic: str) -> dict[str, str]:
    """Return the labels of a group in a topic."""
    return {
        "consumer_group": group,
        "topic": topic,
        "is_retry": truth(topic.startswith((RETRY_PREFIX, DLQ_PREFIX))),
        "is_system": truth(is_system_topic(topic) or is_system_group(group)),
    }


def truth(value: bool) -> str:
    """Return a label as RocketMQ writes it."""
    return "true" if value else "false"
