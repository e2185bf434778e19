"""HoldService: pulls that found nothing wait here, and consumers that have read everything; one thread wakes them.

    put ──▶ `arrived` (under the put lock) ──▶ queue of arrivals ──▶ the thread waits until the consume queue is
                                                                      readable so far ──▶ reads what is waited for

Where only tasks of one event loop wait for messages of a queue, the loop does without the thread; see `LoopArrivals`.

A put to a queue that nobody waits for costs a look into a dictionary. One that somebody waits for hands the queue and
the end of the log to the thread, which waits for the consume queue's progress and then serves the waiters of that
queue alone. A held pull is read again before its consumer is woken, so that a message that its filter does not want
wakes nobody.

Nothing is lost between a pull's look and its waiting: it is entered first, and then the writer is asked whether the
queue has got more meanwhile; if so it is looked at once more when that can be read.

Source of the rules: RocketMQ broker, PullRequestHoldService and NotifyMessageArrivingListener. There a timer looks
every five seconds, here nobody has to.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from reput.arguments import require_seconds
from reput.consume.pull.loop_arrivals import LoopArrivals, LoopStore, take_readable
from reput.consume.pull.pull_service import PullRequest, PullResult, PullService
from reput.consume.registry.response_code import ResponseCode
from reput.errors import DispatcherError, ReputError, StoreClosed, StoreError, WaitTimeout
from reput.store.disk.files import Clock
from reput.store.reader.results import GetMessageResult, GetMessageStatus
from reput.store.service.threads import Threads, thread_death

__all__ = ["GrowingStore", "HoldService", "Watch"]

CONSUME_QUEUE = "consume_queue"
# How long the thread waits for progress at once; while the view does not run, how often it looks.
PROGRESS_WAIT_S = 1.0
STALLED_WAIT_S = 0.1
# Pulls that were served stay in the heap of deadlines until they are more than this and more than half of it.
SERVED_MAX = 1024

Queue: TypeAlias = tuple[str, int]
# What a held pull comes to.
Answer: TypeAlias = PullResult | ReputError | OSError

logger = logging.getLogger("reput.consume")


class GrowingStore(LoopStore, Protocol):
    """What the service has to know of the store."""

    @property
    def appended(self) -> int:
        """Commit-log offset up to which records were appended."""

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets."""

    def wait_for(self, dispatcher: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when a view is readable up to an offset."""


class HeldPull:
    """One pull that waits. *done* gets its result, or what it is refused with, on the service's thread."""

    __slots__ = ("deadline", "done", "looked_again_at", "next_offset", "request", "served")

    def __init__(self, request: PullRequest, next_offset: int, deadline: float, done: Callable[[Answer], None]) -> None:
        self.request = request
        self.next_offset = next_offset
        self.deadline = deadline
        self.done = done
        self.looked_again_at = -1
        self.served = False


class Watch:
    """Whoever wants to know that queues of some topics have grown.

    Attributes:
        grown: is called on the service's thread, or by the loop.
        loop: the loop whose tasks alone wait; None: others do, too, or nobody knows.
    """

    __slots__ = ("grown", "loop", "topics")

    def __init__(self, topics: tuple[str, ...], grown: Callable[[set[Queue]], None]) -> None:
        self.topics = topics
        self.grown = grown
        self.loop: LoopArrivals | None = None


class HoldService:
    """Holds pulls of one store. Any thread and any event loop may call."""

    def __init__(
        self, store: GrowingStore, pull_service: PullService, threads: Threads, clock: Clock | None = None
    ) -> None:
        self.store = store
        self.pull_service = pull_service
        self.clock = clock or Clock()
        self.lock = threading.Lock()
        # By queue, in the order in which they came; the values mean nothing.
        self.held: dict[Queue, dict[HeldPull, None]] = {}
        # By topic, in the order in which they came; the values mean nothing.
        self.watches: dict[str, dict[Watch, None]] = {}
        # By topic, how many of its watches have each loop: a put does not go through them.
        self.loops_of_topic: dict[str, dict[LoopArrivals | None, int]] = {}
        # (deadline, number, pull), the earliest first.
        self.deadlines: list[tuple[float, int, HeldPull]] = []
        self.served_count = 0
        self.numbers = count()
        # (end of the log, queue); None: look at the deadlines.
        self.arrivals: SimpleQueue[tuple[int, Queue] | None] = SimpleQueue()
        self.loops: dict[asyncio.AbstractEventLoop, LoopArrivals] = {}
        self.closed = False
        # Why the thread has died.
        self.death: str | None = None
        self.closing = threading.Event()
        self.thread = threads.start("reput-hold", self.run, self.fail)

    # Under the put lock.

    def arrived(self, queues: list[Queue], end: int) -> None:
        """The log has grown to *end* by records of *queues*."""
        held, loops_of_topic = self.held, self.loops_of_topic
        for queue in queues:
            if queue in held:
                self.arrivals.put((end, queue))
                continue
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
                        # A thread has begun to wait, and saw nothing of this yet.
                        self.arrivals.put((end, queue))

    # Waiting.

    def pull(self, request: PullRequest, timeout: float, done: Callable[[Answer], None]) -> PullResult | None:
        """Answer a pull, or hold it for *timeout* seconds at most if it finds nothing.

        Without ``long_polling_enable`` it is held for ``short_polling_time_mills``, whatever was asked for.

        Returns:
            The result, or None: then *done* is called with it, or with an error, by the service's thread.

        Raises:
            RequestRefused: as `PullService.pull`.
            StoreClosed: nothing is held any more.
            ConfigError: *timeout* is no number of seconds.
        """
        result = self.pull_or_hold(request, timeout, done)
        return result if isinstance(result, PullResult) else None

    def pull_or_hold(
        self, request: PullRequest, timeout: float, done: Callable[[Answer], None]
    ) -> PullResult | HeldPull:
        """Do what `pull` promises; return what waits now, so that whoever waited can give it up."""
        # One that is no number would have no place among the deadlines.
        require_seconds("timeout", timeout)
        result = self.pull_service.pull(request)
        if result.code is not ResponseCode.PULL_NOT_FOUND:
            return result
        settings = self.pull_service.settings
        if not settings.long_polling_enable:
            timeout = settings.short_polling_time_mills / 1000
        held = HeldPull(request, request.queue_offset, self.clock.monotonic() + timeout, done)
        queue = (request.topic, request.queue_id)
        with self.lock:
            if self.closed:
                raise self.refusal()
            self.held.setdefault(queue, {})[held] = None
            heapq.heappush(self.deadlines, (held.deadline, next(self.numbers), held))
            is_next = self.deadlines[0][2] is held
        if self.store.next_queue_offset(*queue) > request.queue_offset:
            # It was put before anybody waited, and nobody told of it.
            self.look_again(queue)
        if is_next:
            self.arrivals.put(None)
        return held

    def pull_and_wait(self, request: PullRequest, timeout: float) -> PullResult:
        """Answer a pull from the calling thread, which waits for *timeout* seconds at most for a message.

        Raises:
            RequestRefused: as `PullService.pull`.
            StoreClosed: the store was closed meanwhile.
        """
        answers: SimpleQueue[Answer] = SimpleQueue()
        result: HeldPull | Answer = self.pull_or_hold(request, timeout, answers.put)
        if isinstance(result, HeldPull):
            with self.dropped_when_given_up(result):
                result = answers.get()
        if not isinstance(result, PullResult):
            raise result
        return result

    async def pull_async(self, request: PullRequest, timeout: float) -> PullResult:
        """Answer a pull from a task, which waits for *timeout* seconds at most for a message.

        Raises:
            RequestRefused: as `PullService.pull`.
            StoreClosed: the store was closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def resolve(result: Answer) -> None:
            if not future.done():
                future.set_result(result)

        def done(result: Answer) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(resolve, result)

        result: HeldPull | Answer = self.pull_or_hold(request, timeout, done)
        if isinstance(result, HeldPull):
            with self.dropped_when_given_up(result):
                result = await future
        if not isinstance(result, PullResult):
            raise result
        return result

    def watch(self, topics: tuple[str, ...], grown: Callable[[set[Queue]], None]) -> Watch:
        """Have *grown* called with the queues of *topics* that can be read further than before, until `unwatch`."""
        watch = Watch(topics, grown)
        with self.lock:
            for topic in topics:
                self.watches.setdefault(topic, {})[watch] = None
                self.count_loop(topic, None, 1)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Call it no more."""
        with self.lock:
            for topic in watch.topics:
                watching = self.watches.get(topic, {})
                if watch in watching:
                    del watching[watch]
                    if not watching:
                        del self.watches[topic]
                    self.count_loop(topic, watch.loop, -1)

    def set_loop(self, watch: Watch, loop: LoopArrivals | None) -> None:
        """Have *loop* told for *watch*; None: the thread."""
        with self.lock:
            former, watch.loop = watch.loop, loop
            for topic in watch.topics:
                if watch in self.watches.get(topic, {}):
                    # In this order, so that there is somebody to be told at any moment.
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
        """Return what tells *loop*, which the calling thread runs, of queues that have grown."""
        found = self.loops.get(loop)
        if found is None:
            for other in [other for other in self.loops if other.is_closed()]:
                del self.loops[other]
            found = self.loops[loop] = LoopArrivals(loop, self.store, self.tell_watches, self.arrivals.put)
        return found

    def look_again(self, queue: Queue) -> None:
        """Serve the waiters of *queue* once what is appended by now can be read."""
        self.arrivals.put((self.store.appended, queue))

    def look_again_if_due(self, queue: Queue, next_offset: int, looked_again_at: int) -> int:
        """Look again at a queue in which there was nothing at *next_offset*, though something was put there.

        A view goes back where its builder was killed, perhaps between the telling and the reading, and comes as far
        again perhaps before this look. What never gets a unit is not looked for over and over.

        Args:
            looked_again_at: where the log ended when that was last done for whoever asks, -1: never.

        Returns:
            *looked_again_at* for the next time.
        """
        appended = self.store.appended
        if self.store.next_queue_offset(*queue) <= next_offset:
            return looked_again_at
        if looked_again_at == appended and self.store.readable_up_to(CONSUME_QUEUE) >= appended:
            return looked_again_at
        self.look_again(queue)
        return appended

    @property
    def held_count(self) -> int:
        """Pulls that wait now."""
        with self.lock:
            return sum(map(len, self.held.values()))

    # The thread.

    def run(self) -> None:
        """Serve until the service is closed."""
        waiting: deque[tuple[int, Queue]] = deque()
        while not self.closed:
            self.take_arrivals(waiting)
            if self.closed:
                return
            if waiting:
                readable = self.await_progress(min(end for end, _ in waiting))
                self.serve(take_readable(waiting, readable))
            self.expire()

    def take_arrivals(self, waiting: deque[tuple[int, Queue]]) -> None:
        """Take over what has arrived; if nothing waits for progress, sleep until something does or a time is up."""
        try:
            item = self.arrivals.get(block=not waiting, timeout=self.patience())
            while True:
                if item is not None:
                    waiting.append(item)
                item = self.arrivals.get_nowait()
        except Empty:
            return

    def patience(self) -> float | None:
        """Return the seconds until a time is up, None without any."""
        with self.lock:
            while self.deadlines and self.deadlines[0][2].served:
                heapq.heappop(self.deadlines)
                self.served_count -= 1
            if not self.deadlines:
                return None
            # A client may want to wait for longer than the system can.
            return min(max(0.0, self.deadlines[0][0] - self.clock.monotonic()), threading.TIMEOUT_MAX)

    def await_progress(self, end: int) -> int:
        """Wait for the consume queue to be readable up to *end*, not for ever; return up to where it is."""
        patience = self.patience()
        timeout = PROGRESS_WAIT_S if patience is None else min(PROGRESS_WAIT_S, patience)
        try:
            self.store.wait_for(CONSUME_QUEUE, end, timeout)
        except WaitTimeout:
            pass
        except (DispatcherError, StoreClosed):
            # Nobody builds the queue now. Whoever waits goes on waiting, until its time is up.
            self.closing.wait(min(STALLED_WAIT_S, timeout))
        return self.store.readable_up_to(CONSUME_QUEUE)

    def serve(self, grown: set[Queue]) -> None:
        """Look for those who wait for *grown* queues."""
        for queue in grown:
            if queue in self.held:
                with self.lock:
                    pulls = list(self.held.get(queue, ()))
                # Many may wait for one message; it is read once.
                shared: dict[Hashable, GetMessageResult] = {}
                for held in pulls:
                    self.try_pull(held, shared)
        self.tell_watches(grown)

    def tell_watches(self, grown: set[Queue]) -> None:
        """Tell those who watch *grown* queues; pulls that are held learn nothing of it."""
        by_watch: dict[Watch, set[Queue]] = {}
        for queue in grown:
            for watch in list(self.watches.get(queue[0], ())):
                by_watch.setdefault(watch, set()).add(queue)
        for watch, queues in by_watch.items():
            try:
                watch.grown(queues)
            except (ReputError, OSError):
                # The others are served all the same; the next message of the queue brings the next attempt.
                logger.exception("a queue that has grown cannot be read: queues=%s", sorted(queues))

    def try_pull(self, held: HeldPull, shared: dict[Hashable, GetMessageResult]) -> None:
        """Read for a pull, or take what was read for others; without a message that it wants it goes on waiting."""
        result: Answer
        try:
            while True:
                result = self.pull_service.pull_again(held.request, held.next_offset, shared)
                if result.status is not GetMessageStatus.NO_MATCHED_MESSAGE:
                    break
                held.next_offset = result.next_begin_offset
            if result.code is ResponseCode.PULL_NOT_FOUND:
                held.looked_again_at = self.look_again_if_due(
                    (held.request.topic, held.request.queue_id), held.next_offset, held.looked_again_at
                )
                return
        except (ReputError, OSError) as error:
            result = error
        self.finish(held, result)

    def expire(self) -> None:
        """Answer the pulls whose time is up."""
        now = self.clock.monotonic()
        due: list[HeldPull] = []
        with self.lock:
            while self.deadlines and (self.deadlines[0][2].served or self.deadlines[0][0] <= now):
                held = heapq.heappop(self.deadlines)[2]
                if held.served:
                    self.served_count -= 1
                else:
                    due.append(held)
        for held in due:
            self.answer_late(held)

    def answer_late(self, held: HeldPull) -> None:
        """Answer a pull whose time is up; past what its filter did not want it need not look again."""
        result: Answer
        try:
            result = self.pull_service.pull_again(held.request, held.next_offset)
            if result.code is ResponseCode.PULL_NOT_FOUND and held.next_offset > held.request.queue_offset:
                result = PullResult(
                    GetMessageStatus.NO_MATCHED_MESSAGE,
                    ResponseCode.PULL_RETRY_IMMEDIATELY,
                    held.next_offset,
                    result.min_offset,
                    result.max_offset,
                    result.records,
                )
        except (ReputError, OSError) as error:
            result = error
        self.finish(held, result, expired=True)

    def finish(self, held: HeldPull, result: Answer, *, expired: bool = False) -> None:
        """Answer a pull; it waits no more."""
        if not self.take_out(held, expired=expired):
            return
        try:
            held.done(result)
        except Exception:
            # What whoever waited does with the answer must not keep the others waiting.
            request = held.request
            logger.exception(
                "a pull that was held cannot be answered: topic=%s queue_id=%d", request.topic, request.queue_id
            )

    @contextlib.contextmanager
    def dropped_when_given_up(self, held: HeldPull) -> Iterator[None]:
        """Wait for a pull's answer; whoever is interrupted or cancelled meanwhile is not answered any more."""
        try:
            yield
        except BaseException:
            self.take_out(held, expired=False)
            raise

    def take_out(self, held: HeldPull, *, expired: bool) -> bool:
        """Have a pull wait no more; False if it did not any longer. *expired*: it has left the heap of deadlines."""
        queue = (held.request.topic, held.request.queue_id)
        with self.lock:
            if held.served:
                return False
            held.served = True
            rest = self.held[queue]
            del rest[held]
            if not rest:
                del self.held[queue]
            if not expired:
                self.served_count += 1
                self.forget_served()
        return True

    def forget_served(self) -> None:
        """Keep the heap of deadlines as large as what waits, about."""
        if self.served_count > SERVED_MAX and self.served_count > len(self.deadlines) // 2:
            self.deadlines = [entry for entry in self.deadlines if not entry[2].served]
            heapq.heapify(self.deadlines)
            self.served_count = 0

    # Life.

    def forget(self) -> None:
        """In a forked child of the writer: nobody waits here. Whoever held the lock is the parent's thread."""
        self.lock = threading.Lock()
        self.closed = True
        self.held.clear()
        self.watches.clear()
        self.loops_of_topic.clear()

    def close(self) -> None:
        """Answer every pull that waits: the store is closed."""
        pulls = self.end()
        self.closing.set()
        self.arrivals.put(None)
        self.thread.join()
        for held in pulls:
            self.finish(held, self.refusal())

    def fail(self, reason: str) -> None:
        """Answer every pull that waits: the thread has died."""
        self.death = reason
        for held in self.end():
            self.finish(held, self.refusal())

    def end(self) -> list[HeldPull]:
        """Hold nothing any more, and return what is held."""
        with self.lock:
            self.closed = True
            return [held for held_of_queue in self.held.values() for held in held_of_queue]

    def refusal(self) -> StoreError:
        """Return why nothing is held."""
        if self.death is not None:
            return thread_death(self.death)
        return StoreClosed("the store is closed", "Open it again.")
