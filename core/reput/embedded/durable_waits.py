"""DurableWaits: who waits for the disk in one event loop, let go in batches.

Waking an event loop from another thread costs a system call, so the flusher wakes it once for all whom one force has
made happy: it is asked for the first of them only, and the loop finds the others by itself.

    call(offset, done) ──────────▶ pending ── first one ──▶ flusher
                                    ▲                         │ forced
                                    └──── settle ◀── loop ◀───┘ call_soon_threadsafe, once
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

__all__ = ["DurableLog", "DurableWaits"]


class DurableLog(Protocol):
    """What is asked of the writer."""

    @property
    def durable(self) -> int:
        """Commit-log offset up to which the log is forced to disk."""

    def call_when_durable(self, offset: int, done: Callable[[], None]) -> None:
        """Have *done* called, by another thread, once the log is durable up to *offset* or never will be."""


class DurableWaits:
    """Made and used in the thread of *loop*; only the flusher's call comes from elsewhere."""

    def __init__(self, log: DurableLog, loop: asyncio.AbstractEventLoop) -> None:
        self.log = log
        self.loop = loop
        # By offset; the number tells two of the same offset apart.
        self.pending: list[tuple[int, int, Callable[[], None]]] = []
        self.numbers = count()
        # Offsets for which the flusher will call.
        self.asked: set[int] = set()
        self.is_to_ask = False

    async def wait(self, offset: int) -> None:
        """Return once the log is durable up to *offset*, or never will be."""
        future: asyncio.Future[None] = self.loop.create_future()

        def settle() -> None:
            # The coroutine may have been cancelled.
            if not future.done():
                future.set_result(None)

        self.call(offset, settle)
        await future

    def call(self, offset: int, done: Callable[[], None]) -> None:
        """Have *done* called in the loop once the log is durable up to *offset*, or never will be."""
        self.add(offset, done)
        self.ask_soon()

    def add(self, offset: int, done: Callable[[], None]) -> None:
        """As `call`, for who sees to it that the flusher is asked."""
        heapq.heappush(self.pending, (offset, next(self.numbers), done))

    def ask_soon(self) -> None:
        """Have the flusher asked once whatever is ready in the loop has put, too: one force is then for all of it."""
        if not self.is_to_ask and self.is_unasked():
            self.is_to_ask = True
            self.loop.call_soon(self.ask)

    def is_unasked(self) -> bool:
        """Whether somebody waits who may go before the flusher calls."""
        return bool(self.pending) and (not self.asked or self.pending[0][0] < min(self.asked))

    def ask(self) -> None:
        """Have the flusher call when the first of those who wait can go."""
        self.is_to_ask = False
        if self.is_unasked():
            self.ask_for(self.pending[0][0])

    def ask_for(self, offset: int) -> None:
        """Have the flusher call once the log is durable up to *offset*, or never will be."""
        if offset not in self.asked:
            self.asked.add(offset)
            self.log.call_when_durable(offset, lambda: self.wake(offset))

    def wake(self, offset: int) -> None:
        """Called by the flusher's thread."""
        # A loop that was closed meanwhile has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.settle, offset)

    def settle(self, offset: int) -> None:
        """Call whoever waited for what is durable now; all, if *offset* was to be and never will."""
        durable = self.log.durable
        pending = self.pending
        while pending and (pending[0][0] <= durable or durable < offset):
            heapq.heappop(pending)[2]()
        self.asked.discard(offset)
        self.ask_soon()
