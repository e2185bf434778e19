"""BackupCollector: the metrics of `reput backup --follow`, for a registry of prometheus_client.

An alert asks for the age of what the target has. A store that does not change is backed up although no backup is made
of it, so the time is that of the last look at the store that succeeded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from reput.metrics.metric_list import BACKUP_METRICS

__all__ = ["BackupCollector"]


class BackupCollector(Collector):
    """One thread follows the store and tells; any thread may scrape."""

    def __init__(self, before_ms: int | None = None) -> None:
        """*before_ms*: when an earlier program made the target's newest backup, ms; None: there is none.

        A backup that fails and is started again and again would otherwise never have an age to alert on.
        """
        # Replaced as a whole: a scrape sees the values of one moment.
        self.values: dict[str, float] = {"reput_backup_copied_bytes_total": 0}
        if before_ms is not None:
            self.values["reput_backup_timestamp_seconds"] = before_ms / 1000
        self.look_began = time.time()

    def made(self, number: int, log_end: int, copied: int, damaged_ranges: int) -> None:
        """Note a backup, which added *copied* bytes to the target."""
        self.values = {
            **self.values,
            "reput_backup_number": number,
            "reput_backup_log_end_offset_bytes": log_end,
            "reput_backup_copied_bytes_total": self.values["reput_backup_copied_bytes_total"] + copied,
            "reput_backup_damaged_ranges": damaged_ranges,
        }

    def begin_look(self) -> None:
        """Note that the store is looked at: what is put from now on, the target may not get yet."""
        self.look_began = time.time()

    def end_look(self) -> None:
        """Note that the target has what was in the store when the look began."""
        self.values = {**self.values, "reput_backup_timestamp_seconds": self.look_began}

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield what is known."""
        values = self.values
        for name, metric in BACKUP_METRICS.items():
            if name in values:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                yield family(name, metric.meaning, value=values[name])
