"""GroupReading: one group reads one topic of a store that no other program has open, as `reput consume --group` does.

For every batch, the group, the topic and the queues must exist and be readable. The offsets are the group's own in
``consumerOffset.json``. The store's lock is held, because a program that writes the store keeps the offsets in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from reput.consume.administration.stopped_store import StoppedStore
from reput.consume.pull.group_reader import GroupReader, ReadingStore
from reput.consume.registry.consumer_filters import ConsumerFilters
from reput.consume.registry.subscription import Subscription
from reput.consume.registry.subscription_groups import check_group
from reput.store.reader.results import GetMessageResult

__all__ = ["GroupReading"]


class GroupReading:
    """A `MessageSource` for a `TopicReader`, and the group's offsets."""

    def __init__(self, directory: Path, store: ReadingStore, group: str, subscription: Subscription) -> None:
        """Take the store's lock, and read the committed offsets.

        Args:
            store: the same store, open for reading; the caller closes it.

        Raises:
            StoreLocked: another process writes the store, and would overwrite the offsets.
            RequestRefused: the group's name is illegal; or there is no such group, and it may not be created.
            DamagedStore: neither a configuration file nor its backup can be read.
        """
        check_group(group)
        self.store = store
        self.group = group
        self.subscription = subscription
        self.stopped = StoppedStore(directory, store)
        try:
            topics, groups, managers = self.stopped.topics, self.stopped.groups, self.stopped.managers
            if topics.find(subscription.topic) is not None:
                # A mistyped name must not create a group when there is nothing to read.
                groups.require(group)
            self.topic_table = topics
            self.offsets = managers.offsets
            filters = ConsumerFilters(managers.filters, managers.bloom_filter, directory, bit_maps_are_made=False)
            self.reader = GroupReader(store, topics, groups, filters, managers.bloom_filter)
            self.message_filter = self.reader.message_filter(group, subscription.topic, subscription.compiled)
        except BaseException:
            self.stopped.close()
            raise

    # Methods for the TopicReader.

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that consumers read."""
        config = self.topic_table.find(topic)
        queue_ids = self.store.reader.queue_ids(topic)
        return [queue_id for queue_id in queue_ids if config and queue_id < config.read_queue_nums]

    def queue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Return the first readable queue offset, and the one after the last."""
        return self.store.reader.queue_range(topic, queue_id)

    def get(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, count_max: int = 32, *, tags: str | None = None
    ) -> GetMessageResult:
        """Read a queue for the group. Its subscription determines the tags, so *tags* is ignored.

        Raises:
            RequestRefused: the group or the topic may not be read, or there is no such queue.
        """
        self.reader.require_queue(self.group, topic, queue_id)
        return self.reader.get(topic, queue_id, queue_offset, count_max, self.message_filter)

    # Offsets.

    def next_queue_offset(self, queue_id: int) -> int | None:
        """Return the queue offset that the group reads next; None: it never committed one."""
        return self.offsets.query_offset(self.group, self.subscription.topic, queue_id)

    def commit(self, positions: Mapping[int, int]) -> None:
        """Write the next queue offset by queue id, durably.

        Raises:
            StoreError: the file could not be written, and is unchanged.
        """
        for queue_id, queue_offset in positions.items():
            self.offsets.commit_offset(self.group, self.subscription.topic, queue_id, queue_offset)
        self.offsets.persist()

    def close(self) -> None:
        """Release the store's lock."""
        self.stopped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
