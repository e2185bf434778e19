"""RemoteConsumer: one consumer's share of the messages of its group's topics, through brokers.

with client.consumer("billing", "orders", "paid || shipped") as consumer:
    for record in consumer:
        handle(record)
        consumer.ack(record)      # or consumer.nack(record)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeAlias, TypeVar

from reput.argument_checks import require_record, require_seconds, require_whole
from reput.client.background_loop import run_in
from reput.client.group_session import GroupSession
from reput.client.remote_queue import RemoteQueue
from reput.closing_block import ClosingBlock
from reput.consume.pull.topic_reader import Beginning, check_beginning
from reput.errors import ConfigError, RequestRefused, StoreClosed
from reput.remoting.response_code import ResponseCode
from reput_hooks import Record

__all__ = ["RemoteConsumer"]

# Messages to take from one queue before the next queue's turn.
TURN = 32
SEND_BACK_TIMEOUT_S = 5.0

# A message in flight: its queue, its queue offset there, and itself.
Place: TypeAlias = tuple[RemoteQueue, int, Record]
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class RemoteConsumer(ClosingBlock):
    """One consumer of a group. Make it with `Client.consumer`; any thread and any task may use it.

    The consumers of a group, in all programs and languages, share the queues of each topic by RocketMQ's rules.
    Delivery is at least once: when a queue moves to another consumer, its unacknowledged messages are delivered there.

    It has the methods of `Consumer`. A method that may wait has a coroutine twin with the prefix ``a``.
    """

    def __init__(self, group: str, in_flight_max: int, queue_in_flight_max: int) -> None:
        """Programs call `Client.consumer` instead. *queue_in_flight_max* is the limit for one queue."""
        self._group = group
        self._in_flight_max = in_flight_max
        self._queue_in_flight_max = queue_in_flight_max
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._ready: deque[RemoteQueue] = deque()
        self._turn = 0
        # Messages in flight by commit-log offset. Two brokers may use the same offset: see `_deliver_too`.
        self._delivered: dict[int, Place] = {}
        self._delivered_too: dict[int, list[Place]] = {}
        self._sending_back: set[tuple[RemoteQueue, int]] = set()
        self._closed = True
        self._session: GroupSession
        self._on_close: Callable[[RemoteConsumer], None] = lambda consumer: None

    async def _start(self, session: GroupSession, on_close: Callable[[RemoteConsumer], None]) -> None:
        """Join the group. Call it in the loop that the consumer belongs to."""
        self._session = session
        self._on_close = on_close
        session.session.on_end = self._ended
        self._closed = False
        open_consumers.add(self)
        try:
            await session.start()
        except BaseException:
            self._closed = True
            raise

    @property
    def group(self) -> str:
        """The name of the consumer's group."""
        return self._group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the consumer has subscribed to, the retry topic of its group included."""
        return tuple(self._session.subscriptions)

    @property
    def in_flight_max(self) -> int:
        """The limit of messages in flight; at the limit, the consumer returns no more until one is acknowledged."""
        return self._in_flight_max

    @property
    def closed(self) -> bool:
        """Whether the consumer or its client was closed."""
        return self._closed

    # Receiving.

    def receive(self, timeout: float | None = None) -> Record | None:
        """Return the next message; None if none came within *timeout* seconds.

        If brokers cannot be reached, this waits for them.

        Raises:
            StoreClosed: the consumer or the client is closed, before the call or during its wait.
        """
        require_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                self._require_open()
                record = self._take()
                if record is not None:
                    return record
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                self._changed.wait(None if remaining is None else min(remaining, threading.TIMEOUT_MAX))

    async def areceive(self, timeout: float | None = None) -> Record | None:
        """Like `receive`, for a task."""
        require_seconds("timeout", timeout)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self._lock:
                self._require_open()
                record = self._take()
                if record is not None:
                    return record
                if deadline is not None and deadline <= loop.time():
                    return None
                future: asyncio.Future[None] = loop.create_future()
                waiter = (loop, future)
                self._tasks.append(waiter)
            timer = None if deadline is None else loop.call_at(deadline, resolve, future)
            try:
                await future
            finally:
                if timer is not None:
                    timer.cancel()
                with self._lock:
                    if waiter in self._tasks:
                        self._tasks.remove(waiter)

    def __iter__(self) -> Iterator[Record]:
        """Return the consumer itself: iterating receives messages until the consumer or the client is closed."""
        return self

    def __next__(self) -> Record:
        try:
            record = self.receive()
        except StoreClosed:
            raise StopIteration from None
        assert record is not None
        return record

    def __aiter__(self) -> AsyncIterator[Record]:
        """Return the consumer itself: iterating receives messages until the consumer or the client is closed."""
        return self

    async def __anext__(self) -> Record:
        try:
            record = await self.areceive()
        except StoreClosed:
            raise StopAsyncIteration from None
        assert record is not None
        return record

    def _take(self) -> Record | None:
        """Return the next message if there is one. Under the lock."""
        delivered = self._delivered
        ready = self._ready
        while ready and not ready[0].buffer:
            # The session has forgotten the messages of a queue that another consumer gets.
            ready.popleft()
            self._turn = 0
        if not ready or len(delivered) >= self._in_flight_max:
            return None
        queue = ready[0]
        queue_offset, record = queue.take()
        place = (queue, queue_offset, record)
        if delivered.setdefault(record.commit_log_offset, place) is not place:
            self._delivered_too.setdefault(record.commit_log_offset, []).append(place)
        self._turn += 1
        if not queue.buffer or len(queue.in_flight) >= self._queue_in_flight_max:
            ready.popleft()
            self._turn = 0
        elif self._turn >= TURN:
            ready.rotate(-1)
            self._turn = 0
        if queue.is_full and queue.makes_room:
            queue.is_full = False
            self._call_soon(queue.has_room.set)
        return record

    def _call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the consumer's loop."""
        with contextlib.suppress(RuntimeError):
            self._session.loop.call_soon_threadsafe(function)

    def _came(self, queue: RemoteQueue) -> None:
        """Start to return the messages of a queue. Under the lock."""
        if queue not in self._ready and len(queue.in_flight) < self._queue_in_flight_max:
            self._ready.append(queue)
        self._notify()

    def _gone(self, queue: RemoteQueue) -> None:
        """Forget the messages of a queue. Under the lock."""
        if queue in self._ready:
            self._ready.remove(queue)
            self._turn = 0
        for offset in list(self._delivered_too):
            places = [place for place in self._delivered_too.pop(offset) if place[0] is not queue]
            if places:
                self._delivered_too[offset] = places
        for offset in [offset for offset, place in self._delivered.items() if place[0] is queue]:
            del self._delivered[offset]
            self._deliver_too(offset)
        self._notify()

    def _deliver_too(self, commit_log_offset: int) -> None:
        """Deliver the next message at a commit-log offset that messages of several brokers have."""
        places = self._delivered_too.get(commit_log_offset)
        if places:
            self._delivered[commit_log_offset] = places.pop(0)
            if not places:
                del self._delivered_too[commit_log_offset]

    def _notify(self) -> None:
        """Wake the threads and tasks that wait for a message. Under the lock."""
        self._changed.notify_all()
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        try:
            current = asyncio.get_running_loop()
        except RuntimeError:
            current = None
        for loop, future in tasks:
            if loop is current:
                resolve(future)
            else:
                # The loop was closed, so no task waits in it.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(resolve, future)

    # Acknowledging and sending back.

    def ack(self, record: Record) -> None:
        """Acknowledge a message: it is done. The group's offset is committed every 5 s, by `commit`, and at the end.

        Raises:
            RequestRefused: the message is not in flight here: it was acknowledged before, or its queue has gone to
                another consumer.
            ConfigError: *record* is not a message.
        """
        if not isinstance(record, Record):
            require_record(record)
        with self._lock:
            place = self._place_of(record)
            was_full = len(self._delivered) >= self._in_flight_max
            self._forget(place)
            queue = place[0]
            queue.acknowledge(place[1])
            if len(queue.in_flight) + 1 == self._queue_in_flight_max and queue.buffer:
                self._came(queue)
            elif was_full:
                self._notify()

    acknowledge = ack

    def _place_of(self, record: Record) -> Place:
        """Return the place of a message in flight. Under the lock.

        Raises:
            RequestRefused: the message is not in flight here.
        """
        place = self._delivered.get(record.commit_log_offset)
        if place is not None and self._delivered_too:
            places = (place, *self._delivered_too.get(record.commit_log_offset, ()))
            place = next((found for found in places if found[2].store_host == record.store_host), None)
        if place is None or place[1] != record.queue_offset:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the message is not in flight here: group={self.group!r} topic={record.topic!r} "
                f"queue_id={record.queue_id} queue_offset={record.queue_offset}",
                "It was acknowledged or sent back before, or its queue and the message went to another consumer.",
            )
        return place

    def _forget(self, place: Place) -> None:
        """Take a message out of those in flight. Under the lock."""
        offset = place[2].commit_log_offset
        if self._delivered[offset] is place:
            del self._delivered[offset]
            if self._delivered_too:
                self._deliver_too(offset)
        else:
            self._delivered_too[offset].remove(place)

    def nack(self, record: Record, delay_level: int = 0, *, max_reconsume_times: int | None = None) -> None:
        """Send a message back: the group continues without it now, and gets it again later.

        If its broker does not have the message any more, or does not answer, a copy is sent to the group's retry topic.
        A broadcasting consumer drops it, as RocketMQ's clients do: the other consumers receive it anyway.

        Args:
            delay_level: a level of RocketMQ's table; 0: a longer delay each time, from 10 s on; negative: the message
                becomes a dead letter at once.
            max_reconsume_times: number of retries before it is a dead letter; None: as the group's configuration says.

        Raises:
            RequestRefused: the message is not in flight here, or the broker refuses.
            BrokerError: the broker cannot be reached, or cannot store the copy now; the message is still in flight.
            ConfigError: an argument is wrong.
        """
        self._run(self.anack(record, delay_level, max_reconsume_times=max_reconsume_times))

    retry = nack

    async def anack(self, record: Record, delay_level: int = 0, *, max_reconsume_times: int | None = None) -> None:
        """Like `nack`, for a task."""
        require_record(record)
        require_whole("delay_level", delay_level, None)
        if max_reconsume_times is not None:
            require_whole("max_reconsume_times", max_reconsume_times)
        with self._lock:
            place = self._place_of(record)
            key = place[:2]
            if key in self._sending_back:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the message is being sent back already")
            self._sending_back.add(key)
        try:
            await self._in_loop(self._session.send_back(place[0], record, delay_level, max_reconsume_times))
            with self._lock, contextlib.suppress(RequestRefused):
                # If the queue has moved to another consumer meanwhile, there is nothing to acknowledge.
                if self._place_of(record) is place:
                    self.ack(record)
        finally:
            with self._lock:
                self._sending_back.discard(key)

    # Places.

    def commit(self) -> None:
        """Commit the acknowledged messages: at the brokers, or in the file of a broadcasting consumer.

        Raises:
            BrokerError: a broker cannot be reached.
            StoreClosed: the consumer or the client is closed.
            StoreError: the file could not be written, and is unchanged.
        """
        self._run(self.acommit())

    async def acommit(self) -> None:
        """Like `commit`, for a task."""
        self._require_open()
        await self._in_loop(self._session.commit())

    def rewind(self, to: Beginning = "earliest", topic: str | None = None) -> None:
        """Move this consumer's queues: "earliest", "latest" (past the last message), or a store time in ms since 1970.

        Messages in flight are forgotten, and delivered again if they are at or after that place. Queues of the group's
        other consumers are not moved; `reput group reset` moves the whole group.

        Args:
            topic: move only in this topic; None: in all that the consumer has subscribed to, except the retry topic.

        Raises:
            ConfigError: *to* is not such a place, or the consumer has not subscribed to *topic*.
            BrokerError: a broker cannot be reached.
            StoreClosed: the consumer or the client is closed.
        """
        self._run(self.arewind(to, topic))

    async def arewind(self, to: Beginning = "earliest", topic: str | None = None) -> None:
        """Like `rewind`, for a task."""
        check_beginning("to", to)
        self._require_open()
        if topic is not None:
            self._require_subscription(topic)
        await self._in_loop(self._session.rewind(to, topic))

    def seek(self, topic: str, queue_id: int, queue_offset: int, *, broker_name: str | None = None) -> None:
        """Move to a place in one of this consumer's queues.

        Args:
            broker_name: needed if several brokers have such a queue.

        Raises:
            ConfigError: the consumer has not subscribed to *topic*.
            OffsetOutOfRange: this consumer does not have the queue, or the queue has no such offset.
            StoreClosed: the consumer or the client is closed.
        """
        self._run(self.aseek(topic, queue_id, queue_offset, broker_name=broker_name))

    async def aseek(self, topic: str, queue_id: int, queue_offset: int, *, broker_name: str | None = None) -> None:
        """Like `seek`, for a task."""
        require_whole("queue_id", queue_id)
        require_whole("queue_offset", queue_offset, None)
        self._require_open()
        self._require_subscription(topic)
        await self._in_loop(self._session.seek(topic, queue_id, queue_offset, broker_name))

    # Life.

    def close(self) -> None:
        """Leave the group. A queue is committed up to its first unacknowledged message, which is delivered again."""
        if not self._closed:
            self._run(self.aclose())

    async def aclose(self) -> None:
        """Like `close`, for a task."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            await self._in_loop(self._session.close())
        finally:
            self._ended()

    def _ended(self) -> None:
        """Refuse further calls, because the consumer was closed, or its loop has ended."""
        self._closed = True
        self._on_close(self)
        with self._lock:
            self._ready.clear()
            self._delivered.clear()
            self._delivered_too.clear()
            self._notify()

    def _end(self) -> None:
        """Stop in a forked child, without closing the connections, which belong to the parent."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = True
        self._tasks = []

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the consumer's loop; the calling thread waits."""
        return run_in(self._session.loop, coroutine)

    async def _in_loop(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the consumer's loop; the calling task waits, also in another loop."""
        loop = self._session.loop
        if asyncio.get_running_loop() is loop:
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))

    def _require_subscription(self, topic: str) -> None:
        """Raise ConfigError unless the consumer has subscribed to *topic*."""
        if not isinstance(topic, str) or topic not in self._session.subscriptions:
            raise ConfigError(
                f"the consumer has not subscribed to the topic: group={self.group!r} topic={topic!r} "
                f"topics={','.join(self.topics)}",
                "Give one of its topics.",
            )

    def _require_open(self) -> None:
        """Refuse calls on a closed consumer or client.

        Raises:
            StoreClosed: the consumer or the client is closed.
        """
        if self._closed:
            raise StoreClosed(f"the consumer is closed: group={self.group!r}", "Make another with `Client.consumer`.")


open_consumers: weakref.WeakSet[RemoteConsumer] = weakref.WeakSet()


def end_in_child() -> None:
    """End the consumers in a forked child."""
    for consumer in open_consumers:
        consumer._end()


os.register_at_fork(after_in_child=end_in_child)


def resolve(future: asyncio.Future[None]) -> None:
    """Resume the task that waits for *future*."""
    if not future.done():
        future.set_result(None)
