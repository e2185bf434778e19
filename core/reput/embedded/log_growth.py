"""LogGrowth: wakes the threads and tasks that follow the log when it has grown.

The writer reports growth only while there are followers, so that it costs a put nothing otherwise.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A waiting task has already loaded it; a program without tasks opens its store sooner without it.
    import asyncio

__all__ = ["LogGrowth"]


class LogGrowth:
    """The followers of one log. Any thread, any event loop.

    Attributes:
        follower_count: threads and tasks that follow, waiting or not.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """*on_change* is called after the first follower arrives and after the last one leaves."""
        self.on_change = on_change
        self.closed = False
        self.follower_count = 0
        self.waiting_count = 0
        self.changed = threading.Condition()
        self.tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.watchers: tuple[Callable[[], None], ...] = ()

    def watch(self, grown: Callable[[], None]) -> None:
        """Call *grown*, under the put lock, each time that the log has grown. It counts as a follower."""
        with self.changed:
            self.watchers += (grown,)
            self.follower_count += 1
            is_first = self.follower_count == 1
        if is_first:
            self.on_change()

    def unwatch(self, grown: Callable[[], None]) -> None:
        """No longer call *grown*."""
        with self.changed:
            self.watchers = tuple(watcher for watcher in self.watchers if watcher != grown)
            self.follower_count -= 1
            is_last = self.follower_count == 0
        if is_last:
            self.on_change()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Count as a follower inside the ``with`` block."""
        with self.changed:
            self.follower_count += 1
            is_first = self.follower_count == 1
        if is_first:
            self.on_change()
        try:
            yield
        finally:
            with self.changed:
                self.follower_count -= 1
                is_last = self.follower_count == 0
            if is_last:
                self.on_change()

    def tell(self, queues: object, records: object) -> None:
        """Report that *records* are readable. Called under the put lock."""
        # A waiter raises its count before it reads the log's end, so one of the two sees the other.
        if self.waiting_count:
            self.wake()
        for grown in self.watchers:
            grown()

    def wake(self) -> None:
        """Make all waiters check again."""
        with self.changed:
            self.changed.notify_all()
            tasks, self.tasks = self.tasks, []
        for loop, future in tasks:
            # A loop that was closed has no task that waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(resolve, future)

    def close(self) -> None:
        """End all waits; the log no longer grows."""
        self.closed = True
        self.wake()

    def forget(self) -> None:
        """Called in a forked child, where there are no followers."""
        self.changed = threading.Condition()
        self.tasks = []
        self.watchers = ()
        self.closed = True

    def wait(self, has_grown: Callable[[], bool]) -> bool:
        """Block until *has_grown* returns True; return False once the log is closed."""
        with self.changed:
            self.waiting_count += 1
            try:
                while not has_grown():
                    if self.closed:
                        return False
                    self.changed.wait()
            finally:
                self.waiting_count -= 1
        return True

    async def await_growth(self, has_grown: Callable[[], bool]) -> bool:
        """Like `wait`, for a task."""
        loop: asyncio.AbstractEventLoop = sys.modules["asyncio"].get_running_loop()
        while True:
            with self.changed:
                self.waiting_count += 1
                future = loop.create_future()
                self.tasks.append((loop, future))
            try:
                if has_grown():
                    return True
                if self.closed:
                    return False
                await future
            finally:
                with self.changed:
                    self.waiting_count -= 1
                    if (loop, future) in self.tasks:
                        self.tasks.remove((loop, future))


def resolve(future: asyncio.Future[None]) -> None:
    """Resume the task that waits for *future*, unless it was cancelled."""
    if not future.done():
        future.set_result(None)
