"""LogGrowth: wakes the threads and tasks that follow the log when it has grown.

The writer tells of growth only while somebody follows, so that a put pays nothing for it otherwise.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A task that waits has it loaded; a program without tasks opens its store sooner without.
    import asyncio

__all__ = ["LogGrowth"]


class LogGrowth:
    """The followers of one log. Any thread, any event loop.

    Attributes:
        follower_count: threads and tasks that follow, whether they wait just now or not.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """*on_change* is called after the first follower has come and after the last one has gone."""
        self.on_change = on_change
        self.closed = False
        self.follower_count = 0
        self.waiting_count = 0
        self.changed = threading.Condition()
        self.tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

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

    def tell(self, queues: object, end: int) -> None:
        """Records up to *end* can be read now. Called under the put lock."""
        # A waiter raises its count before it looks at the log's end, so one of the two sees the other.
        if self.waiting_count:
            self.wake()

    def wake(self) -> None:
        """Let all look again."""
        with self.changed:
            self.changed.notify_all()
            tasks, self.tasks = self.tasks, []
        for loop, future in tasks:
            # A loop that was closed has no task that waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(resolve, future)

    def close(self) -> None:
        """End all waits; nothing grows any more."""
        self.closed = True
        self.wake()

    def forget(self) -> None:
        """In a forked child: nobody follows here."""
        self.changed = threading.Condition()
        self.tasks = []
        self.closed = True

    def wait(self, has_grown: Callable[[], bool]) -> bool:
        """Block until *has_grown* says so; return False once the log is closed."""
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
        """As `wait`, for a task."""
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
    """Let the task that waits for *future* go on, unless it was cancelled."""
    if not future.done():
        future.set_result(None)
