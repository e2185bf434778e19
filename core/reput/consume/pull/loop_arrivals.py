"""LoopArrivals: announces grown queues to tasks of one event loop, which itself waits until they are readable.

    put ──▶ `tell` ──▶ the loop sleeps on the dispatcher's progress ──▶ `grown`, in the loop's thread ──▶ the task

No thread stands between the dispatcher's process and the task that waits for a message. If the loop cannot wait,
because it is ending or no dispatcher builds the consume queue, it hands over to the thread of the `ArrivalService`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container
from typing import Protocol, TypeAlias

from reput.errors import DispatcherError, StoreClosed, WaitTimeout

__all__ = ["Arrival", "LoopArrivals", "LoopStore", "Queue", "running_loop", "take_readable"]

CONSUME_QUEUE = "consume_queue"
WAIT_S = 1.0

Queue: TypeAlias = tuple[str, int]
# Commit-log offset up to which the consume queue must be readable first, and the queue that has grown.
Arrival: TypeAlias = tuple[int, Queue]


class LoopStore(Protocol):
    """The part of the store that a loop waits on."""

    def readable_up_to(self, view: str) -> int:
        """Return the progress of a view."""

    def has_begun(self, view: str) -> bool:
        """Whether `readable_up_to` answers at once."""

    async def await_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when a view is readable up to an offset."""


class LoopArrivals:
    """Arrivals of one loop.

    Attributes:
        waiting: announced arrivals that are not readable yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: LoopStore,
        grown: Callable[[set[Queue]], None],
        hand_over: Callable[[Arrival], None],
        serve_appended: Callable[[], None] | None = None,
        held: Container[Queue] = (),
    ) -> None:
        """*grown* is called in the loop's thread; *hand_over*, in any, with arrivals that the loop cannot wait for.

        Args:
            serve_appended: is called in the loop's thread before it waits for new arrivals; None: nothing is.
            held: the queues that are still waited for after *serve_appended*.
        """
        self.loop = loop
        self.store = store
        self.grown = grown
        self.hand_over = hand_over
        self.serve_appended = serve_appended
        self.held = held
        self.waiting: deque[Arrival] = deque()
        self.is_called = False
        self.task: asyncio.Task[None] | None = None

    def tell(self, arrival: Arrival) -> None:
        """Announce that a queue has grown. Any thread, under the put lock."""
        self.waiting.append(arrival)
        if self.is_called:
            return
        self.is_called = True
        try:
            if running_loop() is self.loop:
                # In the loop's own thread, this avoids the system call that wakes a loop.
                self.loop.call_soon(self.begin)
            else:
                self.loop.call_soon_threadsafe(self.begin)
        except RuntimeError:
            # The loop was closed.
            self.hand_over_all()

    def begin(self) -> None:
        """Start the waiting task unless it runs; in the loop."""
        # An arrival from now on calls this again, or the task sees it.
        self.is_called = False
        if self.serve_appended is not None:
            self.serve_appended()
            self.leave_served()
        if self.task is None and self.waiting:
            if self.store.has_begun(CONSUME_QUEUE):
                try:
                    self.say_readable()
                except (DispatcherError, StoreClosed):
                    self.hand_over_all()
            if self.waiting:
                self.task = self.loop.create_task(self.serve())

    def leave_served(self) -> None:
        """Remove from `waiting` the queues that have no waiter any more. Threads may add arrivals meanwhile."""
        for _ in range(len(self.waiting)):
            arrival = self.waiting.popleft()
            if arrival[1] in self.held:
                self.waiting.append(arrival)

    def say_readable(self) -> None:
        """Announce the waiting arrivals that are readable by now."""
        grown = take_readable(self.waiting, self.store.readable_up_to(CONSUME_QUEUE))
        if grown:
            self.grown(grown)

    async def serve(self) -> None:
        """Announce readable queues until no arrival waits."""
        try:
            while self.waiting:
                await self.store.await_for(CONSUME_QUEUE, min(end for end, _ in self.waiting), WAIT_S)
                self.say_readable()
        except (WaitTimeout, DispatcherError, StoreClosed):
            # The dispatcher is slow or does not run: leave the wait to the thread.
            pass
        finally:
            self.task = None
            self.hand_over_all()

    def hand_over_all(self) -> None:
        """Stop waiting, and hand all arrivals over."""
        self.is_called = False
        while self.waiting:
            self.hand_over(self.waiting.popleft())

    def share_all(self) -> None:
        """Give the thread a copy of all waiting arrivals, for waiters that do not depend on the loop."""
        for arrival in tuple(self.waiting):
            self.hand_over(arrival)


def take_readable(waiting: deque[Arrival], readable: int) -> set[Queue]:
    """Remove from *waiting* the arrivals that are readable with the consume queue at *readable*; return their queues.

    Arrivals that another thread adds meanwhile stay.
    """
    grown: set[Queue] = set()
    for _ in range(len(waiting)):
        end, queue = waiting.popleft()
        if end <= readable:
            grown.add(queue)
        else:
            waiting.append((end, queue))
    return grown


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that the calling thread runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
