"""OpenTelemetry: spans of put, dispatch and receive, and the metrics of a store, in the SDK's memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import reput
from delivering import LIMIT_S, wait_until
from reput.errors import ConfigError, MessageIllegal
from reput.telemetry import Traces, observe_store
from reput.telemetry.opentelemetry_api import require_opentelemetry
from serving import served

SMALL_LOG = {"mapped_file_size_commit_log": 1 << 16, "max_hash_slot_num": 100, "max_index_num": 400}


@pytest.fixture
def exporter():
    """Spans in memory."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    """A provider that samples everything."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def store(tmp_path):
    """An open store whose dispatchers run in this process."""
    with reput.open(tmp_path / "store", mode="inline", **SMALL_LOG) as store:
        yield store


def test_a_message_is_followed_from_put_to_view_to_consumer(store, provider, exporter):
    """The dispatch is a child of the put; what handles the message is linked to it."""
    with Traces(store, provider) as traces:
        traces.put(reput.Message("orders", b"x", keys=["k"]))
        wait_until(lambda: len(exporter.get_finished_spans()) == 2)
        with store.consumer("billing", "orders") as consumer:
            record = consumer.receive(LIMIT_S)
            assert record.properties["KEYS"] == "k"
            with pytest.raises(ZeroDivisionError), traces.receive(record, "billing"):
                raise ZeroDivisionError
    spans = {span.name: span for span in exporter.get_finished_spans()}
    send, dispatch, process = spans["send orders"], spans["dispatch consume_queue"], spans["process orders"]
    assert send.kind is SpanKind.PRODUCER
    assert dispatch.parent.span_id == send.context.span_id
    assert dispatch.status.status_code is not StatusCode.ERROR
    assert process.kind is SpanKind.CONSUMER
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    assert [link.context.trace_id for link in process.links] == [send.context.trace_id]
    assert process.attributes["messaging.consumer.group.name"] == "billing"
    assert process.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]
    assert process.status.status_code is StatusCode.ERROR


def test_a_put_that_fails_says_so_in_its_span(store, provider, exporter):
    """And a coroutine's put and a batch have one span each."""
    with Traces(store, provider) as traces:
        with pytest.raises(MessageIllegal):
            traces.put(reput.Message("", b"x"))
        asyncio.run(traces.aput(reput.Message("orders", b"x")))
        traces.put_batch([reput.Message("orders", b"y"), reput.Message("orders", b"z")])
    sends = [span for span in exporter.get_finished_spans() if span.name.startswith("send")]
    assert [span.status.status_code for span in sends] == [StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET]
    assert sends[2].attributes["messaging.batch.message_count"] == 2


def test_what_is_not_sampled_waits_for_nothing(store, exporter):
    """No thread is started; the message still says that it is not sampled."""
    provider = TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Traces(store, provider) as traces:
        traces.put(reput.Message("orders", b"x"))
        assert traces.thread is None
    with store.consumer("billing", "orders") as consumer:
        flags = int(consumer.receive(LIMIT_S).properties["traceparent"].rpartition("-")[2], 16)
        assert not flags & 1
    assert exporter.get_finished_spans() == ()


def test_a_message_without_a_trace_has_a_span_without_a_link(store, provider, exporter):
    """Also within another span."""
    store.put(reput.Message("orders", b"x"))
    with Traces(store, provider) as traces, store.consumer("billing", "orders") as consumer:
        record = consumer.receive(LIMIT_S)
        with traces.tracer.start_as_current_span("around"), traces.receive(record, "billing"):
            pass
    assert [len(span.links) for span in exporter.get_finished_spans()] == [0, 0]


def test_a_trace_goes_through_a_broker(tmp_path, provider, exporter):
    """From one client to another."""
    with (
        served(tmp_path / "store") as broker,
        reput.connect("{}:{}".format(*broker.address)) as client,
        Traces(client, provider) as traces,
    ):
        traces.put(reput.Message("orders", b"x"))
        with client.consumer("billing", "orders") as consumer, traces.receive(consumer.receive(LIMIT_S), "billing"):
            pass
    send, process = exporter.get_finished_spans()
    assert process.links[0].context.span_id == send.context.span_id


def test_metrics_are_those_that_prometheus_sees(store):
    """With the same labels; one reading of the SDK reads the store once."""
    reader = InMemoryMetricReader()
    observe_store(store, MeterProvider([reader]))
    end = store.put(reput.Message("orders", b"x")).next_commit_log_offset
    store.wait_for("consume_queue", end, LIMIT_S)
    found = {
        metric.name: metric
        for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    (appended,) = found["reput_log_appended_offset_bytes"].data.data_points
    assert appended.value == end
    (put,) = [
        point for point in found["rocketmq_messages_in"].data.data_points if point.attributes["topic"] == "orders"
    ]
    assert put.value == 1
    assert found["rocketmq_messages_in"].data.is_monotonic
    assert "reput_put_seconds" not in found


@pytest.mark.slow
def test_nothing_of_it_is_loaded_unless_it_is_used():
    """Neither by `import reput` nor by a put."""
    code = (
        "import sys, tempfile, reput\n"
        "with tempfile.TemporaryDirectory() as folder, reput.open(folder + '/s', mode='inline') as store:\n"
        "    store.put(reput.Message('t', b'x'))\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    """`pip install "reput[otel]"`."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError) as raised:
        require_opentelemetry()
    assert 'pip install "reput[otel]"' in raised.value.advice
