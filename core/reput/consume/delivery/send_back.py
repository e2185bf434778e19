"""send_back: a message that a consumer could not handle is delivered again later, and finally to the dead letters.

    orders ── fails ──▶ SCHEDULE_TOPIC_XXXX ── 10 s ──▶ %RETRY%group ── fails ──▶ … 30 s … ──▶ %DLQ%group
                                              reconsume_times + 1 each

The copy keeps body, flag, birth and properties. RETRY_TOPIC names the first topic, ORIGIN_MESSAGE_ID the record there.
No copy waits for the disk (WAIT).

Source: RocketMQ broker, AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import random
from typing import Protocol

import msgspec

from reput.consume.delivery.carried_message import carried_message, carried_properties
from reput.consume.registry.statistics import Statistics
from reput.consume.registry.subscription_groups import SubscriptionGroups
from reput.consume.registry.topics import DLQ_PREFIX, RETRY_PREFIX, Topics
from reput.errors import RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.config.topic_config_manager import PERM_READ, PERM_WRITE
from reput.store.record.message import Message, MessageExtBrokerInner, PutMessageResult
from reput_hooks import Record

__all__ = ["RetryingStore", "dead_letter_when_exhausted", "send_back"]

# The delay level of the first retry; each further one waits one level longer.
FIRST_DELAY_LEVEL = 3
UNIT_SUB_FLAG = 2


class RetryServices(Protocol):
    """The topics, groups and counts that a retry uses."""

    @property
    def topics(self) -> Topics:
        """The store's topics."""

    @property
    def groups(self) -> SubscriptionGroups:
        """The store's consumer groups."""

    @property
    def statistics(self) -> Statistics:
        """The counts of messages delivered to groups and sent back."""


class RetryingStore(Protocol):
    """A store that is open for writing, with its topics and groups."""

    @property
    def settings(self) -> Settings:
        """The store's settings."""

    @property
    def services(self) -> RetryServices:
        """Topics and groups."""

    def put(self, message: Message) -> PutMessageResult:
        """Store a message."""


def send_back(
    store: RetryingStore,
    group: str,
    record: Record,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
    *,
    unit_mode: bool = False,
) -> PutMessageResult | None:
    """Redeliver *record* to *group* later, or put it into the dead letters after the last retry; count it.

    Args:
        delay_level: 0: longer each time, by RocketMQ's table; below 0: to the dead letters at once.
        max_reconsume_times: the number of retries; None: as the group's configuration says.
        unit_mode: a newly created retry topic is marked as one of RocketMQ's units.

    Returns:
        Where the copy was stored: in the schedule topic, or among the dead letters. None: the group has no retry
        queues, so nothing was stored.

    Raises:
        RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST; or NO_PERMISSION, the broker or the topic takes no messages.
        MessageIllegal: the copy's additional properties break a limit, or the group's name makes too long a topic.
        StoreError: it could not be stored.
    """
    config = store.services.groups.require(group)
    if not store.settings.broker_permission & PERM_WRITE:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker takes no messages: broker_permission={store.settings.broker_permission}",
        )
    if config.retry_queue_nums <= 0:
        return None
    if max_reconsume_times is None:
        max_reconsume_times = config.retry_max_times
    properties = carried_properties(record)
    properties.setdefault("RETRY_TOPIC", record.topic)
    properties["WAIT"] = "false"
    properties.setdefault("ORIGIN_MESSAGE_ID", record.message_id)
    if record.reconsume_times >= max_reconsume_times or delay_level < 0:
        topic, queue_nums, delay_level = DLQ_PREFIX + group, 1, 0
        properties["DELAY"] = "0"
    else:
        topic, queue_nums = RETRY_PREFIX + group, config.retry_queue_nums
        delay_level = delay_level or FIRST_DELAY_LEVEL + record.reconsume_times
    described = store.services.topics.create_when_missing(
        topic,
        queue_nums,
        perm=PERM_READ | PERM_WRITE,
        topic_sys_flag=UNIT_SUB_FLAG if unit_mode else 0,
    )
    if not described.perm & PERM_WRITE:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic takes no messages: topic={topic!r}")
    # The group may have gained queues after the topic was created; consumers read the topic's queues.
    queue_id = random.randrange(max(1, min(queue_nums, described.read_queue_nums)))
    message = carried_message(record, topic, queue_id, properties, keeps_store_host=False)
    result = store.put(
        msgspec.structs.replace(message, reconsume_times=record.reconsume_times + 1, delay_level=delay_level)
    )
    store.services.statistics.sent_back(group, properties["RETRY_TOPIC"], dead=topic == DLQ_PREFIX + group)
    return result


def dead_letter_when_exhausted(
    store: RetryingStore, message: MessageExtBrokerInner, max_reconsume_times: int | None = None
) -> MessageExtBrokerInner:
    """Return the message to put for one that a client sends to a retry topic directly.

    Consumers do so when `send_back` failed, or when an orderly consumer gives up. The result is *message* itself, or,
    after more deliveries than the maximum, its dead letter; messages for other topics are not changed.

    Raises:
        RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.

    Source: RocketMQ broker, SendMessageProcessor.handleRetryAndDLQ.
    """
    if not message.topic.startswith(RETRY_PREFIX):
        return message
    group = message.topic.removeprefix(RETRY_PREFIX)
    config = store.services.groups.require(group)
    if message.reconsume_times <= (config.retry_max_times if max_reconsume_times is None else max_reconsume_times):
        return message
    store.services.topics.create_when_missing(DLQ_PREFIX + group, 1, perm=PERM_READ | PERM_WRITE)
    return msgspec.structs.replace(
        message,
        topic=DLQ_PREFIX + group,
        queue_id=0,
        delay_level=0,
        properties={**(message.properties or {}), "DELAY": "-1"},
    )
