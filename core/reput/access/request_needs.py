"""What each request needs: permissions for topics and groups, or an administrator's account.

    code               topic                group
    10, 310, 320       PUB                  SUB instead, if the topic is a group's retry topic
    324, 325           PUB, unless it is the reply topic of the cluster
    11, 361            SUB                  SUB
    12                 SUB
    34                 SUB of each          SUB of each
    15                 SUB                  SUB
    35, 36, 38                              SUB
    33, 36, 309        SUB, of the topic of the record that the request names by its place

Other requests that change something or show the configuration need an administrator. The rest need only a signature.
RocketMQ 4.9 asks for nothing but a signature for batches and replies, whatever their topic.

Source: RocketMQ acl, PlainAccessResource.parse and Permission.ADMIN_CODE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode as Code
from reput_hooks import Record

__all__ = [
    "ADMIN_CODES",
    "NAME_SERVER_READS",
    "NAME_SERVER_WRITES",
    "PUB",
    "SUB",
    "Need",
    "more_needs_of",
    "need_of_record",
    "needs_of",
]

PUB, SUB = 4, 8
RETRY_PREFIX = "%RETRY%"
REPLY_SUFFIX = "_REPLY_TOPIC"
# In these topics, messages wait for their delivery to another one.
WAITING_TOPICS = frozenset(("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"))

# RocketMQ's name server has no accounts: clients find their routes without one.
NAME_SERVER_READS = frozenset(
    (
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_KV_CONFIG,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.QUERY_DATA_VERSION,
    )
)
# The sender of these requests decides where all clients send their messages.
NAME_SERVER_WRITES = frozenset(
    (
        Code.PUT_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.BROKER_HEARTBEAT,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.GET_NAMESRV_CONFIG,
    )
)
# Requests that producers and consumers need themselves.
CLIENT_CODES = frozenset(
    (
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.QUERY_MESSAGE,
        Code.VIEW_MESSAGE_BY_ID,
        Code.QUERY_CONSUMER_OFFSET,
        Code.UPDATE_CONSUMER_OFFSET,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME,
        Code.HEART_BEAT,
        Code.UNREGISTER_CLIENT,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.END_TRANSACTION,
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.LOCK_BATCH_MQ,
        Code.UNLOCK_BATCH_MQ,
        Code.QUERY_ASSIGNMENT,
        Code.CHECK_CLIENT_CONFIG,
    )
)
OFFSET_CODES = frozenset(
    (Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME)
)
# RocketMQ 4 allows these requests to every account, and its users' tools send them.
READING_CODES = frozenset(
    (
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_TOPIC_STATS_INFO,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_CONSUME_STATS,
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.QUERY_CONSUME_TIME_SPAN,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.QUERY_TOPICS_BY_CONSUMER,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        Code.GET_TOPIC_CONFIG,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    )
)
# The server refuses unknown codes from every client.
ADMIN_CODES = frozenset(Code) - CLIENT_CODES - READING_CODES - NAME_SERVER_READS - NAME_SERVER_WRITES


class Need(NamedTuple):
    """A permission that a request needs.

    Attributes:
        group: whether *name* is a group's.
        permission: `PUB` or `SUB`.
    """

    name: str
    permission: int
    is_group: bool = False


class SubscriptionNeeds(msgspec.Struct, rename="camel"):
    """The part of a subscription that decides over its needs."""

    topic: str = ""


class ConsumerNeeds(msgspec.Struct, rename="camel"):
    """The part of a consumer that decides over its needs."""

    group_name: str = ""
    subscription_data_set: list[SubscriptionNeeds] | None = None


class HeartbeatNeeds(msgspec.Struct):
    """The part of a heartbeat that decides over its needs."""

    consumers: list[ConsumerNeeds] | None = msgspec.field(name="consumerDataSet", default=None)


class LockNeeds(msgspec.Struct, rename="camel"):
    """The part of a lock or unlock that decides over its needs."""

    consumer_group: str = ""


decode_lock = msgspec.json.Decoder(LockNeeds, strict=False).decode
decode_heartbeat = msgspec.json.Decoder(HeartbeatNeeds, strict=False).decode


def needs_of(request: RemotingCommand) -> list[Need]:
    """Return the permissions that a request needs. A missing field needs none: the processor refuses the request."""
    needs = NEEDS.get(request.code)
    return [] if needs is None else needs(request)


def more_needs_of(request: RemotingCommand) -> list[Need]:
    """Return the permissions that RocketMQ 5 checks in addition to those of `needs_of`."""
    fields, code = request.ext_fields, request.code
    if code == Code.QUERY_CONSUMER_OFFSET:
        return [*reading(fields.get("topic", "")), Need(fields.get("consumerGroup", ""), SUB, True)]
    if code in OFFSET_CODES:
        return reading(fields.get("topic", ""))
    if code == Code.END_TRANSACTION and fields.get("topic"):
        return sending(fields["topic"])
    if code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.QUERY_ASSIGNMENT):
        try:
            return [Need(decode_lock(request.body_bytes).consumer_group, SUB, True)]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return []
    return []


def sending(topic: str) -> list[Need]:
    """Return the permissions for a message to a topic."""
    if topic.startswith(RETRY_PREFIX):
        return [Need(topic.removeprefix(RETRY_PREFIX), SUB, True)]
    return [Need(topic, PUB)]


def reading(topic: str) -> list[Need]:
    """Return the permissions for reading a topic. A retry topic needs the permission of its group."""
    if topic.startswith(RETRY_PREFIX):
        return [Need(topic.removeprefix(RETRY_PREFIX), SUB, True)]
    return [Need(topic, SUB)]


def need_of_record(record: Record) -> Need:
    """Return the permission for reading one record."""
    topic = record.topic
    if topic in WAITING_TOPICS:
        topic = record.properties.get("REAL_TOPIC", topic)
    (need,) = reading(topic)
    return need


def of_heartbeat(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a heartbeat; none for an unreadable one, which its processor refuses."""
    try:
        heartbeat = decode_heartbeat(request.body_bytes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    needs: list[Need] = []
    for consumer in heartbeat.consumers or ():
        needs.append(Need(consumer.group_name, SUB, True))
        for subscription in consumer.subscription_data_set or ():
            needs += reading(subscription.topic)
    return needs


def of_long_send(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a send whose fields have their long names."""
    return sending(request.ext_fields.get("topic", ""))


def of_short_send(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a send whose fields have their short names."""
    return sending(request.ext_fields.get("b", ""))


def of_long_reply(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a reply whose fields have their long names."""
    topic = request.ext_fields.get("topic", "")
    return [] if topic.endswith(REPLY_SUFFIX) else sending(topic)


def of_short_reply(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a reply whose fields have their short names."""
    topic = request.ext_fields.get("b", "")
    return [] if topic.endswith(REPLY_SUFFIX) else sending(topic)


def of_consuming(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a request that consumes a topic for a group."""
    fields = request.ext_fields
    return [*reading(fields.get("topic", "")), Need(fields.get("consumerGroup", ""), SUB, True)]


def of_query(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a query."""
    return reading(request.ext_fields.get("topic", ""))


def of_send_back(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a consumer that sends a message back."""
    return [Need(request.ext_fields.get("group", ""), SUB, True)]


def of_member_list(request: RemotingCommand) -> list[Need]:
    """Return the permissions for the list of a group's members."""
    return [Need(request.ext_fields.get("consumerGroup", ""), SUB, True)]


def of_unregistration(request: RemotingCommand) -> list[Need]:
    """Return the permissions for a client that leaves its groups."""
    return of_member_list(request) if request.ext_fields.get("consumerGroup") else []


NEEDS: dict[int, Callable[[RemotingCommand], list[Need]]] = {
    Code.SEND_MESSAGE: of_long_send,
    Code.SEND_MESSAGE_V2: of_short_send,
    Code.SEND_BATCH_MESSAGE: of_short_send,
    Code.SEND_REPLY_MESSAGE: of_long_reply,
    Code.SEND_REPLY_MESSAGE_V2: of_short_reply,
    Code.PULL_MESSAGE: of_consuming,
    Code.LITE_PULL_MESSAGE: of_consuming,
    Code.UPDATE_CONSUMER_OFFSET: of_consuming,
    Code.QUERY_MESSAGE: of_query,
    Code.CONSUMER_SEND_MSG_BACK: of_send_back,
    Code.GET_CONSUMER_LIST_BY_GROUP: of_member_list,
    Code.UNREGISTER_CLIENT: of_unregistration,
    Code.HEART_BEAT: of_heartbeat,
}
