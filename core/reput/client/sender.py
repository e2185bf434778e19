"""Sender: sends the puts of one session. The puts of one turn of the loop are sent together.

    put ──▶ pending ── end of the turn ──▶ batches: topic, queue ──▶ request ──▶ outcomes
                                                       ▲                │ lost, or refused for a temporary reason
                                                       └── later ◀──────┘

If a broker cannot be reached, the put is repeated with pauses until its timeout, so a broker that is killed and
restarted causes only a delay. If only the answer was lost, the message is then stored twice. A put that is refused for
a temporary reason is repeated twice, if possible at another broker.

Source: RocketMQ client, DefaultMQProducerImpl.sendDefaultImpl and DefaultMQProducer.retryResponseCodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

from reput.client.routes import Route
from reput.client.sending import Sending, refusal_of, results_of, send_request, size_of
from reput.client.session import Session
from reput.errors import BrokerError, MessageIllegal, ReputError, RequestRefused
from reput.filter.string_hash import string_hash
from reput.remoting.connection import Connection
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import FrameError, RemotingCommand
from reput.remoting.response_code import ResponseCode

__all__ = ["Sender"]

# Bodies and properties of one batch; a larger message is sent alone.
BATCH_SIZE_MAX = 256 << 10
# While more bytes than this are sent but not answered, further messages wait.
UNANSWERED_SIZE_MAX = 32 << 20
LOOK_INTERVAL_S = 0.5
# A request without an answer for this long counts as lost.
ANSWER_TIMEOUT_S = 5.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 1.0
RETRIES_MAX = 2
STORED_CODES = frozenset((ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, 11, 12))
RETRIED_CODES = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        204,
        205,
        1500,
    )
)


class SendRequest:
    """Messages that one request carries.

    Attributes:
        queue: the queue to which it is sent now.
        may_move: the messages may go to another queue.
        refusals: how often the request was refused.
    """

    __slots__ = (
        "broker",
        "deadline",
        "lost_count",
        "may_move",
        "queue",
        "refusals",
        "sendings",
        "sent_at",
        "size",
    )

    def __init__(
        self, queue: MessageQueue, sendings: list[Sending], size: int, deadline: float, may_move: bool
    ) -> None:
        self.queue = queue
        self.sendings = sendings
        self.size = size
        self.deadline = deadline
        self.may_move = may_move
        self.refusals = 0
        self.lost_count = 0
        self.sent_at = 0.0
        self.broker: str | None = None

    def fail(self, error: ReputError) -> None:
        """Tell the error to all that wait for these messages."""
        for sending in self.sendings:
            if not sending.outcome.done():
                sending.outcome.set_exception(error)


class Sender:
    """Used in the thread of its session's loop only.

    Args:
        timeout: seconds after which a put fails.
    """

    def __init__(self, session: Session, timeout: float) -> None:
        self.session = session
        self.routes = session.routes
        self.loop = session.loop
        self.timeout = timeout
        self.pending: list[Sending] = []
        # By broker: the requests that wait for its connection.
        self.connecting: dict[str, list[SendRequest]] = {}
        # The topics whose route is being asked for, and the messages that wait for it.
        self.routing: dict[str, list[Sending]] = {}
        # Requests that were sent but not answered, the oldest first, with the future of the response.
        self.unanswered: dict[SendRequest, asyncio.Future[RemotingCommand]] = {}
        self.unanswered_size = 0
        self.held: list[Sending] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.timer: asyncio.TimerHandle | None = None

    def put(self, sending: Sending) -> None:
        """Send a message at the end of this turn."""
        if not self.pending:
            self.loop.call_soon(self.send_pending)
        self.pending.append(sending)

    def send_pending(self) -> None:
        """Send the messages that were put in this turn."""
        sendings, self.pending = self.pending, []
        if not sendings:
            return
        if self.unanswered_size > UNANSWERED_SIZE_MAX:
            self.held += sendings
            return
        deadline = self.loop.time() + self.timeout
        topic = sendings[0].topic
        for sending in sendings:
            if sending.topic != topic:
                break
        else:
            # Usually all messages have the same topic.
            self.send_topic(topic, sendings, deadline)
            return
        by_topic: dict[str, list[Sending]] = {}
        for sending in sendings:
            by_topic.setdefault(sending.topic, []).append(sending)
        for topic, of_topic in by_topic.items():
            self.send_topic(topic, of_topic, deadline)

    def send_topic(self, topic: str, sendings: list[Sending], deadline: float) -> None:
        """Send messages of one topic."""
        route = self.routes.known.get(topic)
        if topic in self.routing:
            self.routing[topic] += sendings
        elif route is None or not route.writable:
            self.routing[topic] = sendings
            self.start(self.find_route(topic, deadline))
        else:
            self.send_by_route(route, sendings, deadline)

    async def find_route(self, topic: str, deadline: float) -> None:
        """Ask for the route of a topic until it is found or the time is over; then send the messages that wait."""
        pause = PAUSE_MIN_S
        while True:
            try:
                route = await self.routes.to_send(topic)
            except RequestRefused as error:
                self.fail_all(self.routing.pop(topic), error)
                return
            except BrokerError as error:
                if self.loop.time() + pause > deadline:
                    self.fail_all(self.routing.pop(topic), error)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
                continue
            self.send_by_route(route, self.routing.pop(topic), max(deadline, self.loop.time() + 1.0))
            return

    def fail_all(self, sendings: Iterable[Sending], error: ReputError) -> None:
        """Tell *error* to all that wait for *sendings*."""
        for sending in sendings:
            if not sending.outcome.done():
                sending.outcome.set_exception(error)

    def send_by_route(self, route: Route, sendings: list[Sending], deadline: float) -> None:
        """Send messages of one topic: those without a queue in batches, each batch to the next queue in turn."""
        group = sendings[0].group
        free: list[Sending] = []
        size = 0
        for sending in sendings:
            if sending.queue_id is not None or sending.sharding_key is not None:
                if free:
                    self.send_free(route, free, size, deadline)
                    free, size = [], 0
                self.send_fixed(route, sending, deadline)
                continue
            added = size_of(sending)
            if free and (sending.is_alone or size + added > BATCH_SIZE_MAX or sending.group != group):
                self.send_free(route, free, size, deadline)
                free, size = [], 0
            free.append(sending)
            size += added
            group = sending.group
            if sending.is_alone:
                self.send_free(route, free, size, deadline)
                free, size = [], 0
        if free:
            self.send_free(route, free, size, deadline)

    def send_free(self, route: Route, sendings: list[Sending], size: int, deadline: float) -> None:
        """Send a batch to the next queue in turn."""
        self.send(SendRequest(route.next_writable(), sendings, size, deadline, True))

    def send_fixed(self, route: Route, sending: Sending, deadline: float) -> None:
        """Send a message to the queue that it names or that its sharding key selects."""
        queue_id = sending.queue_id
        if queue_id is None:
            assert sending.sharding_key is not None
            queue = route.writable[abs(string_hash(sending.sharding_key)) % len(route.writable)]
        else:
            brokers = [queue.broker_name for queue in route.writable if queue.queue_id == queue_id]
            # The route may be old, so the broker decides whether it has the queue.
            name = brokers[route.turn % len(brokers)] if brokers else route.writable[0].broker_name
            queue = MessageQueue(name, queue_id, sending.topic)
        self.send(SendRequest(queue, [sending], size_of(sending), deadline, False))

    # Requests.

    def send(self, request: SendRequest) -> None:
        """Send a request as soon as its broker is connected."""
        broker = request.broker = self.routes.master(request.queue.broker_name)
        if broker is None:
            self.lost(request, BrokerError(f"the broker has no address: broker_name={request.queue.broker_name}"))
            return
        waiting = self.connecting.get(broker)
        if waiting is not None:
            waiting.append(request)
            return
        connection = self.session.connected(broker)
        if connection is None:
            self.connecting[broker] = [request]
            self.start(self.connect(broker))
        else:
            self.send_on(connection, request)

    async def connect(self, broker: str) -> None:
        """Connect to a broker, and send the requests that wait for it."""
        error: ReputError | None = None
        connection = None
        try:
            connection = await self.session.connection(broker)
        except ReputError as raised:
            error = raised
        for request in self.connecting.pop(broker):
            if connection is not None:
                self.send_on(connection, request)
            elif error is not None:
                self.lost(request, error)

    def send_on(self, connection: Connection, request: SendRequest) -> None:
        """Send a request over *connection*."""
        command = send_request(request.queue, request.sendings, int(time.time() * 1000))
        try:
            future = connection.request(command)
        except FrameError as error:
            request.fail(MessageIllegal(str(error)))
            return
        except BrokerError as error:
            self.lost(request, error)
            return
        request.sent_at = self.loop.time()
        self.unanswered[request] = future
        self.unanswered_size += request.size
        if self.timer is None:
            self.timer = self.loop.call_later(LOOK_INTERVAL_S, self.look)
        future.add_done_callback(partial(self.answered, request))

    def answered(self, request: SendRequest, future: asyncio.Future[RemotingCommand]) -> None:
        """Handle a response, or the loss of the connection."""
        if self.unanswered.pop(request, None) is None:
            # The request was given up before; reading a late error keeps asyncio from reporting it.
            if not future.cancelled():
                future.exception()
            return
        self.unanswered_size -= request.size
        if self.held and self.unanswered_size < UNANSWERED_SIZE_MAX // 2:
            held, self.held = self.held, []
            self.pending = held + self.pending
            self.send_pending()
        if future.cancelled():
            self.lost(request, BrokerError("the connection was closed while a put was under way"))
            return
        error = future.exception()
        if error is not None:
            self.lost(request, error if isinstance(error, ReputError) else BrokerError(str(error)))
            return
        response = future.result()
        if response.code in STORED_CODES:
            self.stored(request, response)
        else:
            self.refused(request, response)

    def stored(self, request: SendRequest, response: RemotingCommand) -> None:
        """Tell those that wait where their messages are."""
        sendings = request.sendings
        try:
            results = results_of(response, len(sendings))
        except BrokerError as error:
            request.fail(error)
            return
        for sending, result in zip(sendings, results, strict=True):
            outcome = sending.outcome
            if not outcome.done():
                outcome.set_result(result)
        route = self.routes.known.get(sendings[0].topic)
        if route is not None and route.is_default and route.topic not in self.routes.fetching:
            # The broker has just created the topic.
            self.start(self.look_up(route.topic))

    async def look_up(self, topic: str) -> None:
        """Ask for a route again; if that fails, keep the old one."""
        with contextlib.suppress(ReputError, TimeoutError):
            await self.routes.refresh(topic)

    # Failures.

    def refused(self, request: SendRequest, response: RemotingCommand) -> None:
        """Repeat a refused request if the reason is temporary, otherwise fail it."""
        error = refusal_of(response)
        if isinstance(error, MessageIllegal) and len(request.sendings) > 1:
            # One of the messages is illegal: send each alone, so that only that one fails.
            for sending in request.sendings:
                self.send(SendRequest(request.queue, [sending], size_of(sending), request.deadline, request.may_move))
            return
        request.refusals += 1
        is_over = request.refusals > RETRIES_MAX or self.loop.time() >= request.deadline
        if is_over or response.code not in RETRIED_CODES:
            request.fail(error)
            return
        self.start(self.send_again(request, PAUSE_MIN_S))

    def lost(self, request: SendRequest, error: ReputError) -> None:
        """Repeat a request whose broker cannot be reached, until its time is over."""
        pause = min(PAUSE_MIN_S * 2**request.lost_count, PAUSE_MAX_S)
        request.lost_count += 1
        if self.session.closed or self.loop.time() + pause >= request.deadline:
            request.fail(error)
            return
        self.start(self.send_again(request, pause))

    async def send_again(self, request: SendRequest, pause: float) -> None:
        """Send a request again after *pause* seconds, if possible to another broker."""
        await asyncio.sleep(pause)
        topic = request.queue.topic
        await self.look_up(topic)
        route = self.routes.known.get(topic)
        if route is not None and route.writable and request.may_move:
            request.queue = route.next_writable(other_than=request.queue.broker_name)
        self.send(request)

    def look(self) -> None:
        """Treat requests without an answer for too long as lost: their connections may be dead."""
        self.timer = None
        before = self.loop.time() - min(ANSWER_TIMEOUT_S, self.timeout)
        for request in list(self.unanswered):
            if request.sent_at > before:
                break
            del self.unanswered[request]
            self.unanswered_size -= request.size
            error = BrokerError(f"the broker does not answer: broker={request.broker} sent_s_ago={ANSWER_TIMEOUT_S}")
            self.lost(request, error)
        if self.unanswered:
            self.timer = self.loop.call_later(LOOK_INTERVAL_S, self.look)

    # Life.

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task, and keep a reference so that it is not collected."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def drain(self) -> None:
        """Wait for the puts under way."""
        while self.pending or self.unanswered or self.tasks or self.connecting:
            futures: list[asyncio.Future[Any]] = [*self.unanswered.values(), *self.tasks]
            if futures:
                await asyncio.wait(futures, timeout=self.timeout)
            else:
                await asyncio.sleep(0)
