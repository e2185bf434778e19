"""QueueRequests: the requests of a consumer group to the brokers of its queues.

Source: RocketMQ client, MQClientAPIImpl and RebalanceImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterable, Mapping

import msgspec

from reput.client.answers import decoded, number_of
from reput.client.routes import Route, refused
from reput.client.session import Session
from reput.consume.pull.topic_reader import Beginning
from reput.consume.registry.subscription import SQL92, Subscription
from reput.errors import BrokerError, ReputError
from reput.filter import TagFilter
from reput.json_encoding import encode_json
from reput.remoting.heartbeat import CheckClientBody, SubscriptionData
from reput.remoting.message_queue import LockBatchBody, LockedQueues, MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode

__all__ = ["QueueRequests", "queue_fields", "reset_offsets", "subscription_data"]

UNREGISTER_TIMEOUT_S = 1.0

# {{"brokerName":…,"queueId":…,"topic":…}:offset,…}
RESET_OFFSET = re.compile(rb"(\{[^{}]*\})\s*:\s*(\d+)")

logger = logging.getLogger(__name__)


class ConsumerList(msgspec.Struct, rename="camel"):
    """The body of GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str] = []


class QueueRequests:
    """Used in the thread of its session's loop only."""

    def __init__(self, session: Session, group: str) -> None:
        self.session = session
        self.group = group

    async def place_of(self, queue: MessageQueue, place: Beginning) -> int:
        """Return the queue offset of *place*: the queue's begin, its end, or a store time."""
        if place == "earliest":
            return await self.ask_offset(RequestCode.GET_MIN_OFFSET, queue)
        if place == "latest":
            # The consume queue may not have the last messages yet, and they are not newer than a consumer that begins.
            return await self.ask_offset(RequestCode.GET_MAX_OFFSET, queue, committed="false")
        return await self.ask_offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=str(place))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset; None: there is none."""
        fields = queue_fields(queue) | {"consumerGroup": self.group, "setZeroIfNotFound": "false"}
        response = await self.session.invoke(
            self.master(queue), RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise refused(response)
        return number_of(response, "offset")

    async def ask_offset(self, code: RequestCode, queue: MessageQueue, **fields: str) -> int:
        """Return an offset of a queue."""
        response = await self.session.request(self.master(queue), RemotingCommand(code, queue_fields(queue) | fields))
        return max(number_of(response, "offset"), 0)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset of a queue.

        Raises:
            RequestRefused: the broker refuses.
            BrokerError: the broker cannot be reached.
        """
        fields = queue_fields(queue) | {"consumerGroup": self.group, "commitOffset": str(offset)}
        await self.session.request(self.master(queue), RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))

    def master(self, queue: MessageQueue) -> str:
        """Return the address of the broker that has a queue.

        Raises:
            BrokerError: the broker has no address now.
        """
        address = self.session.routes.master(queue.broker_name)
        if address is None:
            raise BrokerError(f"the broker has no address: broker_name={queue.broker_name}")
        return address

    async def client_ids(self, route: Route) -> list[str]:
        """Return the ids of the group's members; an empty list if no broker answers."""
        # A broker that hangs costs the time limit of a request, and usually has no connection.
        for broker in sorted(route.masters.values(), key=lambda broker: self.session.connected(broker) is None):
            try:
                response = await self.session.invoke(
                    broker, RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group})
                )
                if response.code == ResponseCode.SUCCESS:
                    return decoded(response.body_bytes, ConsumerList).consumer_id_list
            except BrokerError:
                continue
            await self.session.send_heartbeats()
        return []

    async def unregister(self) -> None:
        """Tell the brokers that are connected, all at once, that this client leaves the group."""
        fields = {"clientID": self.session.client_id, "consumerGroup": self.group}
        asked = [
            self.session.invoke(broker, RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields), UNREGISTER_TIMEOUT_S)
            for broker in self.session.routes.all_masters()
            if self.session.connected(broker) is not None
        ]
        await asyncio.gather(*asked, return_exceptions=True)

    async def check_expressions(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Ask the brokers whether they accept the filter expressions.

        Raises:
            BrokerError: none of the brokers can be reached.
            RequestRefused: a broker does not support filter expressions, or does not compile this one.
        """
        requests = []
        for topic, subscription in subscriptions.items():
            route = self.session.routes.known.get(topic)
            if subscription.expression_type != SQL92 or route is None:
                continue
            body = CheckClientBody(self.session.client_id, self.group, subscription_data(subscription))
            for broker in route.masters.values():
                command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=encode_json(body))
                requests.append((broker, command))
        await self.session.request_all(requests)

    # Locks, for consuming in order.

    async def lock(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock queues at their brokers; return the queues that this consumer has locked now."""
        held: list[MessageQueue] = []
        for broker, of_broker in self.by_broker(queues).items():
            body = encode_json(LockBatchBody(self.group, self.session.client_id, of_broker))
            try:
                response = await self.session.request(broker, RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body))
                held += decoded(response.body_bytes, LockedQueues).held
            except ReputError as error:
                logger.warning("queues cannot be locked yet: group=%s error=%s", self.group, error)
        return held

    def unlock(self, queues: list[MessageQueue]) -> None:
        """Release the locks of queues."""
        for broker, of_broker in self.by_broker(queues).items():
            body = encode_json(LockBatchBody(self.group, self.session.client_id, of_broker))
            self.session.notify(broker, RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, body=body))

    def by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        """Return queues by the address of their broker; queues of brokers without an address are left out."""
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            address = self.session.routes.master(queue.broker_name)
            if address is not None:
                found.setdefault(address, []).append(queue)
        return found


def queue_fields(queue: MessageQueue) -> dict[str, str]:
    """Return the fields of a request that name a queue."""
    return {"topic": queue.topic, "queueId": str(queue.queue_id)}


def reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets of RESET_CONSUMER_CLIENT_OFFSET: in Java's JSON, the keys of an object are objects."""
    found = {}
    for key, value in RESET_OFFSET.findall(body):
        with contextlib.suppress(msgspec.MsgspecError):
            found[msgspec.json.decode(key, type=MessageQueue)] = int(value)
    return found


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """Return a subscription in the form that heartbeats use."""
    compiled = subscription.compiled
    tags = compiled if isinstance(compiled, TagFilter) else None
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.expression,
        expression_type=subscription.expression_type,
        sub_version=subscription.sub_version,
        tags_set=[] if tags is None else sorted(tags.tags),
        code_set=[] if tags is None else sorted(tags.codes),
    )
