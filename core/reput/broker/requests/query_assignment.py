"""QueryAssignmentProcessor: shares a group's queues for Java clients that let the broker do it.

    DefaultMQPushConsumer.setClientRebalance(false) ──▶ QUERY_ASSIGNMENT ──▶ the client's queues, to be pulled

The topic's route may have queues of other brokers. If it comes from name servers elsewhere, they are asked each time.

Source: RocketMQ broker, QueryAssignmentProcessor. Its mode POP is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from reput.broker.requests.client_manage import decode_body
from reput.broker.state.connected_clients import ConnectedClients
from reput.consume.registry.consumer_manager import BROADCASTING
from reput.errors import ReputError, RequestRefused
from reput.json_encoding import encode_json
from reput.namesrv.route_info import TopicRouteData, readable_queues
from reput.remoting.allocation import JAVA_STRATEGIES, STRATEGIES
from reput.remoting.connection import Connection
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode

__all__ = ["QueryAssignmentProcessor"]

# Questions that wait for a name server.
WAITING_MAX = 1_000


class QueryAssignmentBody(msgspec.Struct, rename="camel"):
    """The body of QUERY_ASSIGNMENT."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class QueryAssignmentProcessor:
    """Used in the thread of the broker's loop only."""

    def __init__(
        self, clients: ConnectedClients, find_route: Callable[[str], Awaitable[TopicRouteData | None]]
    ) -> None:
        """*find_route* returns the route of a topic over all brokers, None if there is none."""
        self.clients = clients
        self.find_route = find_route
        self.tasks: set[asyncio.Task[None]] = set()

    def query(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Answer QUERY_ASSIGNMENT, later.

        Raises:
            RequestRefused: SYSTEM_ERROR; the body is wrong, or the strategy is unknown, after which the client shares
                the queues itself. SYSTEM_BUSY; too many questions wait for a name server.
        """
        body = decode_body(request, QueryAssignmentBody)
        if body.strategy_name not in JAVA_STRATEGIES:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the strategy is unknown: strategy_name={body.strategy_name[:100]!r}"
            )
        if len(self.tasks) >= WAITING_MAX:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"too many questions wait: waiting_max={WAITING_MAX}")
        task = asyncio.get_running_loop().create_task(self.answer(request, connection, body))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return None

    async def answer(self, request: RemotingCommand, connection: Connection, body: QueryAssignmentBody) -> None:
        """Send the answer."""
        try:
            route = await self.find_route(body.topic)
        except (ReputError, TimeoutError) as error:
            reason = str(error) or "no name server answers in time"
            connection.respond(request, RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=reason))
            return
        # Without the member, the client goes on with the queues that it has.
        answer = {}
        if route is not None:
            assigned = [{"messageQueue": queue, "mode": "PULL"} for queue in self.assigned(route, body)]
            answer["messageQueueAssignments"] = assigned
        connection.respond(request, RemotingCommand(ResponseCode.SUCCESS, body=encode_json(answer)))

    def assigned(self, route: TopicRouteData, body: QueryAssignmentBody) -> Sequence[MessageQueue]:
        """Return the queues of a client."""
        queues = readable_queues(route, body.topic)
        if body.message_model == BROADCASTING:
            return queues
        group = self.clients.consumers.get(body.consumer_group)
        client_ids = [] if group is None else sorted(group.client_ids())
        if body.client_id not in client_ids:
            return []
        return STRATEGIES[JAVA_STRATEGIES[body.strategy_name]](body.client_id, queues, client_ids)
