"""HandlerThreads: the threads in which a worker runs a function as its handler."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from reput.errors import StoreError
from reput.store.service.threads import Threads
from reput.worker.handlers import end_forked_child

__all__ = ["HandlerThreads"]


class HandlerThreads:
    """Daemon threads that run functions for an event loop. A function that never returns does not keep a program.

    Args:
        on_death: called in the loop if an error ends a thread; before, every call that has not ended gets the error.
    """

    def __init__(self, count: int, on_death: Callable[[StoreError], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.calls: SimpleQueue[tuple[Callable[[], object], asyncio.Future[Any]] | None] = SimpleQueue()
        self.count = count
        self.on_death = on_death
        self.idle = 0
        self.started = 0
        self.threads = Threads()
        self.unsettled: set[asyncio.Future[Any]] = set()

    def start(self, call: Callable[[], object]) -> asyncio.Future[Any]:
        """Run *call* in a thread; the future gets its result."""
        future: asyncio.Future[Any] = self.loop.create_future()
        if self.idle:
            self.idle -= 1
        elif self.started < self.count:
            self.threads.start(f"reput-worker-{self.started}", self.work, self.tell_death)
            self.started += 1
        self.unsettled.add(future)
        self.calls.put((call, future))
        return future

    def work(self) -> None:
        """Run calls until there are no more; a thread."""
        while (item := self.calls.get()) is not None:
            call, future = item
            result: object = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                # Also SystemExit: it ends a run of the handler, not the worker.
                error = raised
            del call, item
            end_forked_child(self.pid)
            # A loop that was closed waits for nothing.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.settle, future, result, error)

    def settle(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        """Set the result, unless the waiting task gave up. In the loop."""
        self.idle += 1
        self.unsettled.discard(future)
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            # A future takes no StopIteration.
            future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

    def tell_death(self, reason: str) -> None:
        """Pass on that an error has ended a thread; the thread that dies."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.fail, StoreError(reason))

    def fail(self, error: StoreError) -> None:
        """Fail all calls: it is not known which of them the thread had. In the loop."""
        for future in self.unsettled:
            if not future.done():
                future.set_exception(error)
        self.unsettled.clear()
        self.on_death(error)

    def close(self) -> None:
        """End the threads, each after its call."""
        for _ in range(self.started):
            self.calls.put(None)
