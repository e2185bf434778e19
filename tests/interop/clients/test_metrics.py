"""The metrics of RocketMQ's broker beside those of reput's, after the same messages."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import reput
from delivering import LIMIT_S, wait_until
from interop.clients.brokers import free_port
from metrics.rocketmq_metrics import NOT_HERE, SERVED
from reput.broker.state.connected_clients import connection_counts
from reput.metrics.store_collector import StoreCollector
from serving import served

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

# Of every metric: where it comes from, and what the exporters add.
EVERYWHERE = {"cluster", "node_type", "node_id", "otel_scope_name", "otel_scope_version", "le"}
GROUP = {"consumer_group": "billing", "topic": "orders", "is_system": "false"}
COUNTED = {
    "rocketmq_messages_in_total": ({"topic": "orders", "is_system": "false"}, 3),
    "rocketmq_messages_out_total": (GROUP, 3),
    "rocketmq_consumer_lag_messages": ({**GROUP, "is_retry": "false"}, 1),
}


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples of a scrape of RocketMQ's metrics by the name of their metric."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name.startswith("rocketmq_") else ():
            # Version 5.3 declares the type of some histograms under another name.
            name = re.sub("_(bucket|sum|count)$", "", sample.name)
            labels = {label: value for label, value in sample.labels.items() if label not in EVERYWHERE}
            found.setdefault(name, []).append((labels, sample.value))
    return found


@contextmanager
def consuming(address: str) -> Iterator[None]:
    """Put three messages, and let a group acknowledge two. It stays: RocketMQ tells no lag of absent ones."""
    with reput.connect(address) as client:
        for _ in range(3):
            client.put(reput.Message("orders", b"a shirt", queue_id=0))
        with client.consumer("billing", "orders") as consumer:
            taken = [consumer.receive(LIMIT_S) for _ in range(3)]
            for record in taken[:2]:
                assert record is not None
                consumer.ack(record)
            consumer.commit()
            yield


def counts_are_there(found: dict[str, list[tuple[dict[str, str], float]]]) -> bool:
    """Tell whether a scrape has the messages that were put and consumed."""
    return all(
        any(expected.items() <= labels.items() and value == count for labels, value in found.get(name, ()))
        for name, (expected, count) in COUNTED.items()
    )


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_rocketmqs_broker_and_reput_serve_the_same_names_labels_and_counts(version, real_broker, tmp_path):
    """After the same messages, a board shows the same of both."""
    port = free_port()
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": port, "metricsPromExporterHost": "127.0.0.1"}
    real = real_broker(version, settings=settings)

    def real_samples() -> dict[str, list[tuple[dict[str, str], float]]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
            return samples(answer.read().decode())

    with consuming(real.name_server):
        wait_until(lambda: counts_are_there(real_samples()))
        wait_until(lambda: real_samples().keys() == SERVED.keys())
        theirs = {name: {*found[0][0]} for name, found in real_samples().items()}
    assert theirs == {name: {*labels} for name, labels in SERVED.items()}

    with served(tmp_path / "store") as broker, consuming("{}:{}".format(*broker.address)):
        registry = CollectorRegistry()
        registry.register(StoreCollector(broker.engine, lambda: connection_counts(broker.broker.clients)))
        wait_until(lambda: counts_are_there(samples(generate_latest(registry).decode())))
        ours = {name: {*found[0][0]} for name, found in samples(generate_latest(registry).decode()).items()}
    for name in theirs.keys() - NOT_HERE:
        assert theirs[name] - NOT_HERE <= ours[name], name
