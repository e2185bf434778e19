"""observe_store: the metrics of an open store, by the names of docs/metrics.md, as OpenTelemetry's instruments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from reput.embedded.opened_store import OpenedStore
from reput.errors import ConfigError
from reput.metrics.prometheus import prometheus
from reput.telemetry.opentelemetry_api import require_opentelemetry

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client.metrics_core import Metric as Family

    from reput.metrics.store_collector import StoreCollector

__all__ = ["observe_store"]

# A reader asks for each instrument in turn: all of them come from one reading.
READING_S = 0.5


class Readings:
    """The last reading of a collector. Any thread may ask."""

    def __init__(self, collector: StoreCollector, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.collector = collector
        self.monotonic = monotonic
        self.lock = threading.Lock()
        self.read_at: float | None = None
        self.families: dict[str, Family] = {}

    def family(self, name: str) -> Family | None:
        """Return a family with its samples; None: it has none."""
        with self.lock:
            if self.read_at is None or self.monotonic() - self.read_at > READING_S:
                self.families = {family.name: family for family in self.collector.collect()}
                self.read_at = self.monotonic()
            return self.families.get(name)


def observe_store(store: OpenedStore[Any], meter_provider: MeterProvider | None = None) -> None:
    """Give a store's metrics to OpenTelemetry: gauges and counters, with the labels as attributes; no histogram.

    A reading of the SDK reads the store once, as a scrape does; puts do nothing for it.

    Args:
        meter_provider: None: the program's own.

    Raises:
        ConfigError: *store* is not an open store, or the extra ``otel`` is not installed.
    """
    require_opentelemetry()
    from opentelemetry import metrics

    import reput

    if not isinstance(store, OpenedStore):
        raise ConfigError(f"store is no open store: store={store!r:.100}", "Give what reput.open returns.")
    from reput.metrics.metric_list import METRICS

    readings = Readings(prometheus(store))
    meter = metrics.get_meter("reput", reput.__version__, meter_provider)
    for metric in METRICS.values():
        # OpenTelemetry's histograms are made of single measurements, which are not kept.
        if metric.kind == "histogram":
            continue
        create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(
            metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name,
            [observer(readings, metric.name)],
            description=metric.meaning,
        )


def observer(readings: Readings, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Return what OpenTelemetry calls for an instrument."""
    from opentelemetry.metrics import Observation

    def observe(options: CallbackOptions) -> Iterable[Observation]:
        del options
        family = readings.family(name.removesuffix("_total"))
        return [Observation(sample.value, dict(sample.labels)) for sample in (family.samples if family else ())]

    return observe
