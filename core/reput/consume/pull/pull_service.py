"""PullService: answers the pulls of a broker's clients: RocketMQ's checks, limits and response codes.

    request ──▶ check group and topic ──▶ choose the filter ──▶ units and records ──▶ status, code, next offset

This program's own consumers do not use `PullService`; they read with `GroupReader`, on which it builds. `PullService`
never waits for messages; `HoldService` does.

Source: RocketMQ broker, PullMessageProcessor.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from reput.consume.pull.group_reader import GroupReader
from reput.consume.registry.consumer_manager import BROADCASTING, ConsumerManager
from reput.consume.registry.subscription import Subscription
from reput.errors import RequestRefused
from reput.filter import ConsumerFilter, MessageFilter, SqlFilter, TagMessageFilter
from reput.remoting.response_code import ResponseCode
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.reader.results import GetMessageResult, GetMessageStatus, Place, Records, TransferLimits

__all__ = ["PullRequest", "PullResult", "PullService", "SharedAnswers", "answer"]

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


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One pull of a consumer.

    Attributes:
        count_max: largest number of messages; at least one.
        bytes_max: largest size of records; None: the store's own limit.
        commit_offset: next queue offset of the consumer, to be committed for its group; None: commit nothing.
        subscription: the subscription to use; None: the group's registered one.
        sub_version: version of the subscription that the consumer believes to be registered.
        as_tags_only: RocketMQ's obsolete class-filter mode: every message passes here.
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


class PullResult(msgspec.Struct, frozen=True):
    """The result of a pull.

    Attributes:
        next_begin_offset: queue offset at which to continue.
        min_offset, max_offset: queue offset of the queue's first unit, and the one after its last.
        suggest_which_broker_id: where to pull next; 0 is a master.
    """

    status: GetMessageStatus
    code: ResponseCode
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: Records
    suggest_which_broker_id: int = 0


class SharedAnswers:
    """Results that pulls which wait for the same queue share while they are answered one after the other.

    Attributes:
        groups: groups that may read the queue.
        results: by request.
    """

    __slots__ = ("groups", "results")

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.results: dict[Hashable, PullResult] = {}


class PullService:
    """Answers pulls. Any thread may call."""

    def __init__(self, reader: GroupReader, consumers: ConsumerManager, offsets: ConsumerOffsetManager) -> None:
        self.reader = reader
        self.settings = reader.settings
        self.consumers = consumers
        self.offsets = offsets
        self.limits = TransferLimits.of(reader.settings)

    def pull(self, request: PullRequest) -> PullResult:
        """Answer a new pull, and commit the offset that comes with it.

        Raises:
            RequestRefused: the group may not read, or there is no such topic, queue or subscription.
            DamagedStore: the bytes of a record are damaged.
        """
        message_filter = self.check(request)
        if request.commit_offset is not None:
            self.offsets.commit_offset(request.group, request.topic, request.queue_id, request.commit_offset)
        return self.read(request, message_filter, request.queue_offset)

    def pull_again(self, request: PullRequest, queue_offset: int, shared: SharedAnswers | None = None) -> PullResult:
        """Answer a held pull from *queue_offset* on; repeat all checks, but commit no offset again.

        Args:
            shared: results of other pulls that wait for the same queue; this pull's result is added.
        """
        return self.read(request, self.check(request, shared), queue_offset, shared)

    def pull_appended(
        self, request: PullRequest, appended: Sequence[Place], shared: SharedAnswers
    ) -> PullResult | None:
        """Answer a held pull from records that were just appended; repeat all checks.

        Args:
            appended: queue offsets, which follow each other, and units of the records from the pull's offset on.
            shared: as `pull_again`.

        Returns:
            None: only the consume queue can tell.
        """
        message_filter = self.check(request, shared)
        if message_filter is not None and not isinstance(message_filter, TagMessageFilter):
            return None
        codes = None if message_filter is None else message_filter.codes
        key = (appended[0][0], request.count_max, request.bytes_max, codes)
        result = shared.results.get(key)
        if result is None:
            found = self.reader.get_appended(
                request.topic, request.queue_id, appended, max(request.count_max, 1), codes, self.limits_of(request)
            )
            if found is None:
                return None
            result = shared.results[key] = answer(appended[0][0], found)
        return result

    def read(
        self,
        request: PullRequest,
        message_filter: MessageFilter | None,
        queue_offset: int,
        shared: SharedAnswers | None = None,
    ) -> PullResult:
        """Read a queue, unless *shared* has the result already."""
        if message_filter is None:
            codes = None
        elif isinstance(message_filter, TagMessageFilter):
            codes = message_filter.codes
        else:
            # The filter may depend on the group.
            shared = None
        if shared is None:
            return answer(queue_offset, self.get(request, message_filter, queue_offset))
        key = (queue_offset, request.count_max, request.bytes_max, codes)
        result = shared.results.get(key)
        if result is None:
            result = answer(queue_offset, self.get(request, message_filter, queue_offset))
            shared.results[key] = result
        return result

    def get(self, request: PullRequest, message_filter: MessageFilter | None, queue_offset: int) -> GetMessageResult:
        """Read a queue within the limits of one transfer.

        Raises:
            DamagedStore: the bytes of a record, or of the queue, are damaged.
            StoreError: the system cannot read them.
        """
        # In RocketMQ one message always fits, regardless of the limit.
        count_max = max(request.count_max, 1)
        limits = self.limits_of(request)
        return self.reader.get(request.topic, request.queue_id, queue_offset, count_max, message_filter, limits)

    def limits_of(self, request: PullRequest) -> TransferLimits:
        """Return the limits of one transfer for a pull."""
        limits = self.limits
        if request.bytes_max is None:
            return limits
        bytes_max = max(request.bytes_max, BYTES_MAX_MIN)
        return msgspec.structs.replace(
            limits,
            bytes_in_memory=min(limits.bytes_in_memory, bytes_max),
            bytes_on_disk=min(limits.bytes_on_disk, bytes_max),
        )

    def check(self, request: PullRequest, shared: SharedAnswers | None = None) -> MessageFilter | None:
        """Return the filter for a pull; None lets every message pass.

        Raises:
            RequestRefused: a broker would refuse the pull.
        """
        if shared is None or request.group not in shared.groups:
            self.reader.require_queue(request.group, request.topic, request.queue_id)
            if shared is not None:
                shared.groups.add(request.group)
        subscription = request.subscription or self.registered(request)
        if request.as_tags_only:
            return None
        compiled = subscription.compiled
        registered = None
        if isinstance(compiled, SqlFilter):
            if not self.settings.enable_property_filter:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the broker does not filter by SQL92: topic={request.topic!r}",
                    "Set enable_property_filter.",
                )
            if request.subscription is None:
                registered = self.registered_filter(request)
        return self.reader.message_filter(request.group, request.topic, compiled, registered)

    def registered(self, request: PullRequest) -> Subscription:
        """Return the group's registered subscription for the topic.

        Raises:
            RequestRefused: there is no subscription, it is older than the pull's, or the group may not broadcast.
        """
        info = self.consumers.find(request.group)
        if info is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"no consumer of the group is connected: group={request.group!r}"
            )
        broadcasts = info.message_model == BROADCASTING
        if broadcasts and not self.reader.groups.require(request.group).consume_broadcast_enable:
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

    def registered_filter(self, request: PullRequest) -> ConsumerFilter | None:
        """Return the group's registered filter for an expression; None: this service keeps no filters.

        Raises:
            RequestRefused: the filter is missing, or older than the pull's version.
        """
        filters = self.consumers.filters
        if filters is None:
            return None
        found = filters.consumer_filter(request.group, request.topic)
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


def answer(queue_offset: int, found: GetMessageResult) -> PullResult:
    """Return the broker's answer for *found*, read at *queue_offset*."""
    if found.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE:
        code = ResponseCode.PULL_OFFSET_MOVED if queue_offset else ResponseCode.PULL_NOT_FOUND
    else:
        code = CODES[found.status]
    return PullResult(
        found.status, code, found.next_queue_offset, found.queue_offset_min, found.queue_offset_max, found.records
    )
