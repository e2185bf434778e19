"""Consumer: the messages that are one consumer's share of its group's topics, in a program that has the store open.

    with store.consumer("billing", "orders", "paid || shipped") as consumer:
        for record in consumer:
            handle(record)
            consumer.acknowledge(record)      # or consumer.retry(record)

At least once: a message that was not acknowledged when its consumer goes - closed, dead, or with the whole program - is
given again, to another consumer of the group or after the next start. One that nobody refers to any more is gone, too:
Python gives a ResourceWarning, and the others get its share at the next ``flush_consumer_offset_interval``.

A broadcasting consumer is given every message, whoever else of its group is. Nobody sends a message back then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import ref

from reput.arguments import require_record, require_seconds, require_whole
from reput.consume.groups.shared_queue import SharedQueue
from reput.consume.pull.loop_arrivals import running_loop
from reput.consume.pull.topic_reader import Beginning, check_beginning
from reput.consume.registry.response_code import ResponseCode
from reput.consume.registry.subscription import Filter, Subscription, subscribe
from reput.consume.registry.topics import RETRY_PREFIX, check_consumed_topic
from reput.errors import ConfigError, OffsetOutOfRange, RequestRefused, StoreClosed
from reput.filter import parse_plain_tags
from reput.store.record.message import PutMessageResult
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.consume.groups.consumer_group import ConsumerGroup

__all__ = ["Consumer"]

numbers = count(1)
logger = logging.getLogger(__name__)


class Consumer:
    """One consumer of a group. Make it with `Store.consumer`. Any thread and any task may use it.

    Consumers of one group in a program share the queues of each topic. A queue goes to another consumer only when
    nothing of it is in flight, so its messages are in their order at any time.

    Attributes:
        in_flight_max: messages that are given and not acknowledged at most; then it waits for acknowledgements.
        closed: by `close`, or because the store was closed.
        reference: what its group knows it by, which keeps it alive only while a task waits.
    """

    # Until it has joined its group.
    closed = True

    def __init__(
        self,
        shared: ConsumerGroup,
        topics: tuple[str, ...],
        wanted: Filter,
        *,
        begin: Beginning,
        in_flight_max: int,
    ) -> None:
        if not topics:
            raise ConfigError(f"a consumer has a topic at least: group={shared.group!r}")
        require_whole("in_flight_max", in_flight_max, 1)
        check_beginning("begin", begin)
        for topic in topics:
            check_consumed_topic(topic)
        if isinstance(wanted, str):
            wanted = parse_plain_tags(wanted)
        self.shared = shared
        self.group = shared.group
        self.in_flight_max = in_flight_max
        self.client_id = f"{os.getpid()}#{next(numbers)}"
        version = time.time_ns() // 1_000_000
        retry_topic = RETRY_PREFIX + shared.group
        self.subscriptions: dict[str, Subscription] = {
            topic: subscribe(topic, wanted, sub_version=version) for topic in topics
        }
        self.begins: dict[str, Beginning] = dict.fromkeys(topics, begin)
        if not shared.broadcasts:
            self.subscriptions.setdefault(retry_topic, subscribe(retry_topic, sub_version=version))
            self.begins[retry_topic] = "earliest"
        self.queues: list[SharedQueue] = []
        self.turn = -1
        self.current: SharedQueue | None = None
        # By commit-log offset: what is in flight here, with its place.
        self.delivered: dict[int, tuple[SharedQueue, int]] = {}
        # Further places of what multi-dispatch has put into several queues that are this consumer's.
        self.delivered_again: dict[int, list[tuple[SharedQueue, int]]] = {}
        # Commit-log offsets of messages that are being sent back.
        self.sending_back: set[int] = set()
        self.changed = threading.Condition(shared.lock)
        self.tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.told_full = False
        self.reference = ref(self)
        shared.services.groups.require(shared.group)
        shared.join(self)

    # Receiving.

    def receive(self, timeout: float | None = None) -> Record | None:
        """Return the next message; None if there was none for *timeout* seconds.

        Raises:
            StoreClosed: the consumer is closed, or the store, also while this waits; or this is a forked child of its
                writer.
            RequestRefused: the group or a topic may not be read.
            DamagedStore: a record is not what the queue says of it.
            StoreError: a thread that brings messages has died.
        """
        if timeout is not None:
            require_seconds("timeout", timeout)
        with self.shared.lock:
            if self.closed:
                self.require_open()
            record = self.take()
        if record is not None:
            return record
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            self.shared.thread_count += 1
            try:
                self.shared.begin_waiting(None)
                while True:
                    self.require_open()
                    record = self.take()
                    if record is not None:
                        return record
                    self.shared.services.require_threads()
                    remaining = None if deadline is None else deadline - time.monotonic()
                    if remaining is not None and remaining <= 0:
                        return None
                    self.changed.wait(None if remaining is None else min(remaining, threading.TIMEOUT_MAX))
            finally:
                self.shared.thread_count -= 1

    async def receive_async(self, timeout: float | None = None) -> Record | None:
        """Return the next message as `receive` does; other tasks go on meanwhile."""
        require_seconds("timeout", timeout)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self.shared.lock:
                self.require_open()
                record = self.take()
                if record is not None:
                    return record
                self.shared.services.require_threads()
                future: asyncio.Future[None] = loop.create_future()
                waiter = (loop, future)
                self.tasks.append(waiter)
                self.shared.awaited.add(self)
                self.shared.begin_waiting(loop)
            timer = None
            if deadline is not None:
                if deadline <= loop.time():
                    self.forget_task(waiter)
                    return None
                timer = loop.call_at(deadline, resolve, future)
            try:
                await future
            finally:
                if timer is not None:
                    timer.cancel()
                self.forget_task(waiter)

    def forget_task(self, waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]) -> None:
        """A task waits no more."""
        with self.shared.lock:
            if waiter in self.tasks:
                self.tasks.remove(waiter)
            if not self.tasks:
                self.shared.awaited.discard(self)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        try:
            record = self.receive()
        except StoreClosed:
            if self.shared.services.store.forked_from is not None:
                raise
            raise StopIteration from None
        assert record is not None
        return record

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        try:
            record = await self.receive_async()
        except StoreClosed:
            if self.shared.services.store.forked_from is not None:
                raise
            raise StopAsyncIteration from None
        assert record is not None
        return record

    def take(self) -> Record | None:
        """Return the next message if there is one. Under the group's lock."""
        if len(self.delivered) >= self.in_flight_max:
            if not self.told_full:
                self.told_full = True
                logger.warning(
                    "the consumer waits for acknowledgements: group=%s in_flight_max=%d", self.group, self.in_flight_max
                )
            return None
        while True:
            queue = self.current
            if queue is None or queue.owner is not self.reference or queue.heir is not None or queue.fetched is None:
                queue = self.current = self.next_queue()
                if queue is None:
                    return None
            assert queue.fetched is not None
            for queue_offset, record in queue.fetched:
                queue.position = queue_offset + 1
                queue.in_flight[queue_offset] = None
                place = (queue, queue_offset)
                if self.delivered.setdefault(record.commit_log_offset, place) is not place:
                    self.delivered_again.setdefault(record.commit_log_offset, []).append(place)
                statistics = queue.statistics
                statistics.get_nums += 1
                statistics.get_size += record.record_size
                return record
            queue.position, queue.fetched = queue.next_position, None

    def next_queue(self) -> SharedQueue | None:
        """Return the next of its queues, in turn, that has a message; None if no queue has."""
        queues = self.queues
        for _ in range(len(queues)):
            self.turn = (self.turn + 1) % len(queues)
            queue = queues[self.turn]
            if queue.heir is None and (
                queue.fetched is not None
                or (queue.has_more and self.shared.fetch(queue, self.subscriptions[queue.topic]))
            ):
                return queue
        return None

    def notify(self) -> None:
        """Have whoever waits for a message look again. Under the group's lock."""
        self.changed.notify_all()
        tasks, self.tasks = self.tasks, []
        if not tasks:
            return
        self.shared.awaited.discard(self)
        current = running_loop()
        for loop, future in tasks:
            if loop is current:
                resolve(future)
            else:
                # One that was closed has nobody who waits.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(resolve, future)

    # Done, or not.

    def acknowledge(self, record: Record) -> None:
        """Take a message as done: once all before it in its queue are done, too, it is committed.

        Raises:
            RequestRefused: it is not in flight here: acknowledged before, or taken away by `rewind` or `close`.
            ConfigError: it is no message.
        """
        delivered = self.delivered
        if not isinstance(record, Record):
            # Called only then: a call costs more than the look.
            require_record(record)
        with self.shared.lock:
            was_full = len(delivered) >= self.in_flight_max
            place = delivered.pop(record.commit_log_offset, None)
            if place is None:
                raise self.not_in_flight(record)
            if self.delivered_again:
                self.deliver_again(record.commit_log_offset)
            queue, queue_offset = place
            queue.acknowledge(queue_offset)
            if queue.heir is not None and not queue.in_flight:
                self.shared.assign()
            if was_full:
                self.notify()

    def retry(
        self, record: Record, delay_level: int = 0, *, max_reconsume_times: int | None = None
    ) -> PutMessageResult | None:
        """Have the group get a message again later, and go on without it.

        Args:
            delay_level: by RocketMQ's table; 0: longer each time, from 10 s on; below 0: never, it is a dead letter.
            max_reconsume_times: after so many retries it is a dead letter; None: as the group's configuration says.

        Returns:
            Where the copy lies that comes again; None: the group has no retries or broadcasts, and the message is done.

        Raises:
            RequestRefused: the message is not in flight here, or the group may not send back.
            ConfigError: it is no message.
            StoreError: the copy could not be stored; the message is still in flight.
        """
        require_record(record)
        require_whole("delay_level", delay_level, None)
        if max_reconsume_times is not None:
            require_whole("max_reconsume_times", max_reconsume_times)
        at = record.commit_log_offset
        with self.shared.lock:
            if at not in self.delivered or at in self.sending_back:
                raise self.not_in_flight(record)
            place = self.delivered[at]
            self.sending_back.add(at)
        try:
            result = self.send_back(record, delay_level, max_reconsume_times)
            with self.shared.lock:
                # Somebody may have taken it away meanwhile: then it comes twice, and nothing is there to be done with.
                if self.delivered.get(at) is place:
                    self.acknowledge(record)
        finally:
            with self.shared.lock:
                self.sending_back.discard(at)
        return result

    def send_back(self, record: Record, delay_level: int, max_reconsume_times: int | None) -> PutMessageResult | None:
        """Store the copy of a message that comes again later; None where nothing ever does."""
        from reput.consume.delivery.send_back import send_back

        if self.shared.broadcasts:
            # The others of the group have done with it, or will. RocketMQ's client drops it, too.
            logger.warning(
                "a broadcast message that failed is dropped: group=%s topic=%s queue_id=%d queue_offset=%d",
                self.group,
                record.topic,
                record.queue_id,
                record.queue_offset,
            )
            return None
        return send_back(self.shared.services.store, self.group, record, delay_level, max_reconsume_times)

    def deliver_again(self, commit_log_offset: int) -> None:
        """Have the next place of a message that was given from several queues be the one that is in flight."""
        places = self.delivered_again.get(commit_log_offset)
        if places:
            self.delivered[commit_log_offset] = places.pop(0)
            if not places:
                del self.delivered_again[commit_log_offset]

    def not_in_flight(self, record: Record) -> RequestRefused:
        """Return what to raise for a message that is done, is being sent back, or was never given here."""
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the message is not in flight here: group={self.group!r} topic={record.topic!r} "
            f"queue_id={record.queue_id} queue_offset={record.queue_offset}",
            "It was acknowledged or sent back before, or its queue went to another consumer, which gets it again.",
        )

    def commit(self) -> None:
        """Have the group's offsets on disk as they are now; that happens every ``flush_consumer_offset_interval``, too.

        Raises:
            StoreClosed: the store was closed, which has committed everything; or this is a forked child of its writer.
            OSError: the file holds what it held before.
        """
        self.shared.services.require_open()
        self.shared.commit()
        self.shared.offsets.persist()

    def rewind(self, to: Beginning = "earliest", topic: str | None = None) -> None:
        """Have the whole group go on from another place: the first or the last message, or a store time in ms.

        A broadcasting consumer goes alone, here and with `seek`.

        What is in flight is forgotten, and given again if it lies behind that place.

        Args:
            topic: this one alone; None: all that the consumer subscribed to, but for the retries.

        Raises:
            ConfigError: *to* is no such place, or the consumer has not subscribed to *topic*.
            StoreClosed: the consumer is closed, or the store.
            DispatcherError: nobody builds the queues that say where the last message is.
        """
        check_beginning("to", to)
        self.require_open()
        if topic is not None:
            self.require_subscription(topic)
        if to != "earliest":
            self.shared.catch_up()
        topics = self.begins if topic is None else (topic,)
        for key in list(self.shared.queues):
            if key[0] in topics and (topic is not None or not key[0].startswith(RETRY_PREFIX)):
                self.shared.move(*key, self.shared.position_at(*key, to))

    def seek(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Have the whole group go on from a place in one queue.

        Raises:
            ConfigError: the consumer has not subscribed to *topic*.
            OffsetOutOfRange: the topic has no such queue, or that none of such an offset.
            StoreClosed: the consumer is closed, or the store.
        """
        require_whole("queue_id", queue_id)
        require_whole("queue_offset", queue_offset, None)
        self.require_open()
        self.require_subscription(topic)
        low, high = self.shared.bounds(topic, queue_id)
        if not low <= queue_offset <= high:
            raise OffsetOutOfRange(
                f"the queue has no such offset: topic={topic!r} queue_id={queue_id} queue_offset={queue_offset} "
                f"queue_offset_min={low} queue_offset_max={high}",
                "Give one that it has, or the one behind its last.",
            )
        self.shared.move(topic, queue_id, queue_offset)

    def require_subscription(self, topic: str) -> None:
        """Raise ConfigError unless the consumer has subscribed to *topic*."""
        if not isinstance(topic, str) or topic not in self.subscriptions:
            raise ConfigError(
                f"the consumer has not subscribed to the topic: group={self.group!r} topic={topic!r} "
                f"topics={','.join(self.begins)}",
                "Give one of its topics.",
            )

    def forget(self, queue: SharedQueue) -> None:
        """Nothing of *queue* is in flight here any more. Under the group's lock."""
        for offset in list(self.delivered_again):
            places = [place for place in self.delivered_again.pop(offset) if place[0] is not queue]
            if places:
                self.delivered_again[offset] = places
        for offset in [offset for offset, place in self.delivered.items() if place[0] is queue]:
            del self.delivered[offset]
            self.deliver_again(offset)

    def forget_all(self) -> None:
        """Nothing is in flight here, and nobody waits. Under the group's lock."""
        self.delivered.clear()
        self.delivered_again.clear()
        self.queues = []
        self.notify()

    # Life.

    def close(self) -> None:
        """Leave the group. What is not acknowledged is given again; what is, is committed.

        Raises:
            OSError: the file of a broadcasting consumer holds what it held before.
        """
        with self.shared.lock:
            if self.closed:
                return
            self.closed = True
            try:
                self.shared.leave(self.reference)
            finally:
                self.forget_all()
        if self.shared.broadcasts:
            self.shared.services.stop_broadcasting(self.shared)

    def __del__(self) -> None:
        # It may be any thread, in whatever it does, so nothing is locked: the group's keeper does the rest.
        if not self.closed:
            warnings.warn(
                f"a consumer was not closed: group={self.group!r} topics={','.join(self.begins)}",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def require_open(self) -> None:
        """Refuse what only a consumer of an open store can do.

        Raises:
            StoreClosed: it is closed, or the store is; or this is a forked child of its writer.
        """
        self.shared.services.require_open()
        if self.closed:
            raise StoreClosed(f"the consumer is closed: group={self.group!r}", "Make another with `Store.consumer`.")

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def resolve(future: asyncio.Future[None]) -> None:
    """Have the task that waits for *future* go on."""
    if not future.done():
        future.set_result(None)
