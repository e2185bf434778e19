"""ConsumerGroup: one group's consumers in this program, and how they share its queues.

Source of the sharing: RocketMQ client, AllocateMessageQueueAveragely.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable
from functools import partial
from typing import Protocol
from weakref import ref

from reput.argument_checks import require_whole
from reput.consume.groups.consumable_store import ConsumableStore
from reput.consume.groups.group_lock import GroupLock, kernel_lock, new_group_lock
from reput.consume.groups.group_member import GroupMember
from reput.consume.groups.local_offset_store import LocalFileOffsetStore
from reput.consume.groups.queue_fetcher import QueueFetcher
from reput.consume.groups.shared_queue import SharedQueue
from reput.consume.pull.arrival_service import CONSUME_QUEUE, ArrivalService, Watch
from reput.consume.pull.group_reader import GroupReader
from reput.consume.pull.topic_reader import Beginning, check_beginning
from reput.consume.registry.config_managers import ConfigManagers
from reput.consume.registry.consumer_manager import BROADCASTING, CLUSTERING, ConsumerManager
from reput.consume.registry.statistics import Statistics
from reput.consume.registry.subscription import Filter, Subscription, subscribe
from reput.consume.registry.subscription_groups import SubscriptionGroups
from reput.consume.registry.topics import RETRY_PREFIX, Topics, check_consumed_topic
from reput.errors import ConfigError, OffsetOutOfRange, ReputError
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.disk.shortages import do_all, tell_read_error

__all__ = ["ConsumerGroup", "GroupServices"]

CATCH_UP_S = 60.0

logger = logging.getLogger(__name__)


class GroupServices(Protocol):
    """The part of the store's services that a group needs."""

    store: ConsumableStore
    managers: ConfigManagers
    topics: Topics
    groups: SubscriptionGroups
    statistics: Statistics
    consumer_manager: ConsumerManager
    group_reader: GroupReader
    arrival_service: ArrivalService

    def require_open(self) -> None:
        """Raise if the store was closed."""

    def require_threads(self) -> None:
        """Raise if a thread that would announce messages has died."""

    def stop_broadcasting(self, shared: ConsumerGroup) -> None:
        """Remove a broadcasting consumer that leaves, and save its offsets."""


class ConsumerGroup:
    """One group, or one broadcasting consumer of a group, which has queues and offsets of its own.

    Any thread may call; `lock` guards the group, its queues, and the queue state of its consumers.

    Args:
        offsets: a broadcasting consumer's own offsets; None: the group's offsets in the store.
        lock: shared by the group's broadcasting consumers, because they share statistics.
    """

    def __init__(
        self,
        services: GroupServices,
        group: str,
        *,
        offsets: LocalFileOffsetStore | None = None,
        lock: GroupLock | None = None,
    ) -> None:
        self.services = services
        self.group = group
        self.broadcasts = offsets is not None
        self.offsets: ConsumerOffsetManager = services.managers.offsets if offsets is None else offsets
        self.lock = lock or new_group_lock()
        self.fetcher = QueueFetcher(group, self.lock, services.group_reader, services.arrival_service, self.drop_queue)
        # In order of joining.
        self.members: list[GroupMember] = []
        self.queues: dict[tuple[str, int], SharedQueue] = {}
        self.begins: dict[str, Beginning] = {}
        # Topics already reported to have fewer queues than consumers.
        self.told_crowded: set[str] = set()
        self.watch: Watch | None = None
        # Number of threads that wait for a message.
        self.thread_count = 0

    # Members.

    @property
    def consumers(self) -> list[GroupMember]:
        """The members whose consumers the program still refers to."""
        return [member for member in self.members if member.consumer() is not None]

    def new_member(
        self,
        consumer: ref[object],
        topics: tuple[str, ...],
        wanted: Filter,
        *,
        begin: Beginning,
        in_flight_max: int,
        queue_in_flight_max: int | None = None,
    ) -> GroupMember:
        """Return a member for a consumer of *topics*; it has not joined yet.

        Raises:
            ConfigError: *topics* is empty, or a number or beginning is invalid.
            RequestRefused: INVALID_PARAMETER; a topic's name is illegal.
        """
        if not topics:
            raise ConfigError(f"a consumer needs at least one topic: group={self.group!r}")
        require_whole("in_flight_max", in_flight_max, 1)
        check_beginning("begin", begin)
        for topic in topics:
            check_consumed_topic(topic)
        version = time.time_ns() // 1_000_000
        subscriptions = {topic: subscribe(topic, wanted, sub_version=version) for topic in topics}
        begins: dict[str, Beginning] = dict.fromkeys(topics, begin)
        if not self.broadcasts:
            retry_topic = RETRY_PREFIX + self.group
            subscriptions.setdefault(retry_topic, subscribe(retry_topic, sub_version=version))
            begins[retry_topic] = "earliest"
        return GroupMember(
            consumer,
            self.group,
            subscriptions,
            begins,
            in_flight_max,
            in_flight_max if queue_in_flight_max is None else queue_in_flight_max,
            self.lock,
            self.fetcher,
        )

    def join(self, member: GroupMember) -> None:
        """Add a consumer to the group and assign its share of the queues.

        Raises:
            ConfigError: other consumers of the group use another filter for a topic.
            RequestRefused: the group is not allowed to consume.
            DispatcherError: it does not begin at the earliest message, and no dispatcher builds the queues in time.
        """
        self.services.groups.require(self.group)
        if any(begin != "earliest" for begin in member.begins.values()):
            self.catch_up()
        with self.lock:
            for other in self.consumers:
                for topic, subscription in member.subscriptions.items():
                    theirs = other.subscriptions.get(topic)
                    if theirs is not None and filter_of(theirs) != filter_of(subscription):
                        raise ConfigError(
                            "consumers of one group must have the same subscription: "
                            f"group={self.group!r} topic={topic!r} filter={subscription.expression!r} "
                            f"filter_of_the_others={theirs.expression!r}"
                        )
            self.members.append(member)
            self.begins.update(member.begins)
            try:
                self.register()
                self.assign()
            except BaseException:
                self.leave(member)
                raise
            member.closed = False
            waiting = [
                key
                for key, queue in self.queues.items()
                if self.services.store.next_queue_offset(*key) > queue.position
            ]
        for key in waiting:
            # A message was put before the group watched, and may not be readable yet.
            self.services.arrival_service.look_again(key)

    def leave(self, member: GroupMember) -> None:
        """Remove a consumer; its unfinished messages go to the others, or to the next consumer."""
        with self.lock:
            if member not in self.members:
                return
            self.members.remove(member)
            self.commit()
            for queue in self.queues.values():
                if queue.owner is member:
                    queue.give_back()
                    queue.give_to(queue.heir if queue.heir is not member else None)
            self.register()
            self.assign()
        self.services.consumer_manager.unregister(self.group, member.client_id)

    def close_member(self, member: GroupMember) -> None:
        """Remove a consumer that closes.

        Raises:
            StoreError: the offset file of a broadcasting consumer could not be written, and is unchanged.
        """
        with self.lock:
            if member.closed:
                return
            member.closed = True
            try:
                self.leave(member)
            finally:
                member.forget_all()
        if self.broadcasts:
            self.services.stop_broadcasting(self)

    def let_abandoned_go(self) -> bool:
        """Remove consumers that the program no longer refers to; return whether there were any."""
        with self.lock:
            abandoned = [member for member in self.members if member.consumer() is None]
        for member in abandoned:
            self.leave(member)
        return bool(abandoned)

    def register(self) -> None:
        """Register the members' subscriptions with the store, and watch their topics for new messages."""
        topics: set[str] = set()
        subscriptions: dict[str, Subscription] = {}
        for consumer in self.consumers:
            topics.update(consumer.subscriptions)
            subscriptions.update(consumer.subscriptions)
        for consumer in self.consumers:
            self.services.consumer_manager.register(
                self.group,
                consumer.client_id,
                subscriptions.values(),
                BROADCASTING if self.broadcasts else CLUSTERING,
            )
        arrival_service = self.services.arrival_service
        former, self.watch = self.watch, None
        if topics:
            self.watch = arrival_service.watch(tuple(topics), self.grown)
        if former is not None:
            arrival_service.unwatch(former)
        for topic in topics:
            self.find_queues(topic, self.begins.get(topic, "earliest"))
        for key in [key for key in self.queues if key[0] not in topics]:
            del self.queues[key]

    def find_queues(self, topic: str, begin: Beginning) -> None:
        """Add the queues that a topic has now; new ones begin at *begin*."""
        for queue_id in self.services.topics.read_queue_ids(topic):
            if (topic, queue_id) not in self.queues:
                self.queues[topic, queue_id] = self.new_queue(topic, queue_id, begin)

    def new_queue(self, topic: str, queue_id: int, begin: Beginning) -> SharedQueue:
        """Return a queue at the group's committed offset, or at *begin* if there is none."""
        committed = self.offsets.query_offset(self.group, topic, queue_id)
        position = self.position_at(topic, queue_id, begin) if committed is None else committed
        statistics = self.services.statistics.of_group(self.group, topic)
        return SharedQueue(topic, queue_id, position, committed, statistics)

    def catch_up(self) -> None:
        """Return when every message put so far is readable, so that a queue's readable end is its real end.

        Raises:
            DispatcherError: the consume queue is not built, or not in time.
        """
        store = self.services.store
        store.wait_for(CONSUME_QUEUE, store.appended, CATCH_UP_S)

    @tell_read_error("the queues cannot be read")
    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first readable queue offset, and the one that the next message gets.

        Raises:
            OffsetOutOfRange: the topic has no such queue.
        """
        store = self.services.store
        if (topic, queue_id) not in self.queues:
            raise OffsetOutOfRange(
                f"the topic has no such queue: topic={topic!r} queue_id={queue_id}",
                "See `reput topic describe` for its queues.",
            )
        with store.read_lock:
            low, high = store.reader.queue_range(topic, queue_id)
        return low, max(high, store.next_queue_offset(topic, queue_id))

    @tell_read_error("the queues cannot be read")
    def position_at(self, topic: str, queue_id: int, beginning: Beginning) -> int:
        """Return the queue offset at which *beginning* lies."""
        store = self.services.store
        with store.read_lock:
            if isinstance(beginning, int):
                return store.reader.offset_by_time(topic, queue_id, beginning)
            low, high = store.reader.queue_range(topic, queue_id)
        return low if beginning == "earliest" else high

    def assign(self, topics: Collection[str] | None = None) -> None:
        """Share out the queues of each topic: equal runs of queue ids, with one more for the first consumers.

        Args:
            topics: these alone have changed; None: all. A group of thousands of topics gains their queues one by one.
        """
        by_topic: dict[str, list[SharedQueue]] = {}
        for key in sorted(key for key in self.queues if topics is None or key[0] in topics):
            by_topic.setdefault(key[0], []).append(self.queues[key])
        consumers = self.consumers
        for topic, queues in by_topic.items():
            members = [member for member in consumers if topic in member.subscriptions]
            if len(members) > len(queues) and topic != RETRY_PREFIX + self.group:
                self.tell_crowded(topic, len(members), len(queues))
            for number, queue in enumerate(queues):
                owner = members[share_of(number, len(queues), len(members))] if members else None
                if queue.owner is owner:
                    queue.heir = None
                elif queue.owner is None or not queue.in_flight:
                    queue.give_to(owner)
                else:
                    queue.heir = owner
        for member in consumers:
            member.queues = [queue for queue in self.queues.values() if queue.owner is member]
            member.notify()

    def tell_crowded(self, topic: str, consumer_count: int, queue_count: int) -> None:
        """Log, once per topic, that some consumers get no messages: a queue belongs to one consumer at a time."""
        if topic not in self.told_crowded:
            self.told_crowded.add(topic)
            logger.warning(
                "the group has more consumers than the topic has queues, so some get no message: group=%s topic=%s "
                "consumers=%d queues=%d (describe the topic with more: `reput topic create STORE %s --queues N`)",
                self.group,
                topic,
                consumer_count,
                queue_count,
                topic,
            )

    def begin_waiting(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Note that a task of *loop*, which the calling thread runs, begins to wait; None: a thread does. Under lock.

        If only tasks of one loop wait, the loop is notified of new messages, otherwise the thread of the
        `ArrivalService`.
        """
        watch = self.watch
        if watch is None or (watch.loop is not None and watch.loop.loop is loop):
            return
        former, arrival_service = watch.loop, self.services.arrival_service
        if former is not None:
            arrival_service.set_loop(watch, None)
            # The loop may be busy, or not run at all.
            former.share_all()
        store = self.services.store
        if loop is None or self.thread_count or not store.loops_wait_for_progress:
            return
        if all(other is loop for consumer in self.consumers for other, _ in consumer.tasks):
            arrival_service.set_loop(watch, arrival_service.loop_arrivals(loop))

    def grown(self, queues: set[tuple[str, int]]) -> None:
        """Notify the owners of queues with new readable messages. `ArrivalService` or a loop calls this."""
        with self.lock:
            owners = set()
            new = []
            for key in queues:
                queue = self.queues.get(key)
                if queue is None:
                    new.append(key)
                else:
                    queue.grow()
                    owners.add(queue.owner)
            for member in self.consumers:
                if member in owners:
                    member.notify()
            if new:
                # If one queue cannot be read, the others are still assigned.
                do_all(*(partial(self.add_queue, *key) for key in new), partial(self.assign, {key[0] for key in new}))

    def wake_all(self) -> None:
        """Wake all waiting consumers to look for a message again."""
        with self.lock:
            for consumer in self.consumers:
                consumer.notify()

    def look_for_queues(self) -> None:
        """Add queues that topics have gained, and drop queues that may no longer be read.

        Changes to a topic are not announced, so this must be polled; RocketMQ's clients look every 20 s.
        """
        with self.lock:
            topics = {topic for consumer in self.consumers for topic in consumer.subscriptions}
            configs = {topic: self.services.topics.find(topic) for topic in topics}
            before = set(self.queues)
            self.drop_queues(
                queue
                for (topic, queue_id), queue in self.queues.items()
                if (config := configs.get(topic)) is not None and queue_id >= config.read_queue_nums
            )
            for topic in topics:
                # All messages of a queue added later are newer than a consumer that began at "latest".
                self.find_queues(topic, "earliest")
            added = self.queues.keys() - before
            if added:
                self.assign({topic for topic, _ in added})
        for key in added:
            self.services.arrival_service.look_again(key)

    def drop_queues(self, queues: Iterable[SharedQueue]) -> None:
        """Drop queues that may no longer be read. Under lock."""
        dropped = list(queues)
        if not dropped:
            return
        self.commit()
        for queue in dropped:
            if queue.owner is not None:
                queue.owner.forget(queue)
            self.queues.pop((queue.topic, queue.queue_id), None)
        self.assign()

    def drop_queue(self, queue: SharedQueue) -> None:
        """Drop a queue that may no longer be read. Under lock."""
        self.drop_queues([queue])

    def add_queue(self, topic: str, queue_id: int) -> None:
        """Add a queue that did not exist when the consumers joined, if it may be read."""
        config = self.services.topics.find(topic)
        if config is not None and queue_id < config.read_queue_nums:
            # All of its messages are newer than a consumer that began at "latest".
            self.queues[topic, queue_id] = self.new_queue(topic, queue_id, "earliest")

    # Offsets.

    def commit(self) -> None:
        """Commit each queue's offset in memory, without writing to disk."""
        offsets = self.offsets
        with self.lock:
            for queue in self.queues.values():
                offset = queue.commit_offset()
                if offset != queue.committed:
                    offsets.commit_offset(self.group, queue.topic, queue.queue_id, offset)
                    queue.committed = offset

    def move(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Continue a queue from *queue_offset*, and forget its messages in flight."""
        with self.lock:
            queue = self.queues.get((topic, queue_id))
            if queue is None:
                return
            owner = queue.owner
            if owner is not None:
                owner.forget(queue)
            queue.move(queue_offset)
            if queue.heir is not None:
                self.assign()
            elif owner is not None:
                owner.notify()

    def reset(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the group's offset of a queue, and continue from there if the queue is consumed now."""
        with self.lock:
            self.move(topic, queue_id, queue_offset)
            # At once, so that no message done from there on is committed first.
            self.offsets.commit_offset(self.group, topic, queue_id, queue_offset)
            queue = self.queues.get((topic, queue_id))
            if queue is not None:
                queue.committed = queue_offset

    def hold_back(self, topic: str) -> None:
        """Deliver no message of a topic that is being deleted, not even those already fetched."""
        with self.lock:
            for key, queue in self.queues.items():
                if key[0] == topic:
                    queue.hold_back()

    def begin_anew(self, topic: str) -> None:
        """Restart each queue of a deleted topic at offset 0, and forget its messages in flight."""
        with self.lock:
            for key, queue in self.queues.items():
                if key[0] == topic:
                    self.move(*key, 0)
                    queue.committed = None

    def forget(self) -> None:
        """End consuming in a forked child of the writer. A thread of the parent may hold the lock."""
        former = kernel_lock(self.lock)
        if former is not None:
            former.abandon()
        self.lock = new_group_lock()
        self.watch = None
        with self.lock:
            for member in self.members:
                member.end_in_child(self.lock)
            self.members = []
            self.queues = {}

    def end(self) -> None:
        """Close all consumers: the store closes."""
        for member in self.consumers:
            try:
                self.close_member(member)
            except (ReputError, OSError) as error:
                # The cause is a consumer's own offset file, or a queue that other members would take over. Closing a
                # consumer raises such errors; closing the store only logs them and still ends cleanly.
                logger.error("a consumer could not leave its group cleanly: group=%s error=%s", self.group, error)


def filter_of(subscription: Subscription) -> tuple[str, str]:
    """Return the type and text that identify a filter."""
    return subscription.expression_type, subscription.expression


def share_of(number: int, queue_count: int, consumer_count: int) -> int:
    """Return the index of the consumer that gets a queue. Runs differ by one at most; the longer ones come first."""
    size, longer = divmod(queue_count, consumer_count)
    if number < longer * (size + 1):
        return number // (size + 1)
    return longer + (number - longer * (size + 1)) // size
