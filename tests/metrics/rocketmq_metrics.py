"""What RocketMQ's broker gives to Prometheus, and what its published boards ask for.

`SERVED` was read from brokers 5.3.3 and 5.5.0 with ``metricsExporterType=PROM``; `tests/interop/clients` asks again.
`BOARDS` has, in short form, each query of the boards that come with RocketMQ's dashboard: the metric, and the labels
that it is filtered or summed by. Their queries of a JVM's own metrics are left out.

Source: apache/rocketmq-dashboard, server/src/main/resources/grafana.
"""

from __future__ import annotations

__all__ = ["BOARDS", "NOT_HERE", "SERVED"]

TOPIC = ("topic", "message_type", "is_system")
CONSUMED = ("consumer_group", "topic", "is_system")
LAG = ("consumer_group", "topic", "is_retry", "is_system")
STORAGE = ("storage_type", "storage_medium")

# By name, the labels besides cluster, node_type and node_id. Histograms by the name before _bucket.
SERVED: dict[str, tuple[str, ...]] = {
    "rocketmq_broker_permission": (),
    "rocketmq_topic_number": (),
    "rocketmq_consumer_group_number": (),
    "rocketmq_messages_in_total": TOPIC,
    "rocketmq_throughput_in_total": TOPIC,
    "rocketmq_message_size": TOPIC,
    "rocketmq_messages_out_total": CONSUMED,
    "rocketmq_throughput_out_total": CONSUMED,
    "rocketmq_consumer_connections": (
        *("consumer_group", "language", "version", "protocol_type"),
        *("consume_mode", "is_system"),
    ),
    "rocketmq_consumer_lag_messages": LAG,
    "rocketmq_consumer_lag_latency_milliseconds": LAG,
    "rocketmq_consumer_inflight_messages": LAG,
    "rocketmq_consumer_ready_messages": LAG,
    "rocketmq_consumer_queueing_latency_milliseconds": LAG,
    "rocketmq_storage_size_bytes": STORAGE,
    "rocketmq_storage_flush_behind_bytes": STORAGE,
    "rocketmq_storage_dispatch_behind_bytes": STORAGE,
    "rocketmq_storage_message_reserve_time_milliseconds": STORAGE,
    "rocketmq_processor_watermark": ("processor",),
    "rocketmq_rpc_latency_milliseconds": (
        *("protocol_type", "request_code", "response_code"),
        *("is_long_polling", "result"),
    ),
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": (),
    "rocketmq_pop_checkpoint_buffer_size": (),
    "rocketmq_pop_offset_buffer_size": (),
    "rocketmq_pop_revive_lag_milliseconds": ("queue_id",),
    "rocketmq_pop_revive_latency_milliseconds": ("queue_id",),
}

# Metrics and labels of RocketMQ's broker that reput does not have; docs/metrics.md says why.
NOT_HERE = frozenset(
    {
        "message_type",
        "rocketmq_message_size",
        "rocketmq_consumer_inflight_messages",
        "rocketmq_consumer_ready_messages",
        "rocketmq_consumer_queueing_latency_milliseconds",
        "rocketmq_processor_watermark",
        "rocketmq_rpc_latency_milliseconds",
        "rocketmq_pop_buffer_scan_time_consume_milliseconds",
        "rocketmq_pop_checkpoint_buffer_size",
        "rocketmq_pop_offset_buffer_size",
        "rocketmq_pop_revive_lag_milliseconds",
        "rocketmq_pop_revive_latency_milliseconds",
    }
)

IN, OUT = "rocketmq_messages_in_total", "rocketmq_messages_out_total"
BOARDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "variables": ((IN, "cluster"), (IN, "cluster", "broker"), (IN, "cluster", "topic")),
    "overview": (
        *((IN, "cluster"), (OUT, "cluster"), (IN, "cluster", "topic"), (OUT, "cluster", "group")),
        ("rocketmq_producer_count", "cluster"),
    ),
    "broker": (
        *((IN, "cluster", "broker"), (OUT, "cluster", "broker")),
        ("rocketmq_dispatch_behind_bytes", "cluster", "broker"),
        ("rocketmq_threadpool_queue_size", "cluster", "broker"),
    ),
    "producer": (
        *(("rocketmq_producer_count", "cluster"), ("rocketmq_producer_message_size", "cluster", "topic")),
        (IN, "cluster", "topic"),
    ),
    "consumer": (
        ("rocketmq_consumer_count", "cluster"),
        (OUT, "cluster", "group"),
        ("rocketmq_consumer_message_size", "cluster", "group"),
    ),
    "topic": (
        *((IN, "cluster", "topic"), (OUT, "cluster", "topic")),
        ("rocketmq_dispatch_behind_bytes", "cluster", "topic"),
    ),
    "tps": ((IN, "cluster"), (OUT, "cluster"), (IN, "cluster", "broker")),
    "storage": (
        ("rocketmq_disk_use_ratio", "cluster", "broker"),
        ("rocketmq_dispatch_behind_bytes", "cluster", "broker"),
    ),
    "thread pool": (
        ("rocketmq_threadpool_queue_size", "cluster", "broker"),
        ("rocketmq_threadpool_queue_capacity", "cluster", "broker"),
        ("rocketmq_threadpool_reject_count", "cluster", "broker"),
    ),
    "dead letters": (
        ("rocketmq_dlq_resend_count", "cluster", "topic"),
        ("rocketmq_dlq_resend_latency", "cluster", "topic"),
    ),
    "latency": (
        ("rocketmq_dispatch_latency", "cluster", "le"),
        ("rocketmq_send_to_client_latency", "cluster", "le"),
    ),
    "network": (
        ("rocketmq_producer_count", "cluster", "broker"),
        ("rocketmq_consumer_count", "cluster"),
        ("rocketmq_connection_count", "cluster", "broker"),
    ),
}
