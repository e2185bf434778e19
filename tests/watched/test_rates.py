"""Rates between two readings, and the short texts of numbers."""

from __future__ import annotations

import msgspec
import pytest

from reput.client.administration import BrokerRow
from reput.metrics.store_figures import StoreFigures
from reput.process.control.group_status import GroupStatus, WriterRow
from reput.watched.overview import Counts, Overview
from reput.watched.rates import RateMeter, Rates
from reput.watched.short_text import short_count, short_rate, short_seconds, short_size

WRITER = WriterRow(1, 0, 0, 0, 1, "RUNNING", None)
FIGURES = StoreFigures(GroupStatus("s", None, "1", 5, WRITER, []), [], 0, 0, 0, 0, 0, None, None, None)


def overview(at: float, put: dict[str, int] | None, started: int | None = 5) -> Overview:
    """Return a reading of a store."""
    status = msgspec.structs.replace(FIGURES.status, started=started)
    counts = (
        None if put is None else Counts(put, {name: nums * 100 for name, nums in put.items()}, {("g", "a"): put["a"]})
    )
    return Overview("s", at, 0, msgspec.structs.replace(FIGURES, status=status), [], [], counts)


def test_a_rate_needs_two_readings():
    """The first one says nothing of how fast it grows; a new topic began at 0."""
    meter = RateMeter()
    assert meter.rates(overview(10.0, {"a": 4})) == Rates()
    found = meter.rates(overview(12.0, {"a": 10, "b": 2}))
    assert (found.put, found.put_size, found.got) == (4.0, 400.0, 3.0)
    assert found.put_by_topic == {"a": 3.0, "b": 1.0}
    assert found.got_by_group == {("g", "a"): 3.0}


def test_another_opening_counts_from_zero():
    """No rate is negative, and none is shown for a store that nobody has open."""
    meter = RateMeter()
    meter.rates(overview(10.0, {"a": 400}))
    assert meter.rates(overview(11.0, {"a": 3}, started=9)) == Rates()
    assert meter.rates(overview(12.0, None, started=None)) == Rates()
    assert meter.rates(overview(13.0, {"a": 5}, started=9)) == Rates()


def test_brokers_tell_their_rates():
    """The sum of those that answer, and RocketMQ 4.9's spelling as well."""
    rows = [
        BrokerRow("c", "a", 0, "h:1", {"putTps": "2.0 1 1", "getTransferedTps": "3.5 1 1"}, None),
        BrokerRow("c", "b", 0, "h:2", {"putTps": "1.0 1 1", "getTransferredTps": "x"}, None),
        BrokerRow("c", "c", 0, "h:3", None, "gone"),
    ]
    found = RateMeter().rates(Overview("h:9", 0.0, 0, None, rows, [], None))
    assert (found.put, found.got) == (3.0, 3.5)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (short_count(None), "-"),
        (short_count(9_999), "9999"),
        (short_count(12_345), "12.3k"),
        (short_count(1_234_567), "1.2M"),
        (short_rate(0.25), "0.2/s"),
        (short_rate(0), "0/s"),
        (short_rate(45_000), "45.0k/s"),
        (short_size(512), "512 B"),
        (short_size(1536), "1.5 KiB"),
        (short_size(250 << 20), "250 MiB"),
        (short_seconds(0), "0 s"),
        (short_seconds(0.42), "0.4 s"),
        (short_seconds(200), "3 min"),
        (short_seconds(9_000), "2.5 h"),
        (short_seconds(345_600), "4.0 d"),
    ],
)
def test_numbers_are_short(text, wanted):
    """A unit, and two or three digits."""
    assert text == wanted
