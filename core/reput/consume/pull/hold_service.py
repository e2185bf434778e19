"""HoldService: holds pulls of a broker's clients that found nothing until a message arrives.

The thread of `ArrivalService` serves them. Before it answers a held pull, the thread reads the queue again, so that a
message which the pull's filter rejects wakes no client.

A broker's loop does not wait for the consume queue's process where a pull waits for the very message that was appended:
the writer knows place, size and tag. All other pulls get their messages by way of the consume queue.

No message is lost between a pull's read and its wait: the service first registers the pull, then asks the writer
whether the queue has grown meanwhile. If the queue has, the service reads again once the new messages are readable.

Source of the rules: RocketMQ broker, PullRequestHoldService. RocketMQ checks every five seconds; here no timer runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator
from itertools import count
from queue import SimpleQueue
from typing import TypeAlias

from reput.argument_checks import require_seconds
from reput.consume.pull.arrival_service import ArrivalService
from reput.consume.pull.loop_arrivals import Queue
from reput.consume.pull.pull_service import PullRequest, PullResult, PullService, SharedAnswers, answer
from reput.errors import ReputError, StoreClosed, StoreError
from reput.remoting.response_code import ResponseCode
from reput.store.disk.files import Clock
from reput.store.queue.consume_queue_builder import LEFT_OUT
from reput.store.reader.results import GetMessageResult, GetMessageStatus, Place
from reput.store.service.threads import thread_death
from reput.store.writer.publisher import AppendedRecords
from reput_hooks.dispatch import ROW

__all__ = ["HoldService"]

# Served pulls stay in the heap of deadlines until they number more than this and are more than half of the heap.
SERVED_MAX = 1024

# The result of a held pull.
Answer: TypeAlias = PullResult | ReputError | OSError

logger = logging.getLogger("reput.consume")


class HeldPull:
    """One waiting pull. The service's thread calls *done* with its result or error.

    Attributes:
        done: None once the wait has ended, because a served pull may stay in the heap of deadlines.
    """

    __slots__ = ("deadline", "done", "looked_again_at", "next_offset", "request", "served")

    def __init__(self, request: PullRequest, next_offset: int, deadline: float, done: Callable[[Answer], None]) -> None:
        self.request = request
        self.next_offset = next_offset
        self.deadline = deadline
        self.done: Callable[[Answer], None] | None = done
        self.looked_again_at = -1
        self.served = False


class HoldService:
    """Holds pulls of one store. Any thread and any event loop may call."""

    def __init__(self, arrival_service: ArrivalService, pull_service: PullService, clock: Clock | None = None) -> None:
        self.arrival_service = arrival_service
        self.pull_service = pull_service
        self.clock = clock or Clock()
        self.lock = threading.Lock()
        # By queue, in order of arrival; the values are unused.
        self.held: dict[Queue, dict[HeldPull, None]] = {}
        # (deadline, number, pull), the earliest first.
        self.deadlines: list[tuple[float, int, HeldPull]] = []
        self.served_count = 0
        self.numbers = count()
        self.fresh: deque[AppendedRecords] = deque()
        self.closed = False
        arrival_service.serve_holder(self, self.held)

    def serve_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer pulls in *loop*, which the calling thread runs: no thread stands between a message and its answer."""
        self.arrival_service.serve_holder_in(loop)

    # Waiting.

    def pull(self, request: PullRequest, timeout: float, done: Callable[[Answer], None]) -> PullResult | None:
        """Answer a pull, or hold it for *timeout* seconds at most if it finds nothing.

        Without ``long_polling_enable``, it is held for ``short_polling_time_mills`` regardless of *timeout*.

        Returns:
            The result, or None: then the service's thread calls *done* with the result or an error.

        Raises:
            RequestRefused: as `PullService.pull`.
            StoreClosed: the service no longer holds pulls.
            ConfigError: *timeout* is not a number of seconds.
        """
        result = self.pull_or_hold(request, timeout, done)
        return result if isinstance(result, PullResult) else None

    def pull_or_hold(
        self, request: PullRequest, timeout: float, done: Callable[[Answer], None]
    ) -> PullResult | HeldPull:
        """Do the work of `pull`, but return the held pull, so that the caller can give it up."""
        # Only numbers can be ordered in the heap of deadlines.
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
        if self.arrival_service.store.next_queue_offset(*queue) > request.queue_offset:
            # A message was put before the pull was registered, so it was not announced.
            self.arrival_service.look_again(queue)
        if is_next:
            self.arrival_service.arrivals.put(None)
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

    async def apull_and_wait(self, request: PullRequest, timeout: float) -> PullResult:
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

    @property
    def held_count(self) -> int:
        """The number of waiting pulls."""
        with self.lock:
            return sum(map(len, self.held.values()))

    # The thread.

    def patience(self) -> float | None:
        """Return the seconds until the first pull expires; None: none waits."""
        with self.lock:
            while self.deadlines and self.deadlines[0][2].served:
                heapq.heappop(self.deadlines)
                self.served_count -= 1
            if not self.deadlines:
                return None
            # A client may ask for a longer wait than the system supports.
            return min(max(0.0, self.deadlines[0][0] - self.clock.monotonic()), threading.TIMEOUT_MAX)

    def serve(self, grown: set[Queue]) -> None:
        """Answer the pulls that wait for *grown* queues and now find a message."""
        for queue in grown:
            if queue in self.held:
                with self.lock:
                    pulls = list(self.held.get(queue, ()))
                # Many pulls may wait for one message, which is read once, and each of their groups is checked once.
                shared = SharedAnswers()
                for held in pulls:
                    self.try_pull(held, shared)

    def try_pull(self, held: HeldPull, shared: SharedAnswers) -> None:
        """Read for a pull, or reuse the reads of other pulls; the pull keeps waiting if no message matches."""
        result: Answer
        try:
            while True:
                result = self.pull_service.pull_again(held.request, held.next_offset, shared)
                if result.status is not GetMessageStatus.NO_MATCHED_MESSAGE:
                    break
                held.next_offset = result.next_begin_offset
            if result.code is ResponseCode.PULL_NOT_FOUND:
                held.looked_again_at = self.arrival_service.look_again_if_due(
                    (held.request.topic, held.request.queue_id), held.next_offset, held.looked_again_at
                )
                return
        except (ReputError, OSError) as error:
            result = error
        self.finish(held, result)

    def expire(self) -> None:
        """Answer the pulls that have expired."""
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
        """Answer an expired pull; its client need not read again the messages that its filter rejected."""
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
        """End a pull's wait and answer it."""
        done = self.take_out(held, expired=expired)
        if done is None:
            return
        try:
            done(result)
        except Exception:
            # A failing callback must not delay the other pulls.
            request = held.request
            logger.exception(
                "a pull that was held cannot be answered: topic=%s queue_id=%d", request.topic, request.queue_id
            )

    @contextlib.contextmanager
    def dropped_when_given_up(self, held: HeldPull) -> Iterator[None]:
        """Drop a pull if the wait for its answer is interrupted or cancelled."""
        try:
            yield
        except BaseException:
            self.take_out(held, expired=False)
            raise

    def take_out(self, held: HeldPull, *, expired: bool) -> Callable[[Answer], None] | None:
        """End a pull's wait; return what answers it, None if it had ended before.

        *expired*: it has left the heap of deadlines.
        """
        queue = (held.request.topic, held.request.queue_id)
        with self.lock:
            if held.served:
                return None
            held.served = True
            done, held.done = held.done, None
            rest = self.held[queue]
            del rest[held]
            if not rest:
                del self.held[queue]
            if not expired:
                self.served_count += 1
                self.forget_served()
        return done

    def forget_served(self) -> None:
        """Remove served pulls from the heap of deadlines when they make up most of it."""
        if self.served_count > SERVED_MAX and self.served_count > len(self.deadlines) // 2:
            self.deadlines = [entry for entry in self.deadlines if not entry[2].served]
            heapq.heapify(self.deadlines)
            self.served_count = 0

    def topic_deleted(self, topic: str) -> None:
        """Answer the pulls that wait for a deleted topic as those of an empty queue: a new topic begins at 0.

        Otherwise a pull could wait until a new topic of that name has grown up to its offset, and skip what is before.
        """
        with self.lock:
            pulls = [held for (name, _), waiting in self.held.items() if name == topic for held in waiting]
        for held in pulls:
            nothing = GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
            self.finish(held, answer(held.request.queue_offset, nothing))

    # The loop.

    def appended(self, records: AppendedRecords) -> None:
        """Keep *records* of queues that pulls wait for, for `serve_appended`. Any thread, under the put lock."""
        self.fresh.append(records)

    def serve_appended(self) -> None:
        """Answer the pulls that wait for the first records of `appended`, without the consume queue."""
        while self.fresh:
            for queue, places in places_of(self.fresh.popleft(), self.held).items():
                with self.lock:
                    pulls = list(self.held.get(queue, ()))
                shared = SharedAnswers()
                for held in pulls:
                    self.try_appended(held, places, shared)

    def try_appended(self, held: HeldPull, places: list[Place], shared: SharedAnswers) -> None:
        """Answer a pull from records that were just appended, if it waits for one of them."""
        at = held.next_offset - places[0][0]
        if not 0 <= at < len(places):
            return
        result: Answer | None
        try:
            result = self.pull_service.pull_appended(held.request, places[at:], shared)
            if result is None:
                return
            if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
                held.next_offset = result.next_begin_offset
                return
        except (ReputError, OSError) as error:
            result = error
        self.finish(held, result)

    # Life.

    def forget(self) -> None:
        """Drop all pulls in a forked child of the writer. A thread of the parent may hold the lock."""
        self.lock = threading.Lock()
        self.closed = True
        self.held.clear()
        self.fresh.clear()

    def end(self) -> None:
        """Answer every waiting pull with an error: the store is closed, or the thread has died."""
        with self.lock:
            self.closed = True
            pulls = [held for held_of_queue in self.held.values() for held in held_of_queue]
        for held in pulls:
            self.finish(held, self.refusal())

    def refusal(self) -> StoreError:
        """Return the error with which the service refuses to hold pulls."""
        if self.arrival_service.death is not None:
            return thread_death(self.arrival_service.death)
        return StoreClosed("the store is closed", "Open it again.")


def places_of(records: AppendedRecords, wanted: Container[Queue]) -> dict[Queue, list[Place]]:
    """Return the places of *records* in each of the *wanted* queues, if they follow each other there."""
    found: dict[Queue, list[Place]] = {}
    for offset, queue_offset, tags_code, _, _, size, index, sys_flag, *_ in ROW.iter_unpack(records.rows):
        queue = records.queues[index]
        if queue in wanted and not sys_flag & LEFT_OUT:
            found.setdefault(queue, []).append((queue_offset, (offset, size, tags_code)))
    return {queue: places for queue, places in found.items() if places[-1][0] - places[0][0] == len(places) - 1}
