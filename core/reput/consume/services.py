"""ConsumeServices: everything that a store open for writing offers to consumers.

managers ─▶ topics, groups, offsets, filters ─▶ GroupReader ─┬─▶ consumers ◀── ArrivalService
   ▲                                                         └─▶ PullService ─▶ HoldService ─▶ a broker's clients
   └────── saved every flush_consumer_offset_interval, and at the end
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from reput.consume.administration.administration import Administration
from reput.consume.administration.stored_queues import StoredQueues
from reput.consume.groups.consumable_store import ConsumableStore
from reput.consume.groups.consumer import Consumer
from reput.consume.groups.consumer_group import ConsumerGroup
from reput.consume.groups.local_offset_store import LocalFileOffsetStore
from reput.consume.pull.arrival_service import CONSUME_QUEUE, ArrivalService
from reput.consume.pull.group_reader import GroupReader
from reput.consume.pull.hold_service import HoldService
from reput.consume.pull.pull_service import PullService
from reput.consume.pull.topic_reader import Beginning
from reput.consume.registry.config_managers import ConfigManagers
from reput.consume.registry.consumer_filters import ConsumerFilters
from reput.consume.registry.consumer_manager import ConsumerManager
from reput.consume.registry.statistics import GroupRow, Statistics
from reput.consume.registry.subscription import Filter, checked_filter, checked_topics
from reput.consume.registry.subscription_groups import SubscriptionGroups, check_group
from reput.consume.registry.topics import Topics
from reput.errors import ConfigError, ReputError, RequestRefused, StoreError
from reput.remoting.response_code import ResponseCode
from reput.store.disk.shortages import do_all, tell_store_error
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import thread_death

__all__ = ["ConsumeServices"]

CONSUME_QUEUE_EXT = "consume_queue_ext"

# Without any of these threads, consumers do not learn of new messages.
BRINGING = ("reput-hold", "reput-group", "reput-dispatchers")

logger = logging.getLogger(__name__)


class ConsumeServices:
    """The services of one store. Any thread may call."""

    def __init__(self, store: ConsumableStore) -> None:
        """Read the configuration files, and begin to hold pulls.

        Raises:
            DamagedStore: neither a configuration file nor its backup can be read.
        """
        settings = store.settings
        self.store = store
        self.settings = settings
        self.managers = ConfigManagers(store.directory, settings)
        # The writer distributes messages over the queues by the file.
        self.topics = Topics(self.managers.topics, settings, store.queue_ids, on_written=store.topic_changed)
        self.groups = SubscriptionGroups(self.managers.groups, settings, keep_new_later=True)
        self.filters = ConsumerFilters(
            self.managers.filters,
            self.managers.bloom_filter,
            store.directory,
            bit_maps_are_made=CONSUME_QUEUE_EXT in settings.dispatchers and settings.enable_calc_filter_bit_map,
        )
        self.consumer_manager = ConsumerManager(self.filters)
        self.group_reader = GroupReader(
            store, self.topics, self.groups, self.filters, self.managers.bloom_filter, store.next_queue_offset
        )
        self.arrival_service = ArrivalService(store, store.threads)
        self.pull_service = PullService(self.group_reader, self.consumer_manager, self.managers.offsets)
        self.hold_service = HoldService(self.arrival_service, self.pull_service)
        self.statistics = Statistics(store.put_nums)
        self.stored_queues = StoredQueues(store, self.topics)
        self.administration = Administration(
            self.stored_queues,
            self.managers,
            self.topics,
            self.groups,
            self.move,
            store.delete_topic,
            self.consumer_manager.consumes,
            store.put,
        )
        self.lock = threading.Lock()
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        # Broadcasting consumers, each with its offset file; None: in memory.
        self.broadcasts: dict[ConsumerGroup, Path | None] = {}
        self.closed = False
        self.keeper = OffsetKeeper(self)
        self.keeper.start()

    @tell_store_error("the consumer cannot be opened")
    def consumer(
        self,
        group: str,
        topics: str | Iterable[str],
        wanted: Filter = None,
        *,
        begin: Beginning = "earliest",
        in_flight_max: int = 1000,
        queue_in_flight_max: int | None = None,
        broadcast: bool = False,
        offset_store: Path | None = None,
    ) -> Consumer:
        """Return a new consumer of *group*; `Store.consumer` describes the arguments.

        Args:
            queue_in_flight_max: limit of messages in flight of each queue, so that a queue whose messages are not
                acknowledged does not keep the others from coming; None: *in_flight_max* alone limits.

        Raises:
            RequestRefused: the group's name is illegal, or it may not consume, or not by broadcasting.
            FilterSyntaxError: the filter does not parse.
            ConfigError: present consumers of the group use another filter for a topic, or another message model; no
                dispatcher builds queues; or *offset_store* is another consumer's, or is given without *broadcast*.
            DamagedStore: neither *offset_store* nor its backup can be read.
        """
        if CONSUME_QUEUE not in self.settings.dispatchers:
            raise ConfigError(
                "no enabled dispatcher builds the queues that consumers read: "
                f"dispatchers={','.join(self.settings.dispatchers)}",
                f"Enable the dispatcher {CONSUME_QUEUE}.",
            )
        self.require_open()
        check_group(group)
        names = checked_topics(topics)
        wanted = checked_filter(wanted)
        if not broadcast:
            if offset_store is not None:
                raise ConfigError(
                    f"only a broadcast consumer has its own offset store: group={group!r} offset_store={offset_store}",
                    "Leave offset_store out, or set broadcast=True.",
                )
            shared = self.sharing(group)
            return Consumer(
                shared,
                names,
                wanted,
                begin=begin,
                in_flight_max=in_flight_max,
                queue_in_flight_max=queue_in_flight_max,
            )
        shared = self.broadcasting(group, offset_store)
        try:
            return Consumer(
                shared,
                names,
                wanted,
                begin=begin,
                in_flight_max=in_flight_max,
                queue_in_flight_max=queue_in_flight_max,
            )
        except BaseException:
            self.broadcasts.pop(shared)
            raise

    def sharing(self, group: str) -> ConsumerGroup:
        """Return the `ConsumerGroup` whose consumers share the group's messages.

        Raises:
            ConfigError: the group has broadcasting consumers.
        """
        with self.lock:
            if any(other.group == group for other in self.broadcasts):
                raise other_model(group, "BROADCASTING")
            shared = self.consumer_groups.get(group)
            if shared is None:
                shared = self.consumer_groups[group] = ConsumerGroup(self, group)
            return shared

    def broadcasting(self, group: str, offset_store: Path | None) -> ConsumerGroup:
        """Return a `ConsumerGroup` for one broadcasting consumer, which receives all messages.

        Raises:
            ConfigError, RequestRefused, DamagedStore: as `consumer`.
            DispatcherError: the queues are not readable in time to check the saved offsets.
        """
        if not self.groups.require(group).consume_broadcast_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the group may not consume by broadcasting: group={group!r}"
            )
        path = None if offset_store is None else offset_store.absolute()
        with self.lock:
            sharing = self.consumer_groups.get(group)
            if sharing is not None and sharing.consumers:
                raise other_model(group, "CLUSTERING")
            if path is not None and path in self.broadcasts.values():
                raise ConfigError(f"another consumer uses this offset store: offset_store={path}")
            lock = next((other.lock for other in self.broadcasts if other.group == group), None)
            offsets = LocalFileOffsetStore(path, self.store)
            shared = ConsumerGroup(self, group, offsets=offsets, lock=lock)
            self.broadcasts[shared] = path
        try:
            offsets.bring_back()
        except BaseException:
            self.broadcasts.pop(shared)
            raise
        return shared

    def stop_broadcasting(self, shared: ConsumerGroup) -> None:
        """Remove a broadcasting consumer that has left, and save its offsets.

        Raises:
            StoreError: its file could not be written, and is unchanged.
        """
        self.broadcasts.pop(shared, None)
        shared.offsets.persist()

    def move(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set an offset for an operator; the group's consumers in this program continue from there."""
        with self.lock:
            shared = self.consumer_groups.get(group)
            if shared is None:
                self.managers.offsets.commit_offset(group, topic, queue_id, queue_offset)
                return
        shared.reset(topic, queue_id, queue_offset)

    def topic_goes(self, topic: str) -> None:
        """Hold back a topic's messages while it is being deleted, and answer the pulls that wait for more."""
        self.hold_service.topic_deleted(topic)
        for shared in self.all_groups():
            shared.hold_back(topic)

    def topic_deleted(self, topic: str) -> None:
        """Restart consumers at the first message of a topic's new queues, after the old ones were deleted."""
        # Once more: a client may have pulled again before the topic was gone.
        self.hold_service.topic_deleted(topic)
        for shared in self.all_groups():
            shared.begin_anew(topic)
        # Once more: a consumer that left meanwhile may have committed its offsets again.
        offsets = self.managers.offsets
        with offsets.lock:
            if offsets.clean_offset_by_topic(topic):
                offsets.persist()

    def all_groups(self) -> list[ConsumerGroup]:
        """Return the sharing groups, and the group of each broadcasting consumer."""
        return [*self.consumer_groups.values(), *self.broadcasts]

    # Saving.

    def keep(self) -> None:
        """Write offsets, filters and new groups to their files, if they have changed.

        Raises:
            StoreError: the files that could not be written are unchanged.
        """
        for shared in self.all_groups():
            shared.commit()
        # If one file cannot be written, the others still are.
        do_all(
            self.managers.offsets.persist,
            self.managers.filters.persist,
            self.groups.keep_new,
            self.topics.keep_new,
            *(shared.offsets.persist for shared in list(self.broadcasts)),
        )

    def look_for_queues(self) -> None:
        """Let every group drop abandoned consumers and look for added or removed queues."""
        for shared in self.all_groups():
            try:
                if shared.let_abandoned_go() and shared.broadcasts:
                    self.stop_broadcasting(shared)
                shared.look_for_queues()
            except (ReputError, OSError) as error:
                logger.warning("a group's queues cannot be determined: group=%s error=%s", shared.group, error)

    def require_open(self) -> None:
        """Refuse calls after closing.

        Raises:
            StoreClosed: the store was closed, or this is a forked child of its writer.
        """
        self.store.require_open()

    def require_threads(self) -> None:
        """Refuse to wait for a message if a thread that would announce it has died.

        Raises:
            StoreError: such a thread has died.
        """
        deaths = self.store.threads.deaths
        if deaths:
            for name in BRINGING:
                if name in deaths:
                    raise thread_death(deaths[name])

    def group_rows(self) -> list[GroupRow]:
        """Return what the groups were given so far."""
        for shared in self.all_groups():
            # Whoever holds the lock finds what the kernel has given, too.
            with shared.lock:
                pass
        return self.statistics.group_rows()

    def wake_all(self) -> None:
        """Wake all waiting consumers, so that they notice that a thread has died."""
        for shared in self.all_groups():
            shared.wake_all()

    def forget(self) -> None:
        """End consuming in a forked child of the writer, without touching the parent's files."""
        # Threads that exist only in the parent may hold the locks.
        self.closed = True
        self.lock = threading.Lock()
        self.arrival_service.forget()
        self.hold_service.forget()
        for shared in self.all_groups():
            shared.forget()

    def close(self) -> None:
        """End all consumers and held pulls, and save offsets and filters.

        Raises:
            StoreError: the files that could not be written are unchanged.
        """
        if self.closed:
            return
        self.closed = True
        do_all(
            *(shared.end for shared in self.all_groups()),
            self.arrival_service.stop,
            self.hold_service.end,
            self.keeper.stop,
            self.keep,
        )


def other_model(group: str, message_model: str) -> ConfigError:
    """Return the error for a consumer whose message model differs from that of its group's present consumers."""
    return ConfigError(
        f"consumers of one group must use the same message model: group={group!r} "
        f"message_model_of_the_others={message_model}",
        "Give all of them the same broadcast=, or another group.",
    )


class OffsetKeeper(ServiceThread):
    """Saves the offsets and filters of *services*, and looks for queues, every ``flush_consumer_offset_interval``."""

    def __init__(self, services: ConsumeServices) -> None:
        super().__init__("reput-offsets", services.store.threads)
        self.services = services

    def seconds_to_next(self) -> float:
        """Return the interval."""
        return self.services.settings.flush_consumer_offset_interval / 1000

    def do_round(self) -> None:
        """Save offsets and filters, then look for queues."""
        try:
            self.services.keep()
        except StoreError as error:
            # The next round tries again; a consumer that commits explicitly gets the error.
            logger.warning("consumer offsets cannot be stored: error=%s", error)
        self.services.look_for_queues()
