"""LiveFeed: one reading a second for all open pages, while there is one.

    target ── a thread, once a second ──▶ LiveFeed ──▶ a queue of one message per page ──▶ server-sent events

A page that does not take its message gets the next one instead: nothing piles up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from reput.console.console_target import ConsoleTarget
from reput.console.jobs import Jobs
from reput.errors import ReputError
from reput.in_thread import in_thread
from reput.watched.overview import Overview
from reput.watched.rates import GOT_NAMES, PUT_NAMES, RateMeter, Rates, broker_rate
from reput.watched.short_text import short_count, short_rate, short_seconds, short_size

__all__ = ["LiveFeed", "live_cells"]

INTERVAL_S = 1.0
# Five minutes for the charts.
POINTS_MAX = 300
CHARTED_MS = 300_000
# Rates of an older reading say nothing about now.
RATES_AGE_MAX_S = 10.0
PAGES_MAX = 50
# Of groups and topics the first ones move; the others are as old as the page.
ROWS_MAX = 200

logger = logging.getLogger("reput.console")


class LiveFeed:
    """Used in the console's event loop.

    Attributes:
        latest: the last reading, with its rates; None: there was none yet.
        points: ms since 1970, messages put and delivered a second, lag of all groups, and the largest lag of a view.
    """

    def __init__(self, target: ConsoleTarget, jobs: Jobs, interval: float = INTERVAL_S) -> None:
        self.target = target
        self.jobs = jobs
        self.interval = interval
        self.meter = RateMeter()
        self.latest: tuple[Overview, Rates] | None = None
        self.points: deque[tuple[int, float, float, int, int]] = deque(maxlen=POINTS_MAX)
        self.pages: set[asyncio.Queue[bytes]] = set()
        self.task: asyncio.Task[None] | None = None

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events, until the page is closed."""
        if len(self.pages) >= PAGES_MAX:
            # The browser asks again by itself.
            yield b"retry: 30000\n\n"
            return
        page: asyncio.Queue[bytes] = asyncio.Queue(1)
        self.pages.add(page)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self.run())
        try:
            yield event("points", list(self.points))
            while True:
                yield await page.get()
        finally:
            self.pages.discard(page)

    async def run(self) -> None:
        """Read, and tell all pages, until none is open."""
        while self.pages:
            begun = time.monotonic()
            message = await self.read()
            for page in list(self.pages):
                if page.full():
                    page.get_nowait()
                page.put_nowait(message)
            await asyncio.sleep(max(self.interval - (time.monotonic() - begun), 0))

    async def read(self) -> bytes:
        """Return the event of one reading."""
        try:
            overview = await in_thread(self.target.read)
        except ReputError as error:
            return event("failed", {"error": str(error), "advice": error.advice})
        except Exception as error:
            logger.exception("a reading failed: target=%s", self.target.title)
            return event("failed", {"error": f"{type(error).__name__}: {error}", "advice": ""})
        rates = self.meter.rates(overview)
        self.latest = overview, rates
        point = point_of(overview, rates)
        self.points.append(point)
        # Nobody may have looked for hours.
        while self.points[0][0] < point[0] - CHARTED_MS:
            self.points.popleft()
        cells = live_cells(overview, rates)
        for job in self.jobs.newest():
            cells[f"job.{job.number}.state"] = job.state
            cells[f"job.{job.number}.outcome"] = job.outcome
            cells[f"job.{job.number}.progress"] = job.progress
            cells[f"job.{job.number}.percent"] = "" if job.percent is None else str(job.percent)
        return event("reading", {"cells": cells, "point": point})

    def rates_at(self, at: float) -> Rates:
        """Return the rates of the last reading before *at*, monotonic seconds; none if that is long ago."""
        if self.latest is None or at - self.latest[0].at > RATES_AGE_MAX_S:
            return Rates()
        return self.latest[1]

    async def close(self) -> None:
        """Stop reading."""
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task


def event(name: str, data: object) -> bytes:
    """Return one server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def point_of(overview: Overview, rates: Rates) -> tuple[int, float, float, int, int]:
    """Return the values of a reading that charts show."""
    rows = [] if overview.figures is None else overview.figures.status.dispatchers
    view_lag = max((row.lag_bytes or 0 for row in rows), default=0)
    return overview.timestamp, rates.put or 0.0, rates.got or 0.0, sum(row.lag for row in overview.lags), view_lag


def live_cells(overview: Overview, rates: Rates) -> dict[str, str]:
    """Return the texts that move on a page, by the names that its elements carry."""
    cells = {
        "put": short_rate(rates.put),
        "put_size": "-" if rates.put_size is None else f"{short_size(rates.put_size)}/s",
        "got": short_rate(rates.got),
        "lag": short_count(sum(row.lag for row in overview.lags)),
    }
    figures = overview.figures
    if figures is not None:
        writer = figures.status.writer
        unforced = None
        if writer.appended is not None and writer.durable is not None:
            unforced = max(writer.appended - writer.durable, 0)
        cells |= {
            "writer.state": writer.state,
            "appended": str(writer.appended),
            "unforced": short_size(unforced),
            "disk_free": short_size(figures.disk_free),
        }
        for row in figures.status.dispatchers:
            name = f"d.{row.name}"
            cells |= {
                f"{name}.state": row.state,
                f"{name}.pid": "-" if row.pid is None else str(row.pid),
                f"{name}.progress": "-" if row.progress is None else str(row.progress),
                f"{name}.lag": short_size(row.lag_bytes),
                f"{name}.behind": short_seconds(row.lag_seconds),
                f"{name}.restarts": short_count(row.restart_count),
                f"{name}.dead": short_count(row.rejected_count),
                f"{name}.memory": short_size(row.rss_bytes),
                f"{name}.rebuild": "-" if row.rebuild_progress is None else str(row.rebuild_progress),
            }
    for broker in overview.brokers:
        cells[f"b.{broker.address}.put"] = short_rate(broker_rate(broker.runtime, *PUT_NAMES))
        cells[f"b.{broker.address}.got"] = short_rate(broker_rate(broker.runtime, *GOT_NAMES))
        cells[f"b.{broker.address}.state"] = broker.error or "answers"
    for lag in overview.lags[:ROWS_MAX]:
        cells[f"g.{lag.group}.{lag.topic}.lag"] = short_count(lag.lag)
        since = lag.waiting_since
        age = None if since is None else max(overview.timestamp - since, 0) / 1000
        cells[f"g.{lag.group}.{lag.topic}.oldest"] = short_seconds(age)
        cells[f"g.{lag.group}.{lag.topic}.got"] = short_rate(rates.got_by_group.get((lag.group, lag.topic)))
    if overview.counts is not None:
        for topic, count in list(overview.counts.put.items())[:ROWS_MAX]:
            cells[f"t.{topic}.count"] = short_count(count)
            cells[f"t.{topic}.put"] = short_rate(rates.put_by_topic.get(topic))
    return cells
