"""ArrivalService: notifies consumers and held pulls when a queue has new readable messages.

    put ──▶ `arrived` (under the put lock) ──▶ queue of arrivals ──▶ the thread waits until the consume queue is
                                                                      readable so far ──▶ notifies the waiters

If only tasks of one event loop wait for messages of a queue, the thread is not used; see `LoopArrivals`. Pulls that are
held in a loop, and wait for the very message that was appended, get it without the consume queue.

A put to a queue without waiting consumers costs one dictionary lookup. Otherwise the put hands the queue and the end of
the log to the thread, which waits for the consume queue's progress and then notifies the waiters of that queue.

Source of the rules: RocketMQ broker, NotifyMessageArrivingListener.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Protocol

from reput.consume.pull.loop_arrivals import LoopArrivals, LoopStore, Queue, take_readable
from reput.errors import DispatcherError, ReputError, StoreClosed, WaitTimeout
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads
from reput.store.writer.publisher import AppendedRecords

__all__ = ["CONSUME_QUEUE", "ArrivalService", "GrowingStore", "Holder", "Watch"]

CONSUME_QUEUE = "consume_queue"
# The longest single wait for progress, and the interval between checks while the view does not run.
PROGRESS_WAIT_S = 1.0
STALLED_WAIT_S = 0.1

logger = logging.getLogger("reput.consume")


class GrowingStore(LoopStore, Protocol):
    """The part of the store that the service uses."""

    @property
    def appended(self) -> int:
        """Commit-log offset up to which records were appended."""

    @property
    def loops_wait_for_progress(self) -> bool:
        """Whether an event loop waits for a dispatcher itself, without a thread."""

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets."""

    def wait_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when a view is readable up to an offset."""


class Holder(Protocol):
    """Holds waiting pulls. The service's thread calls the methods that say nothing else, a loop `serve` as well."""

    def patience(self) -> float | None:
        """Return the seconds until the first pull expires; None: none waits."""

    def serve(self, grown: set[Queue]) -> None:
        """Answer the pulls that wait for *grown* queues and now find a message."""

    def appended(self, records: AppendedRecords) -> None:
        """Keep *records*, which no view has seen yet, for `serve_appended`. Any thread, under the put lock."""

    def serve_appended(self) -> None:
        """Answer the pulls that wait for the records of `appended`, in the loop."""

    def expire(self) -> None:
        """Answer the pulls that have expired."""

    def end(self) -> None:
        """Answer every pull with an error: the thread has died."""


class Watch:
    """A registration to be notified when queues of some topics grow.

    Attributes:
        grown: callback, called on the service's thread or by the loop.
        loop: the event loop, if only its tasks wait; None: other threads may wait as well.
    """

    __slots__ = ("grown", "loop", "topics")

    def __init__(self, topics: tuple[str, ...], grown: Callable[[set[Queue]], None]) -> None:
        self.topics = topics
        self.grown = grown
        self.loop: LoopArrivals | None = None


class ArrivalService(ServiceThread):
    """The arrivals of one store. Any thread and any event loop may call.

    Attributes:
        death: why the thread has died; None: the thread runs.
    """

    def __init__(self, store: GrowingStore, threads: Threads) -> None:
        super().__init__("reput-hold", threads)
        self.store = store
        self.lock = threading.Lock()
        # By topic, in order of registration; the values are unused.
        self.watches: dict[str, dict[Watch, None]] = {}
        # By topic, the number of watches of each loop, so that a put need not iterate over the watches.
        self.loops_of_topic: dict[str, dict[LoopArrivals | None, int]] = {}
        # The holder of waiting pulls, and the queues that they wait for.
        self.holder: Holder | None = None
        self.held: Mapping[Queue, object] = {}
        # The loop in which the holder is served; None: in the thread.
        self.holder_loop: LoopArrivals | None = None
        # (end of the log, queue); None: check the deadlines.
        self.arrivals: SimpleQueue[tuple[int, Queue] | None] = SimpleQueue()
        self.loops: dict[asyncio.AbstractEventLoop, LoopArrivals] = {}
        self.death: str | None = None
        self.start()

    # Under the put lock.

    def arrived(self, queues: list[Queue], records: AppendedRecords) -> None:
        """Announce that the log has grown by *records*, which belong to *queues*."""
        held, loops_of_topic, end = self.held, self.loops_of_topic, records.end
        is_kept = False
        for queue in queues:
            if queue in held:
                if self.holder_loop is None:
                    self.arrivals.put((end, queue))
                    continue
                if not is_kept and self.holder is not None:
                    # The loop may take them before this method returns.
                    self.holder.appended(records)
                    is_kept = True
                self.holder_loop.tell((end, queue))
            watching = loops_of_topic.get(queue[0])
            if watching is not None:
                loops = tuple(watching)
                if None in loops:
                    self.arrivals.put((end, queue))
                else:
                    for loop in loops:
                        assert loop is not None
                        loop.tell((end, queue))
                    if None in watching:
                        # A thread has started to wait meanwhile, and has not seen this message.
                        self.arrivals.put((end, queue))

    # Waiting.

    def serve_holder(self, holder: Holder, held: Mapping[Queue, object]) -> None:
        """Also serve *holder*. *held* always contains the queues that its pulls wait for."""
        self.holder, self.held = holder, held

    def serve_holder_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the holder in *loop*, which the calling thread runs, as long as the loop can wait for the queues.

        The thread still ends the pulls that expire.
        """
        if self.holder is not None and self.store.loops_wait_for_progress:
            self.holder_loop = LoopArrivals(
                loop, self.store, self.holder.serve, self.arrivals.put, self.holder.serve_appended, self.held
            )

    def watch(self, topics: tuple[str, ...], grown: Callable[[set[Queue]], None]) -> Watch:
        """Call *grown* with the queues of *topics* that have new readable messages, until `unwatch`."""
        watch = Watch(topics, grown)
        with self.lock:
            for topic in topics:
                self.watches.setdefault(topic, {})[watch] = None
                self.count_loop(topic, None, 1)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Stop calling a watch."""
        with self.lock:
            for topic in watch.topics:
                watching = self.watches.get(topic, {})
                if watch in watching:
                    del watching[watch]
                    if not watching:
                        del self.watches[topic]
                    self.count_loop(topic, watch.loop, -1)

    def set_loop(self, watch: Watch, loop: LoopArrivals | None) -> None:
        """Let *loop* be notified for *watch*; None: the thread."""
        with self.lock:
            former, watch.loop = watch.loop, loop
            for topic in watch.topics:
                if watch in self.watches.get(topic, {}):
                    # In this order, so that at any moment a loop or the thread is notified.
                    self.count_loop(topic, loop, 1)
                    self.count_loop(topic, former, -1)

    def count_loop(self, topic: str, loop: LoopArrivals | None, by: int) -> None:
        """Count the watches of *topic* that have *loop*. Under the lock."""
        counts = self.loops_of_topic.setdefault(topic, {})
        count = counts.get(loop, 0) + by
        if count:
            counts[loop] = count
        else:
            counts.pop(loop, None)
            if not counts:
                del self.loops_of_topic[topic]

    def loop_arrivals(self, loop: asyncio.AbstractEventLoop) -> LoopArrivals:
        """Return the `LoopArrivals` of *loop*, which the calling thread runs."""
        found = self.loops.get(loop)
        if found is None:
            for other in [other for other in self.loops if other.is_closed()]:
                del self.loops[other]
            found = self.loops[loop] = LoopArrivals(loop, self.store, self.tell_watches, self.arrivals.put)
        return found

    def look_again(self, queue: Queue) -> None:
        """Serve the waiters of *queue* once everything appended so far is readable."""
        arrival = (self.store.appended, queue)
        if self.holder_loop is None:
            self.arrivals.put(arrival)
        else:
            self.holder_loop.tell(arrival)

    def look_again_if_due(self, queue: Queue, next_offset: int, looked_again_at: int) -> int:
        """Look again at a queue if a read found nothing at *next_offset* although a message was put there.

        When its builder is killed, a view goes back, possibly between a notification and the read that follows, and may
        catch up before this check. A message that never gets a unit does not cause endless looks.

        Args:
            looked_again_at: the end of the log at the caller's last look, -1: never.

        Returns:
            *looked_again_at* for the next call.
        """
        appended = self.store.appended
        if self.store.next_queue_offset(*queue) <= next_offset:
            return looked_again_at
        if looked_again_at == appended and self.store.readable_up_to(CONSUME_QUEUE) >= appended:
            return looked_again_at
        self.look_again(queue)
        return appended

    # The thread.

    def run(self) -> None:
        """Serve until the service is closed."""
        waiting: deque[tuple[int, Queue]] = deque()
        while not self.stopping:
            self.take_arrivals(waiting)
            if self.stopping:
                return
            if waiting:
                readable = self.await_progress(min(end for end, _ in waiting))
                self.serve(take_readable(waiting, readable))
            if self.holder is not None:
                self.holder.expire()

    def take_arrivals(self, waiting: deque[tuple[int, Queue]]) -> None:
        """Move new arrivals to *waiting*; if it is empty, sleep until an arrival or the next deadline."""
        try:
            item = self.arrivals.get(block=not waiting, timeout=self.patience())
            while True:
                if item is not None:
                    waiting.append(item)
                item = self.arrivals.get_nowait()
        except Empty:
            return

    def patience(self) -> float | None:
        """Return the seconds until a held pull expires; None: none waits."""
        return None if self.holder is None else self.holder.patience()

    def await_progress(self, end: int) -> int:
        """Wait, for a limited time, until the consume queue is readable up to *end*; return its progress."""
        patience = self.patience()
        timeout = PROGRESS_WAIT_S if patience is None else min(PROGRESS_WAIT_S, patience)
        try:
            self.store.wait_for(CONSUME_QUEUE, end, timeout)
        except WaitTimeout:
            pass
        except (DispatcherError, StoreClosed):
            # No dispatcher builds the queue now. Waiters wait until their timeout.
            self.wake.wait(min(STALLED_WAIT_S, timeout))
        return self.store.readable_up_to(CONSUME_QUEUE)

    def serve(self, grown: set[Queue]) -> None:
        """Notify held pulls and watches of *grown* queues."""
        if self.holder is not None:
            self.holder.serve(grown)
        self.tell_watches(grown)

    def tell_watches(self, grown: set[Queue]) -> None:
        """Notify the watches of *grown* queues, but no held pulls."""
        by_watch: dict[Watch, set[Queue]] = {}
        for queue in grown:
            for watch in list(self.watches.get(queue[0], ())):
                by_watch.setdefault(watch, set()).add(queue)
        for watch, queues in by_watch.items():
            try:
                watch.grown(queues)
            except (ReputError, OSError):
                # The other watches are still served; the next message of the queue causes the next attempt.
                logger.exception("a queue that has grown cannot be read: queues=%s", sorted(queues))

    # Life.

    def forget(self) -> None:
        """Stop waiting in a forked child of the writer. A thread of the parent may hold the lock."""
        self.lock = threading.Lock()
        self.stopping = True
        self.watches.clear()
        self.loops_of_topic.clear()

    def wakeup(self) -> None:
        """End every wait of the thread."""
        super().wakeup()
        self.arrivals.put(None)

    def end_waits(self, reason: str) -> None:
        """Tell the holder that the thread has died."""
        self.death = reason
        if self.holder is not None:
            self.holder.end()
