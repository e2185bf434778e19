"""ClientManageProcessor: heartbeats, members of groups, and locks of queues that are consumed in order.

Source: RocketMQ broker, ClientManageProcessor, ConsumerManageProcessor and AdminBrokerProcessor.lockBatchMQ.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

from reput.broker.state.broker_topics import BrokerTopics
from reput.broker.state.connected_clients import ClientChannel, ConnectedClients, ConsumerGroupChannels
from reput.broker.state.expressions import EXPRESSION_SIZE_MAX, Expressions
from reput.broker.state.rebalance_locks import NAME_SIZE_MAX, RebalanceLocks
from reput.consume.registry.subscription import SQL92, Subscription
from reput.consume.registry.subscription_groups import SubscriptionGroups
from reput.errors import RequestRefused
from reput.filter.errors import FilterSyntaxError
from reput.json_encoding import encode_json
from reput.remoting.connection import Connection
from reput.remoting.custom_header import text
from reput.remoting.heartbeat import CheckClientBody, ConsumerData, HeartbeatData, SubscriptionData
from reput.remoting.message_queue import LockBatchBody
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings

__all__ = ["ClientManageProcessor", "decode_body"]

SUCCESS = ResponseCode.SUCCESS
CLIENT_ID_SIZE_MAX = 1024
WORD_SIZE_MAX = 64
# Approximate number of bytes that a subscription takes in addition to its expression.
SUBSCRIPTION_SIZE = 512
# Decoded JSON takes many times the size of its text.
BODY_SIZE_MAX = 2 << 20
Body = TypeVar("Body")

logger = logging.getLogger(__name__)


class ClientManageProcessor:
    """Used in the thread of the broker's loop only."""

    def __init__(
        self,
        clients: ConnectedClients,
        groups: SubscriptionGroups,
        topics: BrokerTopics,
        locks: RebalanceLocks,
        settings: Settings,
        expressions: Expressions,
    ) -> None:
        self.clients = clients
        self.groups = groups
        self.topics = topics
        self.locks = locks
        self.settings = settings
        self.expressions = expressions

    def heartbeat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer HEART_BEAT."""
        data = decode_body(request, HeartbeatData)
        check_size("clientID", data.client_id, CLIENT_ID_SIZE_MAX)
        channel = ClientChannel(connection, data.client_id, request.language, request.version)
        for consumer in data.consumers or ():
            self.register_consumer(channel, consumer)
        for producer in data.producers or ():
            check_size("groupName", producer.group_name, NAME_SIZE_MAX)
            self.clients.register_producer(producer.group_name, channel)
        return RemotingCommand(SUCCESS)

    def register_consumer(self, channel: ClientChannel, data: ConsumerData) -> None:
        """Register a client in one of its consumer groups; the group and its retry topic are created if need be."""
        group = data.group_name
        config = self.groups.find(group)
        if config is None:
            logger.warning("clients may not create groups: group=%r client_id=%r", group, channel.client_id)
            return
        if config.retry_queue_nums > 0:
            # Also for a broadcasting group, which retries nothing: by this route mqadmin finds the brokers of a group.
            self.topics.retry_topic(group, config.retry_queue_nums, is_unit=data.unit_mode)
        subscriptions = []
        size = 0
        for subscription in data.subscription_data_set or ():
            check_size("topic", subscription.topic, NAME_SIZE_MAX)
            check_size("subString", subscription.sub_string or "", EXPRESSION_SIZE_MAX)
            size += SUBSCRIPTION_SIZE + len(subscription.sub_string or "")
            try:
                subscriptions.append(self.compiled(channel.connection, subscription))
            except FilterSyntaxError as error:
                # Its pulls are refused: SUBSCRIPTION_NOT_EXIST.
                logger.warning(
                    "a subscription does not compile: group=%r topic=%r error=%s", group, subscription.topic, error
                )
        self.clients.register_consumer(
            group,
            channel,
            subscriptions,
            message_model=word(data.message_model, "CLUSTERING"),
            consume_type=word(data.consume_type, "CONSUME_PASSIVELY"),
            consume_from_where=word(data.consume_from_where, "CONSUME_FROM_LAST_OFFSET"),
            size=size,
        )

    def group_changed(self, group: str, channels: ConsumerGroupChannels) -> None:
        """Tell the connections of a group that its members or topics have changed."""
        config = self.groups.find(group)
        is_told = config is None or config.notify_consumer_ids_changed_enable
        if not (is_told and self.settings.notify_consumer_ids_changed_enable):
            return
        for connection in list(channels.channels):
            connection.notify(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}))

    def unregister(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UNREGISTER_CLIENT."""
        fields = request.ext_fields
        text(fields, "clientID")
        self.clients.unregister(connection, fields.get("producerGroup"), fields.get("consumerGroup"))
        return RemotingCommand(SUCCESS)

    def consumer_list(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_CONSUMER_LIST_BY_GROUP."""
        del connection
        group = text(request.ext_fields, "consumerGroup")
        found = self.clients.consumers.get(group)
        if found is None:
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {group}")
        return RemotingCommand(SUCCESS, body=encode_json({"consumerIdList": found.client_ids()}))

    def check_client(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer CHECK_CLIENT_CONFIG: whether this broker supports a client's filter expression."""
        body = decode_body(request, CheckClientBody)
        subscription = body.subscription_data
        if subscription is None or subscription.expression_type in (None, "", "TAG"):
            return RemotingCommand(SUCCESS)
        if subscription.expression_type == SQL92 and not self.settings.enable_property_filter:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.expression_type}",
                "Set enable_property_filter.",
            )
        try:
            self.compiled(connection, subscription)
        except FilterSyntaxError as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        return RemotingCommand(SUCCESS)

    def compiled(self, connection: Connection, subscription: SubscriptionData) -> Subscription:
        """Return a subscription of a client with its filter.

        Raises:
            FilterSyntaxError: the expression is not compiled.
        """
        return self.expressions.subscribe(
            connection,
            subscription.topic,
            subscription.sub_string or None,
            subscription.expression_type,
            subscription.sub_version,
        )

    # Locks.

    def lock(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer LOCK_BATCH_MQ."""
        del connection
        body = decode_body(request, LockBatchBody)
        check_size("clientId", body.client_id, CLIENT_ID_SIZE_MAX)
        for name in (body.consumer_group, *(queue.topic for queue in body.mq_set)):
            check_size("name", name, NAME_SIZE_MAX)
        held = self.locks.lock(body.consumer_group, body.client_id, body.mq_set)
        return RemotingCommand(SUCCESS, body=encode_json({"lockOKMQSet": held}))

    def unlock(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UNLOCK_BATCH_MQ."""
        del connection
        body = decode_body(request, LockBatchBody)
        self.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return RemotingCommand(SUCCESS)


def check_size(name: str, value: str, size_max: int) -> None:
    """Refuse a text of a client that is too long.

    Raises:
        RequestRefused: INVALID_PARAMETER.
    """
    if len(value) > size_max:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"the value of {name} is too long: size={len(value)} size_max={size_max}"
        )


def word(value: str | None, default: str) -> str:
    """Return one of RocketMQ's short constants, cut to the length that they can have."""
    return (value or default)[:WORD_SIZE_MAX]


def decode_body(request: RemotingCommand, kind: type[Body]) -> Body:
    """Return the JSON body of a request.

    Raises:
        RequestRefused: SYSTEM_ERROR; the body is too large, or is not what the request needs.
    """
    body = request.body_bytes
    if len(body) > BODY_SIZE_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the body is too large: body_size={len(body)} body_size_max={BODY_SIZE_MAX}"
        )
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the body cannot be read: code={request.code} error={error}"
        ) from None
