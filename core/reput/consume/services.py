"""ConsumeServices: everything that a store which is open for writing offers to those who consume.

managers ─▶ topics, groups, offsets, filters ─▶ pull service ─▶ hold service ─▶ consumers
   ▲                                                                               │
   └────── kept every flush_consumer_offset_interval, and at the end ◀─────────────┘
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from reput.consume.administration import Administration
from reput.consume.config_managers import ConfigManagers
from reput.consume.consumer import Consumer
from reput.consume.consumer_filters import ConsumerFilters
from reput.consume.consumer_group import ConsumerGroup
from reput.consume.consumer_manager import ConsumerManager
from reput.consume.hold_service import CONSUME_QUEUE, GrowingStore, HoldService
from reput.consume.pull_service import PullService, ReadableStore
from reput.consume.statistics import Statistics
from reput.consume.subscription import Filter
from reput.consume.subscription_groups import SubscriptionGroups
from reput.consume.topic_reader import Beginning
from reput.consume.topics import Topics
from reput.errors import ConfigError
from reput.store.message import Message, PutMessageResult

__all__ = ["ConsumableStore", "ConsumeServices"]

CONSUME_QUEUE_EXT = "consume_queue_ext"

logger = logging.getLogger(__name__)


class ConsumableStore(ReadableStore, GrowingStore, Protocol):
    """A store that is open for writing, as its consumers see it."""

    @property
    def directory(self) -> Path:
        """Where it lies."""

    @property
    def loops_wait_for_progress(self) -> bool:
        """Whether `wait_for_async` needs no thread."""

    def queue_ids(self, topic: str) -> Collection[int]:
        """Return the queues of a topic that messages were put to."""

    def delete_topic(self, topic: str) -> int:
        """Delete a topic with its queues."""

    def put_nums(self, topic: str) -> int | None:
        """Return how many messages were put to a topic since the store was opened, None if there is no such topic."""

    @property
    def services(self) -> ConsumeServices:
        """These services."""

    def put(self, message: Message) -> PutMessageResult:
        """Store a message."""


class ConsumeServices:
    """The services of one store. Any thread may call."""

    def __init__(self, store: ConsumableStore) -> None:
        """Read the configuration files, and begin to hold pulls.

        Raises:
            DamagedStore: a configuration file cannot be read, nor its backup.
        """
        settings = store.settings
        self.store = store
        self.settings = settings
        self.managers = ConfigManagers(store.directory, settings)
        self.topics = Topics(self.managers.topics, settings, store.queue_ids)
        self.groups = SubscriptionGroups(self.managers.groups, settings)
        self.filters = ConsumerFilters(
            self.managers.filters,
            self.managers.bloom_filter,
            store.directory,
            bit_maps_are_made=CONSUME_QUEUE_EXT in settings.dispatchers and settings.enable_calc_filter_bit_map,
        )
        self.consumer_manager = ConsumerManager(self.filters)
        self.pull_service = PullService(
            store,
            self.topics,
            self.groups,
            self.consumer_manager,
            self.managers.offsets,
            self.managers.bloom_filter,
            store.next_queue_offset,
        )
        self.hold_service = HoldService(store, self.pull_service)
        self.statistics = Statistics(store.put_nums)
        self.administration = Administration(
            store, self.managers, self.topics, self.groups, self.moved, store.delete_topic
        )
        self.lock = threading.Lock()
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.closing = threading.Event()
        self.keeper = threading.Thread(target=self.keep_regularly, name="reput-offsets", daemon=True)
        self.keeper.start()

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str],
        wanted: Filter = None,
        *,
        begin: Beginning = "earliest",
        in_flight_max: int = 1000,
    ) -> Consumer:
        """Let a consumer of *group* in; `Consumer` tells of the arguments.

        Raises:
            RequestRefused: the group's name is illegal, or it may not consume.
            FilterSyntaxError: the filter does not parse.
            ConfigError: consumers of the group that are there want something else of a topic; or nobody builds queues.
        """
        if CONSUME_QUEUE not in self.settings.dispatchers:
            raise ConfigError(
                f"nobody builds the queues that consumers read: dispatchers={','.join(self.settings.dispatchers)}",
                f"Enable the dispatcher {CONSUME_QUEUE}.",
            )
        with self.lock:
            shared = self.consumer_groups.get(group)
            if shared is None:
                shared = self.consumer_groups[group] = ConsumerGroup(self, group)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        return Consumer(shared, names, wanted, begin=begin, in_flight_max=in_flight_max)

    def moved(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """An operator has set an offset: the group's consumers here go on from there."""
        shared = self.consumer_groups.get(group)
        if shared is not None:
            shared.move(topic, queue_id, queue_offset)

    def topic_deleted(self, topic: str) -> None:
        """A topic is gone with its queues: consumers begin anew with what is put to it from now on."""
        for shared in list(self.consumer_groups.values()):
            shared.begin_anew(topic)

    # Keeping.

    def keep(self) -> None:
        """Write offsets and filters to their files, if they have changed.

        Raises:
            OSError: the files hold what they held before.
        """
        for shared in list(self.consumer_groups.values()):
            shared.commit()
        self.managers.offsets.persist()
        self.managers.filters.persist()

    def keep_regularly(self) -> None:
        """Keep at the interval that the settings name, until the services are closed; the keeper's thread."""
        while not self.closing.wait(self.settings.flush_consumer_offset_interval / 1000):
            try:
                self.keep()
            except OSError as error:
                # The next time may be better; whoever commits himself is told.
                logger.warning("consumer offsets cannot be kept: error=%s", error)

    def close(self) -> None:
        """End all consumers and held pulls, and keep offsets and filters.

        Raises:
            OSError: the files hold what they held before.
        """
        if self.closing.is_set():
            return
        self.closing.set()
        for shared in list(self.consumer_groups.values()):
            shared.end()
        self.hold_service.close()
        self.keeper.join()
        self.keep()
