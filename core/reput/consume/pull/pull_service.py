"""PullService: messages of one queue for a consumer group, with every check and answer of a broker's.

    request ──▶ may the group? the topic? ──▶ which filter? ──▶ units and records ──▶ status, code, where to go on

It never waits; `HoldService` does.

Source: RocketMQ broker, PullMessageProcessor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Protocol

import msgspec

from reput.consume.registry.consumer_manager import BROADCASTING, ConsumerManager
from reput.consume.registry.response_code import ResponseCode
from reput.consume.registry.subscription import Subscription
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
    TagMessageFilter,
)
from reput.settings import Settings
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.config.topic_config_manager import PERM_READ
from reput.store.disk.shortages import store_error
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.results import GetMessageResult, GetMessageStatus, Records, TransferLimits

__all__ = ["PullRequest", "PullResult", "PullService", "ReadableStore"]

CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
BYTES_MAX_MIN = 100


class ReadableStore(Protocol):
    """What is pulled from."""

    @property
    def settings(self) -> Settings:
        """What holds for the store."""

    @property
    def reader(self) -> MessageReader:
        """Reads, under `read_lock`."""

    @property
    def read_lock(self) -> threading.Lock:
        """Held while `reader` is used."""


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One pull of a consumer's.

    Attributes:
        count_max: messages at most; one at least.
        bytes_max: of records; None: as many as the store hands out.
        commit_offset: next queue offset that the consumer has come to, which is kept for its group; None: not now.
        subscription: what is wanted; None: what the group registered.
        sub_version: of the subscription that the consumer believes to be registered.
        as_tags_only: RocketMQ's obsolete class-filter mode: every message passes here.
        trusted: asked by the program that has the store open: ``enable_property_filter``, which keeps clients of a
            broker from making it evaluate expressions, and the limits of one transfer do not hold.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    count_max: int = 32
    bytes_max: int | None = None
    commit_offset: int | None = None
    subscription: Subscription | None = None
    sub_version: int = 0
    as_tags_only: bool = False
    trusted: bool = False


class PullResult(msgspec.Struct, frozen=True):
    """What a pull came to.

    Attributes:
        next_begin_offset: queue offset to go on with.
        min_offset, max_offset: the queue's first unit, and the one behind its last.
        suggest_which_broker_id: where to pull next; 0 is a master.
    """

    status: GetMessageStatus
    code: ResponseCode
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: Records
    suggest_which_broker_id: int = 0


class PullService:
    """Answers pulls. Any thread may call."""

    def __init__(
        self,
        store: ReadableStore,
        topics: Topics,
        groups: SubscriptionGroups,
        consumers: ConsumerManager,
        offsets: ConsumerOffsetManager,
        bloom_filter: BloomFilter,
        next_queue_offset: Callable[[str, int], int] | None = None,
    ) -> None:
        """*next_queue_offset* gives what the writer gives the next message of a queue, where there is a writer."""
        self.store = store
        self.settings = store.settings
        self.topics = topics
        self.groups = groups
        self.consumers = consumers
        self.offsets = offsets
        self.bloom_filter = bloom_filter
        self.next_queue_offset = next_queue_offset
        self.limits = TransferLimits.of(store.settings)

    def pull(self, request: PullRequest) -> PullResult:
        """Answer a pull for the first time: offsets that come with it are kept.

        Raises:
            RequestRefused: the group may not, or there is no such topic, queue or subscription.
            DamagedStore: the bytes of a record are none.
        """
        message_filter = self.check(request)
        if request.commit_offset is not None:
            self.offsets.commit_offset(request.group, request.topic, request.queue_id, request.commit_offset)
        return self.read(request, message_filter, request.queue_offset)

    def pull_again(
        self, request: PullRequest, queue_offset: int, shared: dict[Hashable, GetMessageResult] | None = None
    ) -> PullResult:
        """Answer a pull that was held, from *queue_offset* on: all checks are made again, nothing is kept again.

        Args:
            shared: what was read for others who wait for the same queue, and now for this one.
        """
        return self.read(request, self.check(request), queue_offset, shared)

    def read(
        self,
        request: PullRequest,
        message_filter: MessageFilter | None,
        queue_offset: int,
        shared: dict[Hashable, GetMessageResult] | None = None,
    ) -> PullResult:
        """Read a queue, unless *shared* has what is asked for."""
        key: Hashable = None
        if shared is not None and (message_filter is None or isinstance(message_filter, TagMessageFilter)):
            codes = None if message_filter is None else message_filter.codes
            key = (queue_offset, request.count_max, request.bytes_max, request.trusted, codes)
        found = None if shared is None or key is None else shared.get(key)
        if found is None:
            found = self.get(request, message_filter, queue_offset)
            if shared is not None and key is not None:
                shared[key] = found
        return self.answer(request, queue_offset, found)

    def get(self, request: PullRequest, message_filter: MessageFilter | None, queue_offset: int) -> GetMessageResult:
        """Read a queue within the limits of one transfer.

        Raises:
            DamagedStore: the bytes of a record, or of the queue, are none.
            StoreError: the system cannot read them.
        """
        limits: TransferLimits | None = None
        if not request.trusted:
            limits = self.limits
            if request.bytes_max is not None:
                bytes_max = max(request.bytes_max, BYTES_MAX_MIN)
                limits = msgspec.structs.replace(
                    limits,
                    bytes_in_memory=min(limits.bytes_in_memory, bytes_max),
                    bytes_on_disk=min(limits.bytes_on_disk, bytes_max),
                )
        try:
            with self.store.read_lock:
                return self.store.reader.get_message(
                    request.topic,
                    request.queue_id,
                    queue_offset,
                    # To RocketMQ one message always fits, whatever the number.
                    max(request.count_max, 1),
                    message_filter=message_filter,
                    limits=limits,
                )
        except OSError as error:
            what = f"the queue cannot be read: topic={request.topic} queue_id={request.queue_id}"
            raise store_error(what, error) from error

    def answer(self, request: PullRequest, queue_offset: int, found: GetMessageResult) -> PullResult:
        """Return what a pull comes to where *found* was read for it."""
        status, following = found.status, found.next_queue_offset
        if self.next_queue_offset is not None and queue_offset > found.queue_offset_max:
            # After a kill the queue is not built as far yet as it was consumed: nothing has moved.
            end = self.next_queue_offset(request.topic, request.queue_id)
            if queue_offset <= end:
                status, following = GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset
            elif status is GetMessageStatus.OFFSET_OVERFLOW_BADLY:
                following = max(following, end)
        if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE:
            code = ResponseCode.PULL_OFFSET_MOVED if queue_offset else ResponseCode.PULL_NOT_FOUND
        else:
            code = CODES[status]
        return PullResult(
            status,
            code,
            following,
            found.queue_offset_min,
            found.queue_offset_max,
            found.records,
        )

    # Checks, in RocketMQ's order.

    def check(self, request: PullRequest) -> MessageFilter | None:
        """Return the filter that a pull is to be answered with, None for every message.

        Raises:
            RequestRefused: the pull is one that a broker refuses.
        """
        settings = self.settings
        if not settings.broker_permission & PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker may not be read: broker_permission={settings.broker_permission}",
            )
        group = self.groups.require(request.group)
        if not group.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the group may not consume: group={request.group!r}")
        topic = self.topics.find(request.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic does not exist: topic={request.topic!r}")
        if not topic.perm & PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the topic may not be read: topic={request.topic!r} perm={topic.perm}"
            )
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the topic has no such queue: topic={request.topic!r} queue_id={request.queue_id} "
                f"read_queue_nums={topic.read_queue_nums}",
            )
        return self.message_filter(request, group.consume_broadcast_enable)

    def message_filter(self, request: PullRequest, broadcast_enabled: bool) -> MessageFilter | None:
        """Return the filter of a subscription, the request's own or the registered one."""
        subscription = request.subscription or self.registered(request, broadcast_enabled)
        compiled = subscription.compiled
        if request.as_tags_only:
            return None
        message_filter: MessageFilter
        if isinstance(compiled, SqlFilter):
            if not (request.trusted or self.settings.enable_property_filter):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the broker does not filter by SQL92: topic={request.topic!r}",
                    "Set enable_property_filter.",
                )
            message_filter = ExpressionMessageFilter(self.expression_filter(request, compiled), self.bloom_filter)
        elif compiled.expression == SUBSCRIBE_ALL and not self.settings.filter_support_retry:
            return None
        else:
            message_filter = TagMessageFilter(compiled)
        if self.settings.filter_support_retry and request.topic.startswith(RETRY_PREFIX):
            return RetryMessageFilter(message_filter, lambda topic: self.filter_on(request.group, topic))
        return message_filter

    def registered(self, request: PullRequest, broadcast_enabled: bool) -> Subscription:
        """Return what the group has registered for the topic.

        Raises:
            RequestRefused: nothing, something older, or the group may not have it all for each consumer.
        """
        info = self.consumers.find(request.group)
        if info is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"nobody of the group is there: group={request.group!r}"
            )
        if info.message_model == BROADCASTING and not broadcast_enabled:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the group may not consume by broadcasting: group={request.group!r}"
            )
        subscription = info.subscriptions.get(request.topic)
        if subscription is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the group has not subscribed to the topic: group={request.group!r} topic={request.topic!r}",
            )
        if subscription.sub_version < request.sub_version:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the group's subscription is older: group={request.group!r} topic={request.topic!r} "
                f"sub_version={subscription.sub_version} wanted={request.sub_version}",
            )
        return subscription

    def expression_filter(self, request: PullRequest, compiled: SqlFilter) -> ConsumerFilter | None:
        """Return the filter of an expression, with its bits where it is the registered one.

        Raises:
            RequestRefused: the group's filter is not registered, or is older than its subscription.
        """
        filters = self.consumers.filters
        found = filters.consumer_filter(request.group, request.topic) if filters is not None else None
        if request.subscription is None and filters is not None:
            data = filters.find(request.group, request.topic)
            if found is None or data is None:
                raise RequestRefused(
                    ResponseCode.FILTER_DATA_NOT_EXIST,
                    f"the group's filter is not registered: group={request.group!r} topic={request.topic!r}",
                )
            if data.client_version < request.sub_version:
                raise RequestRefused(
                    ResponseCode.FILTER_DATA_NOT_LATEST,
                    f"the group's filter is older: group={request.group!r} topic={request.topic!r} "
                    f"client_version={data.client_version} wanted={request.sub_version}",
                )
            return found
        if found is not None and found.sql_filter is not None and found.sql_filter.expression == compiled.expression:
            return found
        return ConsumerFilter(
            consumer_group=request.group,
            topic=request.topic,
            sql_filter=compiled,
            bloom_filter_data=None,
            born_time=0,
        )

    def filter_on(self, group: str, topic: str | None) -> SqlFilter | None:
        """Return the expression that a group registered for another topic."""
        if topic is None or self.consumers.filters is None:
            return None
        found = self.consumers.filters.consumer_filter(group, topic)
        return None if found is None else found.sql_filter
