"""GroupReader: reads queues for consumer groups, after checking that the group may read and the queue exists.

    group, topic, queue id ──▶ `access` ──▶ `message_filter` ──▶ `get` ──▶ status, messages, next offset

This program's consumers use it, and `PullService`, which answers a broker's clients. A `GroupReader` never waits for
messages.

Source: RocketMQ broker, PullMessageProcessor.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from reput.consume.registry.consumer_filters import ConsumerFilters
from reput.consume.registry.subscription_groups import SubscriptionGroups
from reput.consume.registry.topics import RETRY_PREFIX, Topics
from reput.errors import RequestRefused
from reput.filter import (
    SUBSCRIBE_ALL,
    BloomFilter,
    ConsumerFilter,
    ExpressionMessageFilter,
    MessageFilter,
    RetryMessageFilter,
    SqlFilter,
    TagFilter,
    TagMessageFilter,
)
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.config.topic_config_manager import PERM_READ
from reput.store.disk.shortages import store_error
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.results import GetMessageResult, GetMessageStatus, Place, TransferLimits

__all__ = ["GroupReader", "QueueAccess", "ReadingStore"]


class QueueAccess(enum.Enum):
    """Whether a queue exists for a group that may read."""

    READABLE = "READABLE"
    NO_TOPIC = "NO_TOPIC"
    NO_QUEUE = "NO_QUEUE"


class ReadingStore(Protocol):
    """The store that queues are read from."""

    @property
    def settings(self) -> Settings:
        """The settings of the store."""

    @property
    def reader(self) -> MessageReader:
        """Reads; hold `read_lock` while you use it."""

    @property
    def read_lock(self) -> threading.Lock:
        """Held while `reader` is used."""


class GroupReader:
    """Reads queues for groups. Any thread may call.

    Args:
        filters: the registered expressions of groups; None: no filters are kept.
        next_queue_offset: returns the offset of the next message of a queue; None: there is no writer to ask.
    """

    def __init__(
        self,
        store: ReadingStore,
        topics: Topics,
        groups: SubscriptionGroups,
        filters: ConsumerFilters | None,
        bloom_filter: BloomFilter,
        next_queue_offset: Callable[[str, int], int] | None = None,
    ) -> None:
        self.store = store
        self.settings = store.settings
        self.topics = topics
        self.groups = groups
        self.filters = filters
        self.bloom_filter = bloom_filter
        self.next_queue_offset = next_queue_offset

    def access(self, group: str, topic: str, queue_id: int) -> QueueAccess:
        """Return whether the queue exists. The checks come in RocketMQ's order.

        Raises:
            RequestRefused: NO_PERMISSION; the store, the group or the topic is closed to readers.
                SUBSCRIPTION_GROUP_NOT_EXIST; the group is unknown and may not be created.
        """
        if not self.settings.broker_permission & PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker does not allow reading: broker_permission={self.settings.broker_permission}",
            )
        if not self.groups.require(group).consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the group may not consume: group={group!r}")
        config = self.topics.find(topic)
        if config is None:
            return QueueAccess.NO_TOPIC
        if not config.perm & PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the topic may not be read: topic={topic!r} perm={config.perm}"
            )
        return QueueAccess.READABLE if 0 <= queue_id < config.read_queue_nums else QueueAccess.NO_QUEUE

    def require_queue(self, group: str, topic: str, queue_id: int) -> None:
        """Check as `access` does, and refuse a queue that does not exist.

        Raises:
            RequestRefused: as `access`. TOPIC_NOT_EXIST; INVALID_PARAMETER: the topic has no such queue.
        """
        access = self.access(group, topic, queue_id)
        if access is QueueAccess.NO_TOPIC:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic does not exist: topic={topic!r}")
        if access is QueueAccess.NO_QUEUE:
            config = self.topics.find(topic)
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the topic has no such queue: topic={topic!r} queue_id={queue_id} "
                f"read_queue_nums={0 if config is None else config.read_queue_nums}",
            )

    def message_filter(
        self, group: str, topic: str, compiled: TagFilter | SqlFilter, registered: ConsumerFilter | None = None
    ) -> MessageFilter | None:
        """Return the filter for a subscription; None lets every message pass.

        Args:
            registered: for an expression, the group's filter with its bit maps; None: look for one with this text.
        """
        message_filter: MessageFilter
        if isinstance(compiled, SqlFilter):
            consumer_filter = registered or self.expression_filter(group, topic, compiled)
            message_filter = ExpressionMessageFilter(consumer_filter, self.bloom_filter)
        elif compiled.expression == SUBSCRIBE_ALL and not self.settings.filter_support_retry:
            return None
        else:
            message_filter = TagMessageFilter(compiled)
        if self.settings.filter_support_retry and topic.startswith(RETRY_PREFIX):
            return RetryMessageFilter(message_filter, lambda first_topic: self.filter_on(group, first_topic))
        return message_filter

    def expression_filter(self, group: str, topic: str, compiled: SqlFilter) -> ConsumerFilter:
        """Return the filter of an expression: the group's own, with its bit maps, if that has the same text."""
        found = None if self.filters is None else self.filters.consumer_filter(group, topic)
        if found is not None and found.sql_filter is not None and found.sql_filter.expression == compiled.expression:
            return found
        return ConsumerFilter(
            consumer_group=group, topic=topic, sql_filter=compiled, bloom_filter_data=None, born_time=0
        )

    def filter_on(self, group: str, topic: str | None) -> SqlFilter | None:
        """Return the expression that a group registered for another topic."""
        if topic is None or self.filters is None:
            return None
        found = self.filters.consumer_filter(group, topic)
        return None if found is None else found.sql_filter

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        message_filter: MessageFilter | None,
        limits: TransferLimits | None = None,
    ) -> GetMessageResult:
        """Read up to *count_max* messages, in the order of the queue.

        After a kill the view may end before an offset that was consumed already: the status is then
        OFFSET_OVERFLOW_ONE, as if the queue ended there.

        Raises:
            DamagedStore: the bytes of a record, or of the queue, are damaged.
            StoreError: the system cannot read them.
        """
        try:
            with self.store.read_lock:
                found = self.store.reader.get_message(
                    topic, queue_id, queue_offset, count_max, message_filter=message_filter, limits=limits
                )
        except OSError as error:
            raise store_error(f"the queue cannot be read: topic={topic} queue_id={queue_id}", error) from error
        if self.next_queue_offset is None or queue_offset <= found.queue_offset_max:
            return found
        end = self.next_queue_offset(topic, queue_id)
        if queue_offset <= end:
            return msgspec.structs.replace(
                found, status=GetMessageStatus.OFFSET_OVERFLOW_ONE, next_queue_offset=queue_offset
            )
        if found.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY:
            return msgspec.structs.replace(found, next_queue_offset=max(found.next_queue_offset, end))
        return found

    def get_appended(
        self,
        topic: str,
        queue_id: int,
        appended: Sequence[Place],
        count_max: int,
        codes: frozenset[int] | None,
        limits: TransferLimits,
    ) -> GetMessageResult | None:
        """As `MessageReader.get_appended`.

        Raises:
            DamagedStore: the bytes of a record, or of the queue, are damaged.
            StoreError: the system cannot read them.
        """
        try:
            with self.store.read_lock:
                return self.store.reader.get_appended(topic, queue_id, appended, count_max, codes, limits)
        except OSError as error:
            raise store_error(f"the log cannot be read: topic={topic} queue_id={queue_id}", error) from error
