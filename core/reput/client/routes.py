"""Routes: which brokers have which queues of a topic, as name servers answer. Answers are cached.

A route stays in use for a while when name servers do not know the topic any more, as in RocketMQ's clients. The topic
is deleted if its broker says so.

Source: RocketMQ client, MQClientInstance.updateTopicRouteInfoFromNameServer and TopicPublishInfo.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection

from reput.client.target import Target
from reput.errors import BrokerError, ReputError, RequestRefused
from reput.namesrv.route_info import QueueData, TopicRouteData, parsed_route, readable_queues
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ADVICE_FIELD, ResponseCode

__all__ = ["DEFAULT_TOPIC", "Route", "Routes", "refused"]

PERM_WRITE = 2
MASTER = "0"
# Messages to an unknown topic take the route of this topic. Its brokers create the unknown topic, if they may.
DEFAULT_TOPIC = "TBW102"
DEFAULT_TOPIC_QUEUE_NUMS = 4
# A name server that was started again knows each broker once it has registered again, which it does every 30 s.
UNKNOWN_KEPT_S = 120.0


class Route:
    """Where the queues of one topic are.

    Attributes:
        masters: by broker name, the address of the master, which accepts messages.
        brokers: by broker name, the addresses of all its brokers by id.
        data: the route in the form in which the name server sent it.
        is_default: the topic is unknown, and this is the route of the template from which brokers create it.
        unknown_since: when a name server first did not know the topic, in seconds of the loop's clock; None: it does.
    """

    __slots__ = ("brokers", "data", "is_default", "masters", "queues", "topic", "turn", "unknown_since", "writable")

    def __init__(self, topic: str, data: TopicRouteData, *, is_default: bool = False) -> None:
        self.topic = topic
        self.data = data
        self.is_default = is_default
        self.unknown_since: float | None = None
        self.brokers = {broker.broker_name: broker.broker_addrs for broker in data.broker_datas}
        self.masters = {name: addresses[MASTER] for name, addresses in self.brokers.items() if MASTER in addresses}
        self.queues: list[QueueData] = sorted(data.queue_datas, key=lambda queue: queue.broker_name)
        nums_max = DEFAULT_TOPIC_QUEUE_NUMS if is_default else 1 << 31
        self.writable = [
            MessageQueue(queue.broker_name, queue_id, topic)
            for queue in self.queues
            if queue.perm & PERM_WRITE and queue.broker_name in self.masters
            for queue_id in range(min(queue.write_queue_nums, nums_max))
        ]
        # A random start spreads programs that start together over the queues.
        self.turn = random.randrange(max(len(self.writable), 1))

    def readable(self) -> list[MessageQueue]:
        """Return the queues that consumers read, in the order in which RocketMQ allocates them."""
        return readable_queues(self.data, self.topic)

    def next_writable(self, other_than: Collection[str] = ()) -> MessageQueue:
        """Return the next queue in turn, if possible of a broker whose name is not in *other_than*."""
        writable = self.writable
        for _ in range(len(writable)):
            self.turn = (self.turn + 1) % len(writable)
            if writable[self.turn].broker_name not in other_than:
                break
        return writable[self.turn]


class Routes:
    """The routes that one session knows. Used in its loop only.

    Args:
        invoke: sends a request to a name server, and returns the response.
    """

    def __init__(self, target: Target, invoke: Callable[[str, RemotingCommand], Awaitable[RemotingCommand]]) -> None:
        self.target = target
        self.invoke = invoke
        # The route that was answered last comes last.
        self.known: dict[str, Route] = {}
        self.fetching: dict[str, asyncio.Task[Route | None]] = {}

    async def find(self, topic: str) -> Route | None:
        """Return the known route of a topic, or ask for it; None: no broker has the topic.

        Raises:
            BrokerError: no name server answers.
        """
        found = self.known.get(topic)
        return found if found is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> Route | None:
        """Ask for the route of a topic. Concurrent callers share one request.

        Raises:
            BrokerError: no name server answers.
        """
        task = self.fetching.get(topic)
        if task is None:
            task = self.fetching[topic] = asyncio.ensure_future(self.fetch(topic))
            task.add_done_callback(lambda done: self.fetched(topic, done))
        return await asyncio.shield(task)

    async def look_up(self, topic: str) -> None:
        """Ask for a route again; if that fails, keep the old one."""
        with contextlib.suppress(ReputError, TimeoutError):
            await self.refresh(topic)

    def fetched(self, topic: str, task: asyncio.Task[Route | None]) -> None:
        """Keep an answer."""
        del self.fetching[topic]
        if task.cancelled() or task.exception() is not None:
            return
        route, known = task.result(), self.known.get(topic)
        if route is None:
            # The route of a template is kept until the topic exists.
            if known is not None and not known.is_default:
                now = task.get_loop().time()
                if known.unknown_since is None:
                    known.unknown_since = now
                elif now - known.unknown_since > UNKNOWN_KEPT_S:
                    self.forget(topic)
        else:
            if known is not None and known.writable and route.writable:
                route.turn = known.turn % len(route.writable)
            self.known.pop(topic, None)
            self.known[topic] = route

    def forget(self, topic: str) -> None:
        """Drop a route, because its broker does not have the topic any more."""
        self.known.pop(topic, None)

    async def to_send(self, topic: str) -> Route:
        """Return a route for messages to a topic, which a broker may have to create first.

        Raises:
            RequestRefused: TOPIC_NOT_EXIST; no broker has the topic or creates it.
            BrokerError: no name server answers.
        """
        route = await self.find(topic)
        if route is None:
            template = await self.fetch(DEFAULT_TOPIC)
            if template is not None and template.writable:
                route = Route(topic, template.data, is_default=True)
                self.known[topic] = route
        if route is None or not route.writable:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no broker takes messages of the topic: topic={topic!r}",
                "Create the topic, or let brokers create it: auto_create_topic_enable.",
            )
        return route

    async def fetch(self, topic: str) -> Route | None:
        """Ask the name servers, one after the other, for the route of a topic; None: it is unknown.

        Raises:
            BrokerError: no name server answers.
        """
        error: Exception | None = None
        for address in self.target.name_servers():
            try:
                response = await self.invoke(
                    address, RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                )
            except (BrokerError, TimeoutError) as raised:
                error = error or raised
                continue
            self.target.prefer(address)
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if response.code != ResponseCode.SUCCESS:
                raise refused(response)
            return Route(topic, parsed_route(response.body_bytes))
        if isinstance(error, BrokerError):
            raise error
        raise BrokerError(f"no name server answers in time: name_servers={';'.join(self.target.name_servers())}")

    def master(self, broker_name: str) -> str | None:
        """Return the address of the master among the brokers of that name, as the latest route says."""
        # After a fail-over, the routes of topics that were not asked for again name the former master.
        for route in reversed(self.known.values()):
            if broker_name in route.masters:
                return route.masters[broker_name]
        return None

    def broker(self, broker_name: str, broker_id: int) -> str | None:
        """Return the address of the broker with this name and id; without it, the first address of the name."""
        for route in reversed(self.known.values()):
            addresses = route.brokers.get(broker_name)
            if addresses:
                return addresses.get(str(broker_id)) or next(iter(addresses.values()))
        return None

    def all_masters(self) -> list[str]:
        """Return the addresses of all masters."""
        return list(dict.fromkeys(address for route in self.known.values() for address in route.masters.values()))


def refused(response: RemotingCommand) -> RequestRefused:
    """Return the error for a response with which a broker refuses a request."""
    try:
        code: int = ResponseCode(response.code)
    except ValueError:
        code = response.code
    text = response.remark or f"the broker refuses the request: response_code={response.code}"
    return RequestRefused(code, text, response.ext_fields.get(ADVICE_FIELD, ""))
