"""`reput.prometheus` and `reput serve --metrics`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import reput
from command_line import REPUT
from delivering import LIMIT_S
from reput.broker.state.connected_clients import connection_counts
from reput.errors import ConfigError, RequestRefused
from reput.metrics import store_collector
from reput.metrics.metric_list import BACKUP_METRICS, FORMER_NAMES, METRICS
from reput.metrics.store_collector import ShownNames, StoreCollector
from reput.store.state.lease_row import LeaseRow
from serving import SMALL, served
from small_store import overwrite
from source_tree import ROOT

PAGE = ROOT / "docs" / "metrics.md"
SMALL_LOG = {"mapped_file_size_commit_log": 1 << 16}
# Of every metric of RocketMQ.
EVERYWHERE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "reput"}


def scraped(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples of a scrape by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def text_of(store: reput.Store | reput.ReadOnlyStore) -> str:
    """Return what a scrape of a program's store shows."""
    registry = CollectorRegistry()
    registry.register(reput.prometheus(store))
    return generate_latest(registry).decode()


def value(text: str, name: str, **labels: str) -> float:
    """Return one sample of a scrape; *labels* beside those that each metric of RocketMQ has."""
    everywhere = EVERYWHERE if name.startswith("rocketmq_") else {}
    return scraped(text)[name, frozenset({**everywhere, **labels}.items())]


@pytest.fixture
def store(tmp_path) -> Iterator[reput.Store]:
    """A store whose dispatchers run on a thread."""
    with reput.open(tmp_path / "store", mode="inline", **SMALL_LOG) as store:
        yield store


def test_a_program_shows_what_was_put_delivered_and_is_left(store):
    """By RocketMQ's names and labels: its boards and alerts work."""
    results = store.put_batch([reput.Message("orders", b"x")] * 5)
    store.wait_for("consume_queue", results[-1].next_commit_log_offset, 30)
    with store.consumer("billing", "orders") as consumer:
        consumer.ack(consumer.receive())
        consumer.commit()
        text = text_of(store)
    topic = {"topic": "orders", "is_system": "false"}
    group = {"consumer_group": "billing", "topic": "orders", "is_retry": "false", "is_system": "false"}
    assert value(text, "rocketmq_messages_in_total", **topic) == 5
    assert value(text, "rocketmq_throughput_in_total", **topic) == store.appended
    assert value(text, "rocketmq_messages_out_total", **group) == 1
    assert value(text, "rocketmq_consumer_lag_messages", **group) == 4
    assert value(text, "rocketmq_consumer_lag_latency_milliseconds", **group) > 0
    shown = scraped(text)
    for name, former in FORMER_NAMES.items():
        assert [value for (found, _), value in shown.items() if found == former] == [
            value for (found, _), value in shown.items() if found == name
        ]
    assert value(text, "reput_put_seconds_bucket", le="+Inf") == 5
    assert value(text, "reput_dispatcher_state", dispatcher="index", state="RUNNING") == 1
    assert value(text, "reput_dispatcher_lag_bytes", dispatcher="consume_queue") == 0


def test_a_node_of_a_lease_shows_whether_it_is_the_master(store):
    """With the epoch, the in-sync members, and how long the lease lasts: of a follower there is no such time."""
    assert "reput_lease" not in text_of(store)
    master = LeaseRow("orders", "m1", "master", 7, "m1", "h:1", ("m1", "m2"), 8.5)
    store._engine.writer.lease_row = lambda: master
    text = text_of(store)
    assert value(text, "reput_lease_is_master", lease="orders") == 1
    assert value(text, "reput_lease_epoch", lease="orders") == 7
    assert value(text, "reput_lease_in_sync_members", lease="orders") == 2
    assert value(text, "reput_lease_seconds_left", lease="orders") == 8.5
    for holder in ("m1", None):
        follower = LeaseRow("orders", "m2", "follower", 8, holder, "h:1", ("m1",), None)
        store._engine.writer.lease_row = lambda follower=follower: follower
        text = text_of(store)
        assert value(text, "reput_lease_is_master", lease="orders") == 0
        assert value(text, "reput_lease_epoch", lease="orders") == 8
        assert "reput_lease_seconds_left" not in text


def test_a_force_of_the_log_is_counted_by_its_duration(store):
    """A histogram with a sum: p99 and mean can be computed."""
    store.put(reput.Message("orders", b"x"))
    store.flush()
    store.flush()
    text = text_of(store)
    assert value(text, "reput_force_seconds_count") >= 1
    assert value(text, "reput_force_seconds_bucket", le="+Inf") == value(text, "reput_force_seconds_count")
    assert value(text, "reput_force_seconds_sum") > 0


def test_a_scrape_does_not_make_the_services_of_a_store_that_only_puts(store):
    """Each put would tell them of its message from then on."""
    store.put(reput.Message("orders", b"x"))
    text_of(store)
    assert store._engine.consuming is None


def test_the_metrics_of_a_closed_store_say_so(tmp_path):
    """The program's other metrics are still shown: a scrape does not fail."""
    with reput.open(tmp_path / "store", mode="inline", **SMALL_LOG) as store:
        collector = reput.prometheus(store)
    registry = CollectorRegistry()
    registry.register(collector)
    found = scraped(generate_latest(registry).decode())
    assert found["reput_store_open", frozenset()] == 0
    assert {name for name, _ in found} == {"reput_store_open", "reput_scrape_seconds"}


def test_a_store_that_nobody_has_open_has_metrics_as_well(golden_read_only):
    """Those of its log and its groups, without a byte changed."""
    with reput.open(golden_read_only("basic-4.9") / "store", read_only=True) as store:
        text = text_of(store)
    assert value(text, "reput_writer_state", state="STOPPED") == 1
    assert value(text, "reput_log_appended_offset_bytes") > 0
    assert "reput_put_seconds" not in text


def test_topics_beyond_the_bound_are_left_out_and_counted(store, monkeypatch):
    """The number of series is bounded. A topic that was shown stays: its counter would look like a restart."""
    monkeypatch.setattr(store_collector, "SERIES_MAX", 2)
    registry = CollectorRegistry()
    registry.register(reput.prometheus(store))

    def shown() -> set[str]:
        text = generate_latest(registry).decode()
        assert value(text, "reput_metrics_left_out", kind="topics") == 1
        return {dict(labels)["topic"] for name, labels in scraped(text) if name == "rocketmq_messages_in_total"}

    for topic, count in (("a", 3), ("b", 1), ("c", 2)):
        store.put_batch([reput.Message(topic, b"x")] * count)
    assert shown() == {"a", "c"}
    store.put_batch([reput.Message("b", b"x")] * 9)
    assert shown() == {"a", "c"}


def test_prometheus_takes_an_open_store_only():
    """Not a path: who would close it?"""
    with pytest.raises(ConfigError, match="store is no open store: store='store'"):
        reput.prometheus("store")


def test_without_the_library_the_error_names_the_extra(store, monkeypatch):
    """`pip install "reput[metrics]"`."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError) as raised:
        reput.prometheus(store)
    assert 'pip install "reput[metrics]"' in raised.value.advice


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_prometheus_finds_nothing_wrong_with_a_scrape(store):
    """Its own tool reads it; names of RocketMQ that it would spell otherwise are RocketMQ's."""
    store.put(reput.Message("orders", b"x"))
    checked = subprocess.run(["promtool", "check", "metrics"], input=text_of(store), capture_output=True, text=True)
    wrong = [line for line in (checked.stdout + checked.stderr).splitlines() if not line.startswith("rocketmq_")]
    assert not wrong


def test_connections_of_a_broker_are_counted_by_group_language_and_version(tmp_path):
    """As RocketMQ counts them."""
    with served(tmp_path / "store") as broker, broker.client() as client, broker.client() as other:
        client.heartbeat("c1", producers=("pg",), billing={"orders": "*"})
        other.heartbeat("c2", billing={"orders": "*"})
        registry = CollectorRegistry()
        registry.register(StoreCollector(broker.engine, lambda: connection_counts(broker.broker.clients)))
        found = scraped(generate_latest(registry).decode())
    counts = {
        (name, dict(labels).get("consumer_group"), dict(labels).get("consume_mode")): count
        for (name, labels), count in found.items()
        if "_connections" in name
    }
    assert counts == {
        ("rocketmq_producer_connections", None, None): 1,
        ("rocketmq_consumer_connections", "billing", "push"): 2,
    }
    assert SMALL["broker_name"] in {dict(labels).get("node_id") for _, labels in found}


@pytest.mark.slow
def test_what_quotas_refuse_is_counted_by_the_kind_of_their_rules(tmp_path):
    """A kind without a rule has no series; one that refused nothing has a zero, so that a rate can begin."""
    quotas = "topic=small messages=1; client=* connections=50"
    with served(tmp_path / "store", broker_quotas=quotas) as broker:
        registry = CollectorRegistry()
        registry.register(StoreCollector(broker.engine, quota_refusals=broker.broker.quotas.refused_by_kind))

        def counts() -> dict[str, float]:
            found = scraped(generate_latest(registry).decode())
            return {dict(labels)["kind"]: count for (name, labels), count in found.items() if "quota" in name}

        with reput.connect("{}:{}".format(*broker.address)) as client:
            assert counts() == {"topic": 0, "client": 0}
            client.put_batch([reput.Message("small", b"x")] * 60)
            with pytest.raises(RequestRefused):
                client.put(reput.Message("small", b"x"))
        # A client asks more than once.
        assert counts()["topic"] >= 1
        assert counts()["client"] == 0


@pytest.mark.processes
def test_a_served_store_answers_scrapes_on_its_own_address(tmp_path):
    """`reput serve --metrics`: the address stands on the line that says when clients can connect."""
    command = [REPUT, "serve", tmp_path / "store", "--listen", "127.0.0.1:0"]
    command += ["--name-server", "none", "--metrics", "127.0.0.1:0", "--set", "mappedFileSizeCommitLog=65536"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        address = re.search(r" metrics=(\S+)", serving.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[1], timeout=30) as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain")
        serving.terminate()
        assert serving.wait(60) == 0
    assert value(text, "reput_writer_state", state="RUNNING") == 1


def test_every_metric_is_documented_with_its_kind_and_labels():
    """The page has a row for each, and none besides."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("| `")
    ]
    documented = {row[0].strip("`"): tuple(row[1:]) for row in rows}
    assert documented == {
        name: (metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for name, metric in {**METRICS, **BACKUP_METRICS}.items()
    }


def test_two_scrapes_at_the_same_time_agree_on_what_is_shown():
    """A second Prometheus may ask while the first one's topics are compared with those that were shown."""
    shown = ShownNames[str]()
    shown.kept({"a": 1, "b": 1, "c": 1})
    other = threading.Thread(target=shown.kept, args=({"d": 1, "e": 1},))

    class Meanwhile(dict[str, int]):
        """Lets the other scrape go as far as it can while this one looks."""

        def __contains__(self, name: object) -> bool:
            if other.ident is None:
                other.start()
                other.join(0.2)
            return super().__contains__(name)

    assert shown.kept(Meanwhile(a=1, d=1)) == {"a", "d"}
    other.join()
    assert set(shown.names) == {"d", "e"}


@pytest.mark.parametrize("view", ["log", "queue"])
def test_a_damaged_message_does_not_hide_the_metrics_of_all_others(store, view):
    """Its group waits at it: the lag is known, its age is not. The alert for damage needs a scrape that works."""
    results = store.put_batch([reput.Message("orders", b"x"), reput.Message("orders", b"y")])
    store.wait_for("consume_queue", results[-1].next_commit_log_offset, LIMIT_S)
    with store.consumer("billing", "orders") as consumer:
        consumer.receive(LIMIT_S)
        consumer.commit()
    store.flush()
    if view == "log":
        overwrite(store.directory, results[0].commit_log_offset, b"\xff" * 60)
    else:
        with (store.directory / "consumequeue" / "orders" / "0" / f"{0:020d}").open("r+b") as file:
            file.write(b"\xff" * 20)
    text = text_of(store)
    labels = {"consumer_group": "billing", "topic": "orders", "is_retry": "false", "is_system": "false"}
    assert value(text, "rocketmq_consumer_lag_messages", **labels) == 2
    assert "rocketmq_consumer_lag_latency_milliseconds{" not in text
    (progress,) = store.administration.group_progress("billing")
    assert (progress.lag, progress.last_timestamp) == (2, None)
    assert [row.max_offset for row in store.administration.topic_stats("orders")] == [2]
