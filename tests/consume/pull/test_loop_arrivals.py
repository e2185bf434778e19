"""LoopArrivals: an event loop detects grown queues itself, or the thread of the hold service does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from reput.consume.pull.loop_arrivals import LoopArrivals
from reput.errors import DispatcherError

WAIT_S = 60.0


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class GrowingQueue:
    """A consume queue, represented by its progress. *error*: no dispatcher builds it."""

    def __init__(self) -> None:
        self.progress = 0
        self.grown = asyncio.Event()
        self.error: Exception | None = None

    def readable_up_to(self, view: str) -> int:
        return self.progress

    def has_begun(self, view: str) -> bool:
        return True

    async def await_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        while self.progress < commit_log_offset:
            if self.error is not None:
                raise self.error
            self.grown.clear()
            await self.grown.wait()

    def grow(self, progress: int) -> None:
        self.progress = progress
        self.grown.set()


class Heard:
    """The notifications, and their recipients."""

    def __init__(self) -> None:
        self.queue = GrowingQueue()
        self.arrivals = LoopArrivals(asyncio.get_running_loop(), self.queue, self.take, self.take_over)
        self.grown: list[tuple[str, int]] = []
        self.handed_over: list[tuple[int, tuple[str, int]]] = []
        self.threads: set[int] = set()
        self.changed = asyncio.Event()

    def take(self, queues: set[tuple[str, int]]) -> None:
        self.grown += sorted(queues)
        self.threads.add(threading.get_ident())
        self.changed.set()

    def take_over(self, arrival: tuple[int, tuple[str, int]]) -> None:
        self.handed_over.append(arrival)
        self.changed.set()

    async def come(self) -> None:
        """Wait for a notification, and forget it."""
        await asyncio.wait_for(self.changed.wait(), WAIT_S)
        self.changed.clear()


@in_loop
async def test_what_was_told_is_said_once_it_can_be_read():
    """In the loop's thread, whichever thread reports it, and not before the queue is readable."""
    heard = Heard()
    heard.arrivals.tell((10, ("orders", 0)))
    await asyncio.to_thread(heard.arrivals.tell, (20, ("orders", 1)))
    assert heard.grown == []
    heard.queue.grow(10)
    await heard.come()
    assert heard.grown == [("orders", 0)]
    heard.queue.grow(20)
    await heard.come()
    assert heard.grown == [("orders", 0), ("orders", 1)]
    assert heard.threads == {threading.get_ident()}
    assert heard.handed_over == []


@in_loop
async def test_what_the_loop_cannot_wait_for_is_handed_over():
    """No dispatcher builds the queue now; later arrivals are tried again."""
    heard = Heard()
    heard.queue.error = DispatcherError("dispatcher does not run: dispatcher=consume_queue")
    heard.arrivals.tell((10, ("orders", 0)))
    await heard.come()
    assert heard.handed_over == [(10, ("orders", 0))]
    heard.queue.error = None
    heard.queue.grow(20)
    heard.arrivals.tell((20, ("orders", 1)))
    await heard.come()
    assert heard.grown == [("orders", 1)]


@in_loop
async def test_others_are_told_of_what_the_loop_waits_for():
    """They do not depend on a loop that may be busy; the loop continues to wait."""
    heard = Heard()
    heard.arrivals.tell((10, ("orders", 0)))
    heard.arrivals.share_all()
    assert heard.handed_over == [(10, ("orders", 0))]
    heard.queue.grow(10)
    heard.changed.clear()
    await heard.come()
    assert heard.grown == [("orders", 0)]


@pytest.mark.parametrize("begins", [True, False], ids=["waiting", "told"])
def test_a_loop_that_ends_hands_over_what_it_waited_for(begins):
    """Also if the loop was notified without getting a turn, or is closed when it is notified."""

    async def tell() -> Heard:
        heard = Heard()
        heard.arrivals.tell((10, ("orders", 0)))
        if begins:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return heard

    heard = asyncio.run(tell())
    heard.arrivals.tell((20, ("orders", 1)))
    assert heard.handed_over == [(10, ("orders", 0)), (20, ("orders", 1))]
    assert heard.grown == []


@in_loop
async def test_what_can_be_read_already_is_said_without_a_task():
    """The loop runs after the view, as is usual if both share one processor."""
    heard = Heard()
    heard.queue.progress = 10
    heard.arrivals.tell((10, ("orders", 0)))
    await asyncio.sleep(0)
    assert heard.grown == [("orders", 0)]
    assert heard.arrivals.task is None
