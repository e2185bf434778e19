"""QueueFetcher: reads ahead in the queues of one group, a batch at a time.

A queue that was read to its end has messages that were put a moment ago: `fetch` reads them from memory, in the calling
thread or event loop and under the group's lock. Older messages may have to come from the disk, and a filter may pass
over very many: `read_ahead` reads them in a thread, and holds the lock only while the queue changes.

SharedQueue.position ──▶ GroupReader ──▶ status ─┬─ FOUND: the batch lies in `SharedQueue.fetched`
                                                 ├─ the end: the queue has no more until it grows
                                                 └─ out of range: go on at the offset that the result names
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from reput.consume.groups.group_lock import GroupLock
from reput.consume.groups.shared_queue import SharedQueue
from reput.consume.pull.arrival_service import ArrivalService
from reput.consume.pull.group_reader import GroupReader, QueueAccess
from reput.consume.registry.subscription import Subscription
from reput.consume.registry.topics import RETRY_PREFIX
from reput.errors import DamagedStore
from reput.filter import SqlFilter, TagFilter
from reput.store.reader.results import GetMessageResult, GetMessageStatus, Records
from reput.store.record.multi_dispatch import LMQ_PREFIX
from reput.store.record.sent_record import set_first_topic
from reput_hooks import Record

__all__ = ["QueueFetcher"]

# Messages read at once, and bytes of their records if the next ones are as large as the last. A read costs something
# beside its records: with the kernel, a quarter of all that a consumer costs if only 128 messages share it.
BATCH = 512
BATCH_SIZE = 1 << 20
# So many messages are read from memory in the calling thread or event loop.
BATCH_IN_MEMORY = 128

logger = logging.getLogger(__name__)


class QueueFetcher:
    """Reads ahead for one group. All but `read_ahead` is called under the group's lock.

    Args:
        lock: the group's.
        drop: called with a queue that its topic no longer has.
    """

    def __init__(
        self,
        group: str,
        lock: GroupLock,
        reader: GroupReader,
        arrival_service: ArrivalService,
        drop: Callable[[SharedQueue], None],
    ) -> None:
        self.group = group
        self.lock = lock
        self.reader = reader
        self.arrival_service = arrival_service
        self.drop = drop

    def is_in_memory(self, queue: SharedQueue) -> bool:
        """Tell whether `fetch` reads what the queue has more without waiting for the disk or for another reader."""
        reader = self.reader
        if not queue.caught_up or reader.store.read_lock.locked():
            return False
        if reader.next_queue_offset is None:
            return True
        return reader.next_queue_offset(queue.topic, queue.queue_id) - queue.position <= BATCH_IN_MEMORY

    def fetch(self, queue: SharedQueue, subscription: Subscription) -> bool:
        """Read on in a queue until there is a message to give; return False at its end, or if the queue is gone.

        Raises:
            RequestRefused: the group or the topic may no longer be read.
            DamagedStore: the next record contradicts the queue; the records before it were given.
        """
        if not self.may_read(queue):
            return False
        while queue.has_more:
            growth_count, batch = queue.growth_count, queue.batch
            try:
                found = self.read(queue, queue.position, batch, subscription)
            except DamagedStore:
                if batch == 1:
                    raise
                queue.batch = 1
                continue
            self.take_in(queue, found, growth_count, subscription)
            if queue.fetched is not None:
                return True
        return False

    def read_ahead(self, queue: SharedQueue, subscription: Subscription) -> None:
        """Like `fetch`, in a thread without the lock. If another thread reads the queue, this one does not."""
        with self.lock:
            if queue.being_read or queue.fetched is not None:
                return
            queue.being_read = True
        try:
            while True:
                with self.lock:
                    move_count, growth_count = queue.move_count, queue.growth_count
                    at, batch = queue.position, queue.batch
                    if not queue.has_more or not self.may_read(queue):
                        return
                try:
                    found = self.read(queue, at, batch, subscription)
                except DamagedStore:
                    if batch == 1:
                        raise
                    queue.batch = 1
                    continue
                with self.lock:
                    if queue.move_count != move_count:
                        return
                    self.take_in(queue, found, growth_count, subscription)
                    if queue.fetched is not None:
                        return
        finally:
            with self.lock:
                queue.being_read = False
                if queue.owner is not None:
                    queue.owner.notify()

    def may_read(self, queue: SharedQueue) -> bool:
        """Tell whether the queue is still there, and drop it if its topic has fewer.

        Raises:
            RequestRefused: the group or the topic may no longer be read.
        """
        match self.reader.access(self.group, queue.topic, queue.queue_id):
            case QueueAccess.NO_TOPIC:
                # The topic was deleted. A later put to a topic of that name is a new arrival.
                queue.has_more = False
                return False
            case QueueAccess.NO_QUEUE:
                self.drop(queue)
                return False
            case QueueAccess.READABLE:
                return True

    def read(self, queue: SharedQueue, at: int, batch: int, subscription: Subscription) -> GetMessageResult:
        """Read up to *batch* messages from the queue offset *at* on."""
        message_filter = self.reader.message_filter(self.group, queue.topic, subscription.compiled)
        # A record holds its offset in its own queue, not in a light one.
        count_max = 1 if queue.topic.startswith(LMQ_PREFIX) else batch
        return self.reader.get(queue.topic, queue.queue_id, at, count_max, message_filter)

    def take_in(
        self, queue: SharedQueue, found: GetMessageResult, growth_count: int, subscription: Subscription
    ) -> None:
        """Set where the queue goes on, and what it has to give, by what was *found* at its position."""
        at, following = queue.position, found.next_queue_offset
        match found.status:
            case GetMessageStatus.FOUND:
                queue.next_position = following
                record_size, store_timestamp = found.records.first_stored()
                queue.batch = max(1, min(BATCH, BATCH_SIZE // record_size))
                light = following - 1 if queue.topic.startswith(LMQ_PREFIX) else None
                queue.fetched = wanted(found.records, subscription.compiled, queue, light)
                if queue.topic.startswith(RETRY_PREFIX):
                    queue.fetched = as_sent_first(queue.fetched)
                queue.statistics.look(store_timestamp)
                return
            case GetMessageStatus.OFFSET_OVERFLOW_ONE | GetMessageStatus.NO_MESSAGE_IN_QUEUE:
                queue.caught_up = True
                if queue.growth_count == growth_count:
                    queue.has_more = False
                queue.looked_again_at = self.arrival_service.look_again_if_due(
                    (queue.topic, queue.queue_id), following, queue.looked_again_at
                )
            case GetMessageStatus.OFFSET_TOO_SMALL | GetMessageStatus.OFFSET_OVERFLOW_BADLY:
                logger.warning(
                    "the queue does not have the group's next message: group=%s topic=%s queue_id=%d "
                    "queue_offset=%d queue_offset_min=%d queue_offset_max=%d",
                    self.group,
                    queue.topic,
                    queue.queue_id,
                    at,
                    found.queue_offset_min,
                    found.queue_offset_max,
                )
                queue.unfinished_end = 0
        queue.position = following


def wanted(
    records: Records, compiled: TagFilter | SqlFilter, queue: SharedQueue, light: int | None
) -> Iterator[tuple[int, Record]]:
    """Yield records of *queue* with their queue offsets, but none that is done or only shares a wanted tag's hash.

    Args:
        light: the queue offset of the only record, if the record does not hold it.
    """
    tags = compiled.tags if isinstance(compiled, TagFilter) else None
    if light is None and queue.position >= queue.unfinished_end and not tags:
        return records.with_queue_offsets()
    return wanted_of(records, tags, queue, light)


def wanted_of(
    records: Records, tags: frozenset[str] | None, queue: SharedQueue, light: int | None
) -> Iterator[tuple[int, Record]]:
    """Implement `wanted`, checking each record."""
    for record in records:
        queue_offset = record.queue_offset if light is None else light
        if queue.is_done(queue_offset) or (tags and record.properties.get("TAGS") not in tags):
            continue
        yield queue_offset, record


def as_sent_first(records: Iterator[tuple[int, Record]]) -> Iterator[tuple[int, Record]]:
    """Yield records of a retry topic with their first topic, as RocketMQ's consumers see them."""
    for queue_offset, record in records:
        set_first_topic(record)
        yield queue_offset, record
