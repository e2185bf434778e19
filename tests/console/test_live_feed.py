"""The readings that open pages share, after a time in which no page was open."""

from __future__ import annotations

import asyncio
import json

from reput.client.administration import BrokerRow
from reput.console.audit_log import AuditLog
from reput.console.jobs import Jobs
from reput.console.live_feed import LiveFeed
from reput.watched.overview import Overview
from reput.watched.rates import Rates


class Target:
    """A broker with a rate, at a time."""

    title = "a broker"

    def __init__(self) -> None:
        self.seconds = 0.0

    def read(self) -> Overview:
        broker = BrokerRow("c", "b", 0, "10.0.0.7:10911", {"putTps": "7.0"}, None)
        return Overview("b", self.seconds, int(self.seconds * 1000), None, [broker], [], None)


def test_charts_and_rates_are_of_the_last_minutes_although_no_page_was_open_for_hours():
    """An old rate is none, and a chart does not put points of this morning beside those of now."""
    target = Target()
    feed = LiveFeed(target, Jobs(AuditLog(None)))
    for target.seconds in (0.0, 1.0):
        asyncio.run(feed.read())
    assert feed.rates_at(2.0).put == 7.0
    assert feed.rates_at(3600.0) == Rates()
    assert len(feed.points) == 2
    target.seconds = 3600.0
    reading = json.loads(asyncio.run(feed.read()).partition(b"data: ")[2])
    assert [point[0] for point in feed.points] == [3_600_000] == [reading["point"][0]]
