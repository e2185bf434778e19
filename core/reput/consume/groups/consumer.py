"""Consumer: one consumer's share of the messages of its group's topics, in the program that has the store open.

with store.consumer("billing", "orders", "paid || shipped") as consumer:
    for record in consumer:
        handle(record)
        consumer.ack(record)      # or consumer.nack(record)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from weakref import ref

from reput.argument_checks import require_record, require_seconds, require_whole
from reput.closing_block import ClosingBlock
from reput.consume.delivery.send_back import send_back
from reput.consume.groups.consumer_group import ConsumerGroup
from reput.consume.groups.group_lock import kernel_lock
from reput.consume.groups.group_member import resolve
from reput.consume.pull.topic_reader import Beginning, check_beginning
from reput.consume.registry.subscription import Filter
from reput.consume.registry.topics import RETRY_PREFIX
from reput.errors import ConfigError, OffsetOutOfRange, StoreClosed
from reput.in_thread import in_thread
from reput.kernel import kernel
from reput.store.record.message import PutMessageResult
from reput.store.record.sent_record import record_maker
from reput_hooks import Record

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)


class Consumer(ClosingBlock):
    """One consumer of a group. Make it with `Store.consumer`; any thread and any task may use it.

    The consumers of a group share the queues of each topic. A queue goes to another consumer only when none of its
    messages is in flight, so its messages keep their order.

    A message is *in flight* from its `receive` to its `ack` or `nack`. Delivery is at least once: a message that is in
    flight when its consumer closes or the program ends is delivered again, to another consumer of the group or after
    the next start. Acknowledged messages may be delivered again as well: those after it in its queue, and after a kill
    those since the last `commit`.

    A broadcasting consumer receives every message and shares with no other. Nothing is sent back for it.

    A consumer that the program no longer refers to is closed within ``flush_consumer_offset_interval``, with a
    ResourceWarning.

    A method that may wait has a coroutine twin with the prefix ``a``: `receive` and `areceive`, `close` and `aclose`.
    """

    def __init__(
        self,
        shared: ConsumerGroup,
        topics: tuple[str, ...],
        wanted: Filter,
        *,
        begin: Beginning,
        in_flight_max: int,
        queue_in_flight_max: int | None = None,
    ) -> None:
        self._shared = shared
        self._member = shared.new_member(
            ref(self),
            topics,
            wanted,
            begin=begin,
            in_flight_max=in_flight_max,
            queue_in_flight_max=queue_in_flight_max,
        )
        found, lock = kernel(), kernel_lock(shared.lock)
        self._kernel = (
            None if found is None or lock is None else found.KernelConsumer(lock, self._member, record_maker())
        )
        shared.join(self._member)

    @property
    def group(self) -> str:
        """The name of the consumer's group."""
        return self._shared.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the consumer has subscribed to, the retry topic of its group included."""
        return tuple(self._member.begins)

    @property
    def in_flight_max(self) -> int:
        """The limit of messages in flight; at the limit, `receive` waits until one is acknowledged."""
        return self._member.in_flight_max

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed, or its store."""
        return self._member.closed

    # Receiving.

    def receive(self, timeout: float | None = None) -> Record | None:
        """Return the next message; None if none came within *timeout* seconds. Without a timeout this waits for one.

        Raises:
            StoreClosed: the consumer or the store is closed, also during the wait; or this is a forked child of the
                store's process.
            RequestRefused: the group or a topic may not be read.
            DamagedStore: a record contradicts the queue.
            StoreError: a file cannot be read, or a thread of the store that announces messages has died.
        """
        # Most are a float. A call to check that would cost as much as a fifth of the rest.
        if timeout is not None and (timeout.__class__ is not float or timeout != timeout):
            require_seconds("timeout", timeout)
        if self._kernel is not None:
            record: Record | None = self._kernel.take()
            if record is not None:
                return record
        shared, member = self._shared, self._member
        with shared.lock:
            if member.closed:
                self._require_open()
            record = member.take()
        if record is not None:
            return record
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with member.changed:
                shared.thread_count += 1
                try:
                    shared.begin_waiting(None)
                    while True:
                        self._require_open()
                        record = member.take()
                        if record is not None:
                            return record
                        queue = member.unread
                        if queue is not None:
                            break
                        shared.services.require_threads()
                        remaining = None if deadline is None else deadline - time.monotonic()
                        if remaining is not None and remaining <= 0:
                            return None
                        member.changed.wait(None if remaining is None else min(remaining, threading.TIMEOUT_MAX))
                finally:
                    shared.thread_count -= 1
            member.read_ahead(queue)

    async def areceive(self, timeout: float | None = None) -> Record | None:
        """Like `receive`, for a task."""
        require_seconds("timeout", timeout)
        shared, member = self._shared, self._member
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        if self._kernel is not None:
            record: Record | None = self._kernel.take()
            if record is not None:
                return record
        while True:
            with shared.lock:
                self._require_open()
                record = member.take()
                if record is not None:
                    return record
                queue = member.unread
                if queue is None:
                    shared.services.require_threads()
                    if deadline is not None and deadline <= loop.time():
                        return None
                    future: asyncio.Future[None] = loop.create_future()
                    waiter = (loop, future)
                    member.tasks.append(waiter)
                    shared.begin_waiting(loop)
            if queue is not None:
                await in_thread(member.read_ahead, queue)
                continue
            timer = None if deadline is None else loop.call_at(deadline, resolve, future)
            try:
                await future
            finally:
                if timer is not None:
                    timer.cancel()
                with shared.lock:
                    member.forget_task(waiter)

    def __iter__(self) -> Iterator[Record]:
        """Return the consumer itself: iterating receives messages until the consumer or the store is closed."""
        return self

    def __next__(self) -> Record:
        try:
            record = self.receive()
        except StoreClosed:
            if self._shared.services.store.forked_from is not None:
                raise
            raise StopIteration from None
        assert record is not None
        return record

    def __aiter__(self) -> AsyncIterator[Record]:
        """Return the consumer itself: iterating receives messages until the consumer or the store is closed."""
        return self

    async def __anext__(self) -> Record:
        try:
            record = await self.areceive()
        except StoreClosed:
            if self._shared.services.store.forked_from is not None:
                raise
            raise StopAsyncIteration from None
        assert record is not None
        return record

    # Done, or not.

    def ack(self, record: Record) -> None:
        """Acknowledge a message: it is done. A queue's committed offset is that of its first message that is not done.

        This changes memory only and never waits, so tasks call it, too.

        Raises:
            RequestRefused: the message is not in flight here: it was acknowledged before, or `rewind`, `seek` or
                `close` took it away.
            ConfigError: *record* is no message.
        """
        if self._kernel is not None and self._kernel.acknowledge(record):
            return
        if not isinstance(record, Record):
            # Checked here, because the call costs more than the check.
            require_record(record)
        shared = self._shared
        with shared.lock:
            queue = self._member.acknowledge(record)
            if queue.heir is not None and not queue.in_flight:
                shared.assign()

    acknowledge = ack

    def nack(
        self, record: Record, delay_level: int = 0, *, max_reconsume_times: int | None = None
    ) -> PutMessageResult | None:
        """Send a message back: the group continues without it now, and gets it again later.

        Args:
            delay_level: a level of ``message_delay_level``; 0: a longer delay each time, from 10 s on; negative: the
                message becomes a dead letter at once.
            max_reconsume_times: number of retries before it is a dead letter; None: as the group's configuration says.

        Returns:
            Where the copy is stored; None: the group has no retries, or broadcasts, so the message is done.

        Raises:
            RequestRefused: the message is not in flight here, or the group may not send back.
            ConfigError: *record* is no message.
            StoreError: the copy could not be stored; the message is still in flight.
        """
        require_record(record)
        require_whole("delay_level", delay_level, None)
        if max_reconsume_times is not None:
            require_whole("max_reconsume_times", max_reconsume_times)
        at = record.commit_log_offset
        shared, member = self._shared, self._member
        with shared.lock:
            if at not in member.delivered or at in member.sending_back:
                raise member.not_in_flight(record)
            place = member.delivered[at]
            member.sending_back.add(at)
        try:
            result = self._send_back(record, delay_level, max_reconsume_times)
            with shared.lock:
                # If a rewind or a close took it away meanwhile, it is delivered twice, and there is nothing to
                # acknowledge.
                if member.delivered.get(at) is place:
                    self.ack(record)
        finally:
            with shared.lock:
                member.sending_back.discard(at)
        return result

    retry = nack

    async def anack(
        self, record: Record, delay_level: int = 0, *, max_reconsume_times: int | None = None
    ) -> PutMessageResult | None:
        """Like `nack`, for a task. The copy is stored also if the task is cancelled meanwhile."""
        return await in_thread(self.nack, record, delay_level, max_reconsume_times=max_reconsume_times)

    # Places.

    def commit(self) -> None:
        """Write the group's offsets to disk. The store does so every ``flush_consumer_offset_interval``, too.

        Raises:
            StoreClosed: the store was closed, which has committed everything; or this is a forked child of its process.
            StoreError: the file could not be written, for example on a full disk. It is unchanged.
        """
        self._shared.services.require_open()
        self._shared.commit()
        self._shared.offsets.persist()

    async def acommit(self) -> None:
        """Like `commit`, for a task."""
        await in_thread(self.commit)

    def rewind(self, to: Beginning = "earliest", topic: str | None = None) -> None:
        """Move the whole group: "earliest", "latest" (past the last message), or a store time in ms since 1970.

        Messages in flight are forgotten, and delivered again if they are at or after that place. A broadcasting
        consumer moves alone, here and with `seek`.

        Args:
            topic: move only in this topic; None: in all that the consumer has subscribed to, except the retry topic.

        Raises:
            ConfigError: *to* is not such a place, or the consumer has not subscribed to *topic*.
            StoreClosed: the consumer or the store is closed.
            DispatcherError: no dispatcher builds the queues, so the place cannot be found.
        """
        check_beginning("to", to)
        self._require_open()
        if topic is not None:
            self._require_subscription(topic)
        shared = self._shared
        if to != "earliest":
            shared.catch_up()
        topics = self._member.begins if topic is None else (topic,)
        for key in list(shared.queues):
            if key[0] in topics and (topic is not None or not key[0].startswith(RETRY_PREFIX)):
                shared.move(*key, shared.position_at(*key, to))

    async def arewind(self, to: Beginning = "earliest", topic: str | None = None) -> None:
        """Like `rewind`, for a task."""
        await in_thread(self.rewind, to, topic)

    def seek(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Move the whole group to a place in one queue.

        Raises:
            ConfigError: the consumer has not subscribed to *topic*.
            OffsetOutOfRange: the topic has no such queue, or the queue no such offset.
            StoreClosed: the consumer or the store is closed.
        """
        require_whole("queue_id", queue_id)
        require_whole("queue_offset", queue_offset, None)
        self._require_open()
        self._require_subscription(topic)
        low, high = self._shared.bounds(topic, queue_id)
        if not low <= queue_offset <= high:
            raise OffsetOutOfRange(
                f"the queue has no such offset: topic={topic!r} queue_id={queue_id} queue_offset={queue_offset} "
                f"queue_offset_min={low} queue_offset_max={high}",
                "Give an offset of the queue, or its end offset.",
            )
        self._shared.move(topic, queue_id, queue_offset)

    async def aseek(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Like `seek`, for a task."""
        await in_thread(self.seek, topic, queue_id, queue_offset)

    # Life.

    def close(self) -> None:
        """Leave the group. A queue is committed up to its first unacknowledged message, which is delivered again.

        Raises:
            StoreError: the offset file of a broadcasting consumer could not be written, and is unchanged.
        """
        self._shared.close_member(self._member)

    def __del__(self) -> None:
        # Any thread may run this at any moment, so it takes no lock; the offset keeper does the rest.
        member = getattr(self, "_member", None)
        if member is not None and not member.closed:
            warnings.warn(
                f"a consumer was not closed: group={self.group!r} topics={','.join(self.topics)}",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _send_back(self, record: Record, delay_level: int, max_reconsume_times: int | None) -> PutMessageResult | None:
        """Store the copy of a message for redelivery; return None if there is none."""
        if self._shared.broadcasts:
            # The other consumers of the group receive the message anyway. RocketMQ's client drops it, too.
            logger.warning(
                "a failed broadcast message is dropped: group=%s topic=%s queue_id=%d queue_offset=%d",
                self.group,
                record.topic,
                record.queue_id,
                record.queue_offset,
            )
            return None
        return send_back(self._shared.services.store, self.group, record, delay_level, max_reconsume_times)

    def _require_subscription(self, topic: str) -> None:
        """Raise ConfigError unless the consumer has subscribed to *topic*."""
        if not isinstance(topic, str) or topic not in self._member.subscriptions:
            raise ConfigError(
                f"the consumer has not subscribed to the topic: group={self.group!r} topic={topic!r} "
                f"topics={','.join(self.topics)}",
                "Give one of its topics.",
            )

    def _require_open(self) -> None:
        """Refuse calls on a closed consumer or store.

        Raises:
            StoreClosed: the consumer or the store is closed; or this is a forked child of the store's process.
        """
        self._shared.services.require_open()
        if self._member.closed:
            raise StoreClosed(f"the consumer is closed: group={self.group!r}", "Make another with `Store.consumer`.")
