"""Worker: consumes with a handler: a function, which runs in threads, or a coroutine function, which runs in tasks.

    Consumer ──▶ feeder ──▶ one lane per message, or per queue ──▶ handler ──▶ acknowledge
                                                        └─ raises ──▶ retry ──▶ … ──▶ dead letters

One event loop runs the feeder and the lanes. With ``order="any"`` a failed message goes back to the store and comes
again after RocketMQ's delays, while others go on (MessageListenerConcurrently). With ``order="queue"`` the messages of
a queue are handled one by one; a failed one is tried again in its place after a pause, and its queue waits
(MessageListenerOrderly).

Source of the rules: RocketMQ client, ConsumeMessageConcurrentlyService and ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from types import FrameType
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from reput.argument_checks import require_seconds, require_whole
from reput.errors import BrokerError, ConfigError, DamagedStore, RequestRefused, StoreClosed, StoreError
from reput.in_thread import in_thread, opened_in_thread
from reput.remoting.response_code import ResponseCode
from reput.worker.handler_threads import HandlerThreads
from reput.worker.handlers import (
    Handler,
    call_coroutine,
    check_handler,
    check_result,
    describe_error,
    is_coroutine_function,
)
from reput_hooks import Record

__all__ = ["Order", "Worker", "WorkerConsumer", "WorkerStatistics"]

Order: TypeAlias = Literal["any", "queue"]

ORDERS = ("any", "queue")
# How many messages of each queue a worker that keeps an order may hold. There is no limit for all queues together: it
# would be used up by queues that wait, and the others would starve.
QUEUE_HELD_MAX = 32
# A message that could not be sent back, or a queue that could not be read, is tried again after this time.
TROUBLE_PAUSE_S = 1.0
# Coroutines that are cancelled at the end get this time for what they do then.
CANCEL_PATIENCE_S = 5.0

logger = logging.getLogger(__name__)


class WorkerConsumer(Protocol):
    """What a worker needs of a consumer."""

    async def areceive(self, timeout: float | None = None) -> Record | None:
        """Return the next message."""

    def ack(self, record: Record) -> None:
        """Take a message as done."""

    async def anack(self, record: Record, delay_level: int = 0, *, max_reconsume_times: int | None = None) -> object:
        """Send a message back."""

    def commit(self) -> None:
        """Write how far the group has come."""

    def close(self) -> None:
        """Leave the group."""


class WorkerStatistics(msgspec.Struct, frozen=True):
    """What a worker has done since it was made.

    Attributes:
        received: messages that it was given.
        succeeded: messages whose handler returned.
        failed: runs of the handler that raised.
        timed_out: runs of the handler that took longer than the time limit. They count as failed, too, unless a
            function in order mode returns after all.
        sent_back: messages that went back to the store, to come again or to the dead letters.
        running: messages that are being handled now.
    """

    received: int = 0
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    sent_back: int = 0
    running: int = 0


class Worker:
    """Consumes with *handler* until it is stopped. It runs once. Make it with `Store.worker` or `Client.worker`.

    Args:
        open_consumer: returns the consumer, which the worker closes; called in a thread with the numbers of messages
            that it may hold of all queues, and of each queue.
        concurrency: messages that are handled at the same time.
        order: "any": a failed message goes back and comes again later; "queue": the messages of a queue in their order.
        time_limit: seconds for one run of the handler.
        max_reconsume_times: number of retries before a message becomes a dead letter.
        suspend_time: seconds that a queue waits before a failed message is tried again in order mode.
        drain_time: seconds that handlers get to end after `stop`; None: as long as they need.
    """

    def __init__(
        self,
        open_consumer: Callable[[int, int], WorkerConsumer],
        handler: Handler,
        *,
        concurrency: int = 1,
        order: Order = "any",
        time_limit: float | None = None,
        max_reconsume_times: int | None = None,
        suspend_time: float = 1.0,
        drain_time: float | None = None,
    ) -> None:
        require_whole("concurrency", concurrency, 1)
        require_seconds("time_limit", time_limit)
        require_seconds("suspend_time", suspend_time)
        require_seconds("drain_time", drain_time)
        if time_limit is not None and time_limit <= 0:
            raise ConfigError(
                f"no handler ends within the limit: time_limit={time_limit}", "Give more than 0, or None."
            )
        if suspend_time is None or suspend_time < 0:
            raise ConfigError(f"suspend_time is no time to wait: suspend_time={suspend_time}", "Give 0 or more.")
        if drain_time is not None and drain_time < 0:
            raise ConfigError(f"drain_time is less than 0: drain_time={drain_time}", "Give 0 or more, or None.")
        if max_reconsume_times is not None:
            require_whole("max_reconsume_times", max_reconsume_times)
        check_handler(handler)
        if order not in ORDERS:
            raise ConfigError(f"order is unknown: order={order!r} known={','.join(ORDERS)}", "Give one of these names.")
        self.open_consumer = open_consumer
        self.handler = handler
        self.concurrency = concurrency
        self.in_order = order == "queue"
        self.time_limit = time_limit
        self.max_reconsume_times = max_reconsume_times
        self.suspend_time = suspend_time
        self.drain_time = drain_time
        self.is_coroutine = is_coroutine_function(handler)
        self.counts = dict.fromkeys(WorkerStatistics.__struct_fields__, 0)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.stopping = asyncio.Event()
        self.is_stopped = self.is_interrupted = False
        self.has_run = False
        self.threads: HandlerThreads | None = None
        self.lanes: set[asyncio.Task[None]] = set()
        # The coroutines of the handler that have not ended, those included that their lanes have given up.
        self.coroutines: set[asyncio.Future[Any]] = set()
        self.queues: dict[tuple[str, int], deque[Record]] = {}
        self.error: BaseException | None = None

    @property
    def statistics(self) -> WorkerStatistics:
        """What the worker has done so far. Any thread may ask."""
        return WorkerStatistics(**self.counts)

    def stop(self) -> None:
        """Tell the worker to end: it receives no more messages, and `run` returns when the running handlers have ended.

        This returns at once; any thread, task or signal handler may call. Messages that were received but not yet
        handled are delivered again.
        """
        # No lock: a signal handler calls this in the middle of anything. `arun` sets the loop, then looks whether it is
        # stopped already.
        self.is_stopped = True
        loop = self.loop
        if loop is not None:
            # A loop that was closed has ended the worker.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.stopping.set)

    def run(self, *, signals: Collection[int] = (signal.SIGTERM, signal.SIGINT)) -> WorkerStatistics:
        """Consume until `stop` is called or one of *signals* comes, and return the statistics.

        Signals are handled in the main thread only; the former signal handlers are restored at the end. After the first
        signal, Ctrl-C raises KeyboardInterrupt, in case a handler does not end.

        Raises:
            ConfigError: the worker has run before; or the handler returned a coroutine or generator that nothing runs;
                or a signal cannot be handled; or the calling thread runs an event loop.
            StoreError: the store cannot be read, or was closed by another thread.
            RequestRefused: the group or a topic may not be read.
        """
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigError("`run` would block the event loop of this thread", "Await `arun` instead.")
        runner = asyncio.Runner()
        with self._handling(signals), waking(runner.get_loop()), contextlib.closing(runner):
            try:
                statistics = runner.run(self.arun())
            except asyncio.CancelledError:
                if not self.is_interrupted:
                    raise
            if self.is_interrupted:
                raise KeyboardInterrupt
            return statistics

    @contextlib.contextmanager
    def _handling(self, signals: Collection[int]) -> Iterator[None]:
        """Stop at *signals* inside the ``with`` block, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.stop()
            if signal.SIGINT in before:
                signal.signal(signal.SIGINT, on_interrupt)

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            # A third one ends whatever waits for coroutines that catch their cancellation.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            loop, task = self.loop, self.task
            if loop is None or task is None or loop.is_closed() or asyncio.current_task(loop) is not None:
                raise KeyboardInterrupt
            # Raised in the loop's own code, it could take a step of a task with it, which would then never end.
            self.is_interrupted = True
            loop.call_soon_threadsafe(task.cancel)

        try:
            try:
                for number in signals:
                    before[number] = signal.signal(number, on_signal)
            except (OSError, TypeError, ValueError) as error:
                raise ConfigError(f"a signal cannot be handled: signals={signals!r} error={error}") from error
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def arun(self) -> WorkerStatistics:
        """Like `run`, for a task. It handles no signals.

        If the task is cancelled, so are the handler's coroutines, and the group gets unfinished messages again.
        """
        if self.has_run:
            raise ConfigError("a worker runs once", "Make another one with `Store.worker`.")
        self.has_run = True
        self.task = asyncio.current_task()
        self.loop = asyncio.get_running_loop()
        if self.is_stopped:
            self.stopping.set()
        # Out of order, the consumer holds what is being handled; in order, also what waits for its queue.
        held_max = (sys.maxsize, QUEUE_HELD_MAX) if self.in_order else (self.concurrency, self.concurrency)
        consumer = await opened_in_thread(self.open_consumer, *held_max)
        self.threads = None if self.is_coroutine else HandlerThreads(self.concurrency, self._thread_died)
        try:
            try:
                await self._feed(consumer)
                await self._drain()
            finally:
                for lane in self.lanes:
                    lane.cancel()
                if self.lanes:
                    await asyncio.wait(self.lanes)
                await self._end_coroutines()
        finally:
            if self.threads is not None:
                self.threads.close()
            await in_thread(leave, consumer)
        if self.error is not None:
            raise self.error
        return self.statistics

    async def _feed(self, consumer: WorkerConsumer) -> None:
        """Receive messages and start lanes for them until the worker is stopped."""
        stopped = asyncio.ensure_future(self.stopping.wait())
        running = asyncio.Semaphore(self.concurrency)
        try:
            while self.in_order or await first(running.acquire(), stopped):
                record = await self._receive(consumer, stopped)
                if record is None:
                    return
                self.counts["received"] += 1
                if self.in_order:
                    self._put_in_order(consumer, record, running)
                else:
                    self._start(self._handle_alone(consumer, record, running))
        finally:
            stopped.cancel()

    async def _receive(self, consumer: WorkerConsumer, stopped: asyncio.Future[Any]) -> Record | None:
        """Return the next message, None once the worker is stopped or the store is closed."""
        while True:
            try:
                record: Record | None = await first(consumer.areceive(), stopped)
                return record
            except DamagedStore as error:
                # The queue stays where it is until somebody decides about the damage; other queues go on.
                logger.error("a queue cannot be read: error=%s", error)
                if not await first(asyncio.sleep(TROUBLE_PAUSE_S, True), stopped):
                    return None
            except Exception as error:
                self.error = error
                return None

    def _start(self, lane: Any) -> None:
        """Run a lane as a task of its own."""
        task = asyncio.ensure_future(lane)
        self.lanes.add(task)
        task.add_done_callback(self._lane_ended)

    def _lane_ended(self, lane: asyncio.Task[None]) -> None:
        """Stop the worker if a lane ended by an error: it could not say that a message is done."""
        self.lanes.discard(lane)
        if not lane.cancelled() and lane.exception() is not None:
            self.error = self.error or lane.exception()
            self.stopping.set()

    def _thread_died(self, error: StoreError) -> None:
        """Stop the worker: fewer threads than its concurrency are left."""
        self.error = self.error or error
        self.stopping.set()

    async def _drain(self) -> None:
        """Wait for the handlers that run, at most for the drain time."""
        self.stopping.set()
        if self.lanes:
            _, late = await asyncio.wait(self.lanes, timeout=self.drain_time)
            if late:
                logger.warning(
                    "handlers did not end in time, their messages come again: running=%d drain_time=%s",
                    self.counts["running"],
                    self.drain_time,
                )

    async def _end_coroutines(self) -> None:
        """Wait for the handler's coroutines that were cancelled, so that they still find the store open."""
        if self.coroutines:
            done, late = await asyncio.wait(self.coroutines, timeout=CANCEL_PATIENCE_S)
            for run in done:
                is_failed(run)
            if late:
                logger.warning("handlers were cancelled and go on: running=%d", len(late))

    # One message for itself.

    async def _handle_alone(self, consumer: WorkerConsumer, record: Record, running: asyncio.Semaphore) -> None:
        """Handle a message; if that fails, send it back."""
        try:
            run = self._begin(record)
            if await self._succeeds(run, record):
                acknowledge(consumer, record)
            else:
                await self._send_back(consumer, record, 0)
                # A function past its limit keeps its thread until it returns.
                await ended(run)
        finally:
            running.release()

    # The messages of a queue, one after the other.

    def _put_in_order(self, consumer: WorkerConsumer, record: Record, running: asyncio.Semaphore) -> None:
        """Add a message to its queue, and start a lane for the queue if none runs."""
        key = record.topic, record.queue_id
        waiting = self.queues.get(key)
        if waiting is None:
            self.queues[key] = deque([record])
            self._start(self._handle_queue(consumer, key, running))
        else:
            waiting.append(record)

    async def _handle_queue(self, consumer: WorkerConsumer, key: tuple[str, int], running: asyncio.Semaphore) -> None:
        """Handle the messages of one queue until none is left or the worker is stopped."""
        waiting = self.queues[key]
        while waiting and not self.stopping.is_set():
            if not await self._handle_in_order(consumer, waiting[0], running):
                break
            waiting.popleft()
        del self.queues[key]

    async def _handle_in_order(self, consumer: WorkerConsumer, record: Record, running: asyncio.Semaphore) -> bool:
        """Try a message until it is done or dead; return False if the worker was stopped before."""
        attempt = record.reconsume_times
        while True:
            async with running:
                if self.stopping.is_set():
                    return False
                run = self._begin(record)
                # A function that goes on past its limit must not have the next message beside it.
                if await self._succeeds(run, record, is_cut=self.is_coroutine):
                    acknowledge(consumer, record)
                    return True
                # Nor must a coroutine that catches its cancellation.
                await ended(run)
            attempt += 1
            if self.max_reconsume_times is not None and attempt > self.max_reconsume_times:
                await self._send_back(consumer, record, -1)
                return True
            if await self._pause(self.suspend_time):
                return False

    # The handler.

    def _begin(self, record: Record) -> asyncio.Future[Any]:
        """Start the handler."""
        if self.threads is not None:
            return self.threads.start(partial(self.handler, record))
        run = asyncio.ensure_future(call_coroutine(self.handler, record))
        self.coroutines.add(run)
        run.add_done_callback(self.coroutines.discard)
        return run

    async def _succeeds(self, run: asyncio.Future[Any], record: Record, *, is_cut: bool = True) -> bool:
        """Wait for a run of the handler; False if it raised, or did not end in time and *is_cut*.

        Raises:
            ConfigError: it returned a coroutine or generator that nothing runs.
        """
        counts = self.counts
        counts["running"] += 1
        try:
            done, _ = await asyncio.wait({run}, timeout=self.time_limit)
            if not done:
                counts["timed_out"] += 1
                log_failure(record, f"error=the handler took longer than time_limit={self.time_limit}")
                if is_cut:
                    counts["failed"] += 1
                    if self.is_coroutine:
                        run.cancel()
                    return False
                await asyncio.wait({run})
            if is_failed(run):
                counts["failed"] += 1
                error = None if run.cancelled() else run.exception()
                text = "the handler was cancelled" if error is None else describe_error(error)
                log_failure(record, f"error={text}", error)
                return False
            check_result(self.handler, run.result())
            counts["succeeded"] += 1
            return True
        except asyncio.CancelledError:
            run.cancel()
            raise
        finally:
            counts["running"] -= 1

    async def _send_back(self, consumer: WorkerConsumer, record: Record, delay_level: int) -> None:
        """Let the group get a message again later, or send it to the dead letters with a negative *delay_level*."""
        while True:
            try:
                await consumer.anack(record, delay_level, max_reconsume_times=self.max_reconsume_times)
                self.counts["sent_back"] += 1
                return
            except StoreClosed:
                raise
            except (StoreError, BrokerError, RequestRefused) as error:
                if isinstance(error, RequestRefused) and error.response_code == ResponseCode.SYSTEM_ERROR:
                    # Its queue has gone to another consumer, which gets it again.
                    logger.warning("a message was not sent back: error=%s", error)
                    return
                # It is still in flight here. The disk may have room later, the retry topic be writable again, or the
                # broker be back.
                logger.warning("a message cannot be sent back, tried again: error=%s", error)
                if await self._pause(TROUBLE_PAUSE_S):
                    return

    async def _pause(self, seconds: float) -> bool:
        """Wait *seconds*; return True at once when the worker is stopped."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True


@contextlib.contextmanager
def waking(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let each signal wake *loop* inside the ``with`` block, which closes the loop; in the main thread.

    Without this, a signal that another thread gets, or that comes just before the loop waits, is handled at the loop's
    next event: an idle worker would not end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    awake, wakes = socket.socketpair()
    with awake, wakes:
        awake.setblocking(False)
        wakes.setblocking(False)
        loop.add_reader(awake, awake.recv, 4096)
        before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)


async def first(wanted: Awaitable[Any], stopped: asyncio.Future[Any]) -> Any:
    """Return what *wanted* returns; None if *stopped* is done first, and *wanted* is cancelled then."""
    task = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if stopped.done():
        # Even if the message has just come: it was not begun, and is given again.
        task.cancel()
        await asyncio.wait({task})
        is_failed(task)
        return None
    return task.result()


async def ended(run: asyncio.Future[Any]) -> None:
    """Wait until a run of the handler has ended, whatever its result."""
    await asyncio.wait({run})
    is_failed(run)


def is_failed(run: asyncio.Future[Any]) -> bool:
    """Tell whether a run of the handler that has ended raised; from then on its error counts as seen."""
    return run.cancelled() or run.exception() is not None


def acknowledge(consumer: WorkerConsumer, record: Record) -> None:
    """Take a message as done, unless its queue has gone to another consumer meanwhile."""
    try:
        consumer.ack(record)
    except RequestRefused as error:
        logger.warning("a message was handled and is given again: error=%s", error)


def leave(consumer: WorkerConsumer) -> None:
    """Commit what is acknowledged, and leave the group; of a store that was closed all of it is done."""
    try:
        # A broker that is away gets the offsets from the next consumer of the group.
        with contextlib.suppress(StoreClosed, BrokerError):
            consumer.commit()
    except StoreError as error:
        # The open store has the offsets in memory. It writes them at its next interval, or raises when it closes.
        logger.warning("acknowledged messages are not on disk yet: error=%s", error)
    finally:
        consumer.close()


def log_failure(record: Record, text: str, error: BaseException | None = None) -> None:
    """Log that the handler failed with a message."""
    logger.warning(
        "the handler failed: topic=%s queue_id=%d queue_offset=%d reconsume_times=%d %s",
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.reconsume_times,
        text,
        exc_info=error,
    )
