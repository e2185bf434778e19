"""GroupMember: the group's record of one consumer.

    queues ──▶ `take` ──▶ in flight ──▶ `acknowledge` ──▶ done
                              │
                              └─ `forget`: given again

The group keeps its members, and a member holds only a weak reference to its consumer, so that the group notices when
the consumer was garbage collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from itertools import count
from typing import cast
from weakref import ref

from reput.consume.groups.group_lock import GroupLock
from reput.consume.groups.queue_fetcher import QueueFetcher
from reput.consume.groups.shared_queue import SharedQueue
from reput.consume.pull.loop_arrivals import running_loop
from reput.consume.pull.topic_reader import Beginning
from reput.consume.registry.subscription import Subscription
from reput.errors import RequestRefused
from reput.remoting.response_code import ResponseCode
from reput_hooks import Record

__all__ = ["GroupMember", "WaitingTask", "resolve"]

WaitingTask = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]

numbers = count(1)
logger = logging.getLogger(__name__)


class GroupMember:
    """One consumer's subscriptions, queues and messages in flight. The group's lock guards everything.

    Attributes:
        consumer: weak reference to the consumer.
        client_id: the consumer's id in the store.
        begins: by topic, where the group begins in queues that it never consumed.
        in_flight_max, queue_in_flight_max: limits of messages in flight, of all queues together and of each.
        queues: the consumer's queues; `turn` is the index of the last one that gave a message.
        current: the queue that gives messages now.
        unread: the queue that has to be read by `read_ahead`, without the lock, before `take` gives the next message.
        delivered: by commit-log offset, the queue and queue offset of each message in flight.
        delivered_again: further places of messages that multi-dispatch put into several of the queues.
        sending_back: commit-log offsets of messages whose copies are being stored.
        changed: notified when a thread should look for a message again.
        tasks: the tasks that wait for a message.
        closed: the member has not joined its group yet, or has left it.
    """

    def __init__(
        self,
        consumer: ref[object],
        group: str,
        subscriptions: Mapping[str, Subscription],
        begins: Mapping[str, Beginning],
        in_flight_max: int,
        queue_in_flight_max: int,
        lock: GroupLock,
        fetcher: QueueFetcher,
    ) -> None:
        self.consumer = consumer
        self.group = group
        self.client_id = f"{os.getpid()}#{next(numbers)}"
        self.subscriptions = subscriptions
        self.begins = begins
        self.in_flight_max = in_flight_max
        self.queue_in_flight_max = queue_in_flight_max
        self.fetcher = fetcher
        self.queues: list[SharedQueue] = []
        self.turn = -1
        self.current: SharedQueue | None = None
        self.unread: SharedQueue | None = None
        self.delivered: dict[int, tuple[SharedQueue, int]] = {}
        self.delivered_again: dict[int, list[tuple[SharedQueue, int]]] = {}
        self.sending_back: set[int] = set()
        self.changed = condition_of(lock)
        self.tasks: list[WaitingTask] = []
        self.told_full = False
        self.closed = True

    # Giving.

    def take(self) -> Record | None:
        """Return the next message if there is one. Without one, `unread` may name a queue to read first."""
        if len(self.delivered) >= self.in_flight_max:
            self.unread = None
            if not self.told_full:
                self.told_full = True
                logger.warning(
                    "the consumer waits for acknowledgements: group=%s in_flight_max=%d", self.group, self.in_flight_max
                )
            return None
        while True:
            queue = self.current
            if (
                queue is None
                or queue.owner is not self
                or queue.heir is not None
                or queue.fetched is None
                or len(queue.in_flight) >= self.queue_in_flight_max
            ):
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
        """Return the next queue, in turn, that has a message; None if none has, or if it is `unread`."""
        self.unread = None
        queues = self.queues
        for _ in range(len(queues)):
            self.turn = (self.turn + 1) % len(queues)
            queue = queues[self.turn]
            if queue.heir is not None or len(queue.in_flight) >= self.queue_in_flight_max:
                continue
            if queue.fetched is not None:
                return queue
            if not queue.has_more or queue.being_read:
                continue
            if not self.fetcher.is_in_memory(queue):
                self.unread = queue
                # It stays its turn until it is read.
                self.turn -= 1
                return None
            if self.fetcher.fetch(queue, self.subscriptions[queue.topic]):
                return queue
        return None

    def read_ahead(self, queue: SharedQueue) -> None:
        """Read on in *queue*, without the lock. It may take as long as the disk does.

        Raises:
            RequestRefused: the group or the topic may no longer be read.
            DamagedStore: the next record contradicts the queue; the records before it were given.
        """
        try:
            self.fetcher.read_ahead(queue, self.subscriptions[queue.topic])
        finally:
            with self.fetcher.lock:
                if queue.fetched is None and queue in self.queues:
                    # It has nothing to give, or is damaged: the others come first.
                    self.turn = self.queues.index(queue)

    # Done, or not.

    def acknowledge(self, record: Record) -> SharedQueue:
        """Mark a message as done, and return its queue.

        Raises:
            RequestRefused: the message is not in flight here.
        """
        delivered = self.delivered
        was_full = len(delivered) >= self.in_flight_max
        place = delivered.pop(record.commit_log_offset, None)
        if place is None:
            raise self.not_in_flight(record)
        if self.delivered_again:
            self.deliver_again(record.commit_log_offset)
        queue, queue_offset = place
        was_full = was_full or len(queue.in_flight) == self.queue_in_flight_max
        queue.acknowledge(queue_offset)
        if was_full:
            self.notify()
        return queue

    def deliver_again(self, commit_log_offset: int) -> None:
        """Put the next place of a message given from several queues in flight."""
        places = self.delivered_again.get(commit_log_offset)
        if places:
            self.delivered[commit_log_offset] = places.pop(0)
            if not places:
                del self.delivered_again[commit_log_offset]

    def not_in_flight(self, record: Record) -> RequestRefused:
        """Return the error for a message that is done, is being sent back, or was never given here."""
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the message is not in flight here: group={self.group!r} topic={record.topic!r} "
            f"queue_id={record.queue_id} queue_offset={record.queue_offset}",
            "It was acknowledged or sent back before, or its queue went to another consumer, which gets it again.",
        )

    def forget(self, queue: SharedQueue) -> None:
        """Forget the messages of *queue* in flight."""
        for offset in list(self.delivered_again):
            places = [place for place in self.delivered_again.pop(offset) if place[0] is not queue]
            if places:
                self.delivered_again[offset] = places
        for offset in [offset for offset, place in self.delivered.items() if place[0] is queue]:
            del self.delivered[offset]
            self.deliver_again(offset)

    def forget_all(self) -> None:
        """Forget all queues and messages in flight, and end all waits."""
        self.delivered.clear()
        self.delivered_again.clear()
        self.queues = []
        self.notify()

    # Waiting.

    def notify(self) -> None:
        """Wake the threads and tasks that wait for a message, to look again."""
        self.changed.notify_all()
        tasks, self.tasks = self.tasks, []
        if not tasks:
            return
        current = running_loop()
        for loop, future in tasks:
            if loop is current:
                resolve(future)
            else:
                # The loop was closed, so no task waits in it.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(resolve, future)

    def forget_task(self, waiter: WaitingTask) -> None:
        """Remove a task that no longer waits."""
        if waiter in self.tasks:
            self.tasks.remove(waiter)

    def end_in_child(self, lock: GroupLock) -> None:
        """Close the member in a forked child of the writer."""
        self.closed = True
        self.changed = condition_of(lock)
        self.tasks = []
        self.forget_all()


def condition_of(lock: GroupLock) -> threading.Condition:
    """Return a condition of the group's lock, which has all that a condition asks of an `RLock`."""
    return threading.Condition(cast(threading.RLock, lock))


def resolve(future: asyncio.Future[None]) -> None:
    """Resume the task that waits for *future*."""
    if not future.done():
        future.set_result(None)
