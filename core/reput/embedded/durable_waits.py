"""DurableWaits: the tasks of one event loop that wait for the disk, resumed in batches.

Waking an event loop from another thread costs a system call. So the flusher wakes it once for all tasks that one force
covers: the loop asks it for the first of them only, and finds the others itself.

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
    """The writer's interface for these waits."""

    @property
    def durable(self) -> int:
        """Commit-log offset up to which the log is forced to disk."""

    def call_when_durable(self, offset: int, done: Callable[[], None]) -> None:
        """Call *done* from another thread once the log is durable up to *offset*, or never will be."""


class DurableWaits:
    """Used in the thread of *loop* only; the flusher's call comes from its own thread."""

    def __init__(self, log: DurableLog, loop: asyncio.AbstractEventLoop) -> None:
        self.log = log
        self.loop = loop
        # Ordered by offset; the number makes entries with equal offsets comparable.
        self.pending: list[tuple[int, int, Callable[[], None]]] = []
        self.numbers = count()
        # Offsets requested from the flusher.
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
        """Call *done* in the loop once the log is durable up to *offset*, or never will be."""
        self.add(offset, done)
        self.ask_soon()

    def add(self, offset: int, done: Callable[[], None]) -> None:
        """Like `call`, but the caller asks the flusher."""
        heapq.heappush(self.pending, (offset, next(self.numbers), done))

    def ask_soon(self) -> None:
        """Ask the flusher after all ready tasks of the loop have put, so that one force covers them all."""
        if not self.is_to_ask and self.is_unasked():
            self.is_to_ask = True
            self.loop.call_soon(self.ask)

    def is_unasked(self) -> bool:
        """Whether a task waits for an offset below all requested ones."""
        return bool(self.pending) and (not self.asked or self.pending[0][0] < min(self.asked))

    def ask(self) -> None:
        """Ask the flusher for the first of the waits."""
        self.is_to_ask = False
        if self.is_unasked():
            self.ask_for(self.pending[0][0])

    def ask_for(self, offset: int) -> None:
        """Ask the flusher to call once the log is durable up to *offset*, or never will be."""
        if offset not in self.asked:
            self.asked.add(offset)
            self.log.call_when_durable(offset, lambda: self.wake(offset))

    def wake(self, offset: int) -> None:
        """Called by the flusher's thread."""
        # A loop that was closed meanwhile has no task that waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.settle, offset)

    def settle(self, offset: int) -> None:
        """End the waits for what is durable now; all waits, if *offset* never will be."""
        durable = self.log.durable
        pending = self.pending
        while pending and (pending[0][0] <= durable or durable < offset):
            heapq.heappop(pending)[2]()
        self.asked.discard(offset)
        self.ask_soon()
