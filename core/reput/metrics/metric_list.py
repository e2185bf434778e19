"""The metrics: their names, kinds, labels and meaning. `docs/metrics.md` is compared with this list.

Names that begin with ``rocketmq_`` are those of RocketMQ 5.3 and 5.5, with its labels and units. Three of them had no
unit in 5.1, as RocketMQ's documentation has them to this day: these are shown under both names.

Source: RocketMQ broker, BrokerMetricsConstant and BrokerMetricsManager; store, DefaultStoreMetricsConstant.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

__all__ = ["BACKUP_METRICS", "FORMER_NAMES", "METRICS", "Kind", "Metric"]

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: as Prometheus shows it; the name of a counter ends with ``_total``.
        labels: besides those that RocketMQ gives to all of its metrics: cluster, node_type and node_id.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


STORAGE = ("storage_type", "storage_medium")
OF_TOPIC = ("topic", "is_system")
OF_GROUP = ("consumer_group", "topic", "is_retry", "is_system")
OF_CLIENT = ("language", "version", "protocol_type")
OF_VIEW = ("dispatcher",)

LISTED = (
    # RocketMQ's.
    Metric("rocketmq_messages_in_total", "counter", OF_TOPIC, "Messages put"),
    Metric("rocketmq_throughput_in_total", "counter", OF_TOPIC, "Bytes of the records put"),
    Metric("rocketmq_messages_out_total", "counter", OF_GROUP, "Messages delivered to a group"),
    Metric("rocketmq_throughput_out_total", "counter", OF_GROUP, "Bytes of the records delivered to a group"),
    Metric("rocketmq_send_to_dlq_messages_total", "counter", OF_GROUP, "Messages of a group that became dead letters"),
    Metric("rocketmq_consumer_lag_messages", "gauge", OF_GROUP, "Messages that a group has not acknowledged"),
    Metric(
        "rocketmq_consumer_lag_latency_milliseconds",
        "gauge",
        OF_GROUP,
        "Age in ms of the oldest of these messages; 0: none",
    ),
    Metric("rocketmq_consumer_lag_latency", "gauge", OF_GROUP, "The same, by its name in RocketMQ 5.1"),
    Metric("rocketmq_half_messages", "gauge", (), "Half messages of open transactions"),
    Metric("rocketmq_producer_connections", "gauge", OF_CLIENT, "Connections of producers to the broker"),
    Metric(
        "rocketmq_consumer_connections",
        "gauge",
        ("consumer_group", *OF_CLIENT, "consume_mode", "is_system"),
        "Connections of a group's consumers to the broker",
    ),
    Metric("rocketmq_broker_permission", "gauge", (), "What the broker permits: 2 write, 4 read, 6 both"),
    Metric("rocketmq_topic_number", "gauge", (), "Topics that are described or have messages"),
    Metric("rocketmq_consumer_group_number", "gauge", (), "Groups that are described or have offsets"),
    Metric("rocketmq_storage_size_bytes", "gauge", STORAGE, "Used bytes of the file system that holds the store"),
    Metric("rocketmq_storage_size", "gauge", STORAGE, "The same, by its name in RocketMQ 5.1"),
    Metric("rocketmq_storage_flush_behind_bytes", "gauge", STORAGE, "Bytes of the log not forced to disk yet"),
    Metric("rocketmq_storage_dispatch_behind_bytes", "gauge", STORAGE, "Bytes of the log not in the consume queues"),
    Metric("rocketmq_storage_message_reserve_time_milliseconds", "gauge", STORAGE, "Age in ms of the oldest message"),
    Metric("rocketmq_storage_message_reserve_time", "gauge", STORAGE, "The same, by its name in RocketMQ 5.1"),
    # The writer and its log.
    Metric("reput_store_open", "gauge", (), "1: the store can be read; 0: it was closed, and nothing else is shown"),
    Metric("reput_info", "gauge", ("version", "kernel", "store_id"), "Always 1"),
    Metric("reput_writer_state", "gauge", ("state",), "1 for the state of the writer, 0 for the others"),
    Metric("reput_store_started_timestamp_seconds", "gauge", (), "When the store was opened, seconds since 1970"),
    Metric("reput_log_begin_offset_bytes", "gauge", (), "Commit-log offset of the first byte that retention has left"),
    Metric("reput_log_appended_offset_bytes", "gauge", (), "Commit-log offset up to which records are readable"),
    Metric("reput_log_durable_offset_bytes", "gauge", (), "Commit-log offset up to which the log is on disk"),
    Metric("reput_log_epoch", "gauge", (), "Number of the log's history; it rises when the log is cut"),
    Metric("reput_log_segments", "gauge", (), "Files of the log"),
    Metric("reput_log_damaged_ranges", "gauge", ("accepted",), "Ranges of the log that are known to be damaged"),
    Metric(
        "reput_lease_is_master", "gauge", ("lease",), "1: this node holds the lease and is the master; 0: it is not"
    ),
    Metric("reput_lease_epoch", "gauge", ("lease",), "Epoch of the agreed master"),
    Metric("reput_lease_in_sync_members", "gauge", ("lease",), "Nodes that have every acknowledged message"),
    Metric("reput_lease_seconds_left", "gauge", ("lease",), "Until this master's lease ends unless it is renewed"),
    Metric("reput_disk_free_bytes", "gauge", (), "Free bytes of the file system that holds the store"),
    Metric("reput_put_seconds", "histogram", (), "Messages by the duration of their put call; it has no sum"),
    Metric("reput_put_longest_seconds", "gauge", (), "The longest put call since the store was opened"),
    Metric("reput_force_seconds", "histogram", (), "Forces of the log to disk, by duration"),
    Metric("reput_delayed_messages", "gauge", ("level",), "Delayed messages that are not delivered yet"),
    Metric(
        "reput_quota_refused_total",
        "counter",
        ("kind",),
        "What quotas of topics, groups and clients refused, or answered later",
    ),
    # The ring and the views.
    Metric("reput_ring_size_bytes", "gauge", (), "Size of the ring: a dispatcher further behind reads the log"),
    Metric("reput_ring_published_bytes_total", "counter", (), "Bytes published through the ring"),
    Metric("reput_dispatcher_state", "gauge", (*OF_VIEW, "state"), "1 for the state of a dispatcher, 0 for the others"),
    Metric("reput_dispatcher_progress_offset_bytes", "gauge", OF_VIEW, "Commit-log offset up to which the view reads"),
    Metric("reput_dispatcher_durable_offset_bytes", "gauge", OF_VIEW, "The same, for what survives a power cut"),
    Metric("reput_dispatcher_lag_bytes", "gauge", OF_VIEW, "Bytes of the log that the view does not have"),
    Metric("reput_dispatcher_lag_messages", "gauge", OF_VIEW, "Messages that the view does not have"),
    Metric("reput_dispatcher_lag_seconds", "gauge", OF_VIEW, "Age of the oldest message that the view does not have"),
    Metric("reput_dispatcher_restarts_total", "counter", OF_VIEW, "Starts of the dispatcher after a failure"),
    Metric("reput_dispatcher_lapped_total", "counter", OF_VIEW, "How often the ring overtook it, so it read the log"),
    Metric("reput_dispatcher_gap_bytes", "gauge", OF_VIEW, "Bytes that retention removed before the view had them"),
    Metric("reput_dispatcher_dead_letters", "gauge", OF_VIEW, "Records that the dispatcher rejected"),
    Metric("reput_dispatcher_backstops_total", "counter", OF_VIEW, "Lost wake-ups; each is a bug in reput"),
    Metric("reput_dispatcher_heartbeat_age_seconds", "gauge", OF_VIEW, "Time since its loop last went round"),
    Metric("reput_dispatcher_memory_bytes", "gauge", OF_VIEW, "Anonymous resident memory of its process"),
    Metric("reput_dispatcher_rebuild_offset_bytes", "gauge", OF_VIEW, "Progress of the view that is being rebuilt"),
    Metric("reput_dispatcher_plugin_value", "gauge", (*OF_VIEW, "counter"), "A counter of the plugin, by its name"),
    # The scrape itself.
    Metric("reput_metrics_left_out", "gauge", ("kind",), "Topics, or groups in topics, that are not shown: too many"),
    Metric("reput_scrape_seconds", "gauge", (), "How long it took to read these values"),
)
METRICS = {metric.name: metric for metric in LISTED}
FORMER_NAMES = {
    f"{name}_{unit}": name
    for name, unit in (
        ("rocketmq_consumer_lag_latency", "milliseconds"),
        ("rocketmq_storage_size", "bytes"),
        ("rocketmq_storage_message_reserve_time", "milliseconds"),
    )
}
# Of `reput backup --follow --metrics`, a process of its own.
BACKUP_METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "reput_backup_timestamp_seconds",
            "gauge",
            (),
            "When the target last had all that was in the store, seconds since 1970",
        ),
        Metric("reput_backup_number", "gauge", (), "Number of the newest backup"),
        Metric("reput_backup_log_end_offset_bytes", "gauge", (), "Commit-log offset where the newest backup ends"),
        Metric("reput_backup_copied_bytes_total", "counter", (), "Bytes that the target got since the start"),
        Metric("reput_backup_damaged_ranges", "gauge", (), "Damaged ranges of the log that the newest backup has"),
    )
}

assert len(METRICS) == len(LISTED)
assert {*FORMER_NAMES, *FORMER_NAMES.values()} <= METRICS.keys()
