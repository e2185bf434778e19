"""Sender: sends the puts of one session. The puts of one turn of the loop are sent together.

    put ──▶ pending ── end of the turn ──▶ batches: topic, queue ──▶ request ──▶ outcomes
                                                       ▲                │ lost, or refused for a temporary reason
                                                       └── later ◀──────┘

A broker that hangs is avoided for a while; otherwise every put that its turn brings there would wait for its answer.
If a broker cannot be reached, the put is repeated with pauses until its timeout, so a broker that is killed and
restarted causes only a delay. If only the answer was lost, the message is then stored twice. A put that is refused for
a temporary reason is repeated twice, if possible at another broker. Wherever a put waits, it fails at its deadline.

Source: RocketMQ client, DefaultMQProducerImpl.sendDefaultImpl and DefaultMQProducer.retryResponseCodes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple

from reput.client.routes import Route
from reput.client.sending import Sending, refusal_of, results_of, send_request, size_of
from reput.client.session import Session
from reput.errors import BrokerError, MessageIllegal, ReputError, RequestRefused
from reput.filter.string_hash import string_hash
from reput.remoting.connection import Connection
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import FrameError, RemotingCommand
from reput.remoting.response_code import AWAY_FIELD, ResponseCode

__all__ = ["Sender"]

# Bodies and properties of one batch; a larger message is sent alone.
BATCH_SIZE_MAX = 256 << 10
# While more bytes than this are sent but not answered, further messages wait.
UNANSWERED_SIZE_MAX = 32 << 20
LOOK_INTERVAL_MIN_S, LOOK_INTERVAL_MAX_S = 0.01, 0.5
# A request without an answer for this long counts as lost.
ANSWER_TIMEOUT_S = 5.0
# For so long after that, messages that may go to any broker go to others.
AVOIDED_S = 30.0
TIMEOUT_MAX_S = 1e8
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
    )
)


class PutTurn(NamedTuple):
    """Messages that were put in one turn and that no request carries yet."""

    deadline: float
    sendings: list[Sending]


class SendRequest:
    """Messages that one request carries.

    Attributes:
        queue: the queue to which it is sent now.
        may_move: the messages may go to another queue.
        refusals: how often the request was refused.
    """

    __slots__ = (
        "broker",
        "connection",
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
        self.connection: Connection | None = None

    @property
    def due(self) -> float:
        """When the request, which was sent, counts as lost without an answer, in seconds of the loop's clock."""
        return min(self.sent_at + ANSWER_TIMEOUT_S, self.deadline)

    def fail(self, error: ReputError) -> None:
        """Tell the error to all that wait for these messages."""
        fail_all(self.sendings, error)


class Sender:
    """Used in the thread of its session's loop only.

    Args:
        timeout: seconds after which a put fails.
    """

    def __init__(self, session: Session, timeout: float) -> None:
        self.session = session
        self.routes = session.routes
        self.loop = session.loop
        # Event loops do not take an endless time.
        self.timeout = min(timeout, TIMEOUT_MAX_S)
        self.pending: list[Sending] = []
        # By broker: the requests that wait for its connection.
        self.connecting: dict[str, list[SendRequest]] = {}
        # The topics whose route is being asked for, and the messages that wait for it.
        self.routing: dict[str, list[PutTurn]] = {}
        # Requests that were sent but not answered, the oldest first, with the future of the response.
        self.unanswered: dict[SendRequest, asyncio.Future[RemotingCommand]] = {}
        self.unanswered_size = 0
        # The messages that wait until fewer bytes are unanswered, the oldest first.
        self.held: deque[PutTurn] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.timer: asyncio.TimerHandle | None = None
        # Until when brokers are avoided, by name, in seconds of the loop's clock.
        self.avoided: dict[str, float] = {}

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
        deadline = self.loop.time() + self.timeout
        if self.held or self.unanswered_size > UNANSWERED_SIZE_MAX:
            self.held.append(PutTurn(deadline, sendings))
            self.watch(deadline)
        else:
            self.send_now(sendings, deadline)

    def send_now(self, sendings: list[Sending], deadline: float) -> None:
        """Send messages, topic by topic."""
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
            self.routing[topic].append(PutTurn(deadline, sendings))
            self.watch(deadline)
        elif route is None or not route.writable:
            self.routing[topic] = [PutTurn(deadline, sendings)]
            self.watch(deadline)
            self.start(self.find_route(topic))
        else:
            self.send_by_route(route, sendings, deadline)

    async def find_route(self, topic: str) -> None:
        """Ask for the route of a topic while messages wait for it; then send them."""
        pause = PAUSE_MIN_S
        while self.routing[topic]:
            try:
                route = await self.routes.to_send(topic)
            except RequestRefused as error:
                for waiting in self.routing.pop(topic):
                    fail_all(waiting.sendings, error)
                return
            except BrokerError as error:
                self.routing[topic] = fail_overdue(self.routing[topic], self.loop.time() + pause, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
            else:
                for waiting in self.routing.pop(topic):
                    self.send_by_route(route, waiting.sendings, waiting.deadline)
                return
        del self.routing[topic]

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
        self.send(SendRequest(route.next_writable(self.hanging()), sendings, size, deadline, True))

    def hanging(self) -> Collection[str]:
        """Return the names of the brokers that are avoided now."""
        if self.avoided:
            now = self.loop.time()
            self.avoided = {name: until for name, until in self.avoided.items() if until > now}
        return self.avoided

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
            self.watch(request.deadline)
            return
        connection = self.session.connected(broker)
        if connection is None:
            self.connecting[broker] = [request]
            self.watch(request.deadline)
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
        request.connection = connection
        self.unanswered[request] = future
        self.unanswered_size += request.size
        self.watch(request.due)
        future.add_done_callback(partial(self.answered, request))

    def answered(self, request: SendRequest, future: asyncio.Future[RemotingCommand]) -> None:
        """Handle a response, or the loss of the connection."""
        if self.unanswered.pop(request, None) is None:
            # The request was given up before; reading a late error keeps asyncio from reporting it.
            if not future.cancelled():
                future.exception()
            return
        self.unanswered_size -= request.size
        self.release()
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

    def release(self) -> None:
        """Send the messages that were held, while there is room for them."""
        if self.unanswered_size < UNANSWERED_SIZE_MAX // 2:
            while self.held and self.unanswered_size <= UNANSWERED_SIZE_MAX:
                waiting = self.held.popleft()
                self.send_now(waiting.sendings, waiting.deadline)

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
            self.start(self.routes.look_up(route.topic))

    # Failures.

    def refused(self, request: SendRequest, response: RemotingCommand) -> None:
        """Repeat a refused request if the reason is temporary, otherwise fail it."""
        error = refusal_of(response)
        if isinstance(error, MessageIllegal) and len(request.sendings) > 1:
            # One of the messages is illegal: send each alone, so that only that one fails.
            for sending in request.sendings:
                self.send(SendRequest(request.queue, [sending], size_of(sending), request.deadline, request.may_move))
            return
        if AWAY_FIELD in response.ext_fields or response.code == ResponseCode.GO_AWAY:
            # A broker that stops is treated as one that has stopped.
            self.lost(request, error)
            return
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            self.routes.forget(request.queue.topic)
        request.refusals += 1
        is_over = request.refusals > RETRIES_MAX or self.loop.time() >= request.deadline
        if is_over or response.code not in RETRIED_CODES:
            request.fail(error)
            return
        self.start(self.send_again(request, PAUSE_MIN_S, error))

    def lost(self, request: SendRequest, error: ReputError) -> None:
        """Repeat a request whose broker cannot be reached, or stops, until its time is over."""
        pause = min(PAUSE_MIN_S * 2**request.lost_count, PAUSE_MAX_S)
        request.lost_count += 1
        if self.session.closed or self.loop.time() + pause >= request.deadline:
            request.fail(error)
            return
        self.start(self.send_again(request, pause, error))

    async def send_again(self, request: SendRequest, pause: float, error: ReputError) -> None:
        """Send a request that failed with *error* after *pause* seconds, if possible to another broker."""
        topic = request.queue.topic
        try:
            async with asyncio.timeout_at(request.deadline):
                await asyncio.sleep(pause)
                await self.routes.look_up(topic)
        except TimeoutError:
            request.fail(error)
            return
        route = self.routes.known.get(topic)
        if route is not None and route.writable and request.may_move:
            request.queue = route.next_writable({request.queue.broker_name, *self.hanging()})
        self.send(request)

    def watch(self, due: float) -> None:
        """Look at what waits at the time *due*, in seconds of the loop's clock, or before."""
        if self.timer is None:
            wait = min(max(due - self.loop.time(), LOOK_INTERVAL_MIN_S), LOOK_INTERVAL_MAX_S)
            self.timer = self.loop.call_later(wait, self.look)

    def look(self) -> None:
        """Fail the puts whose time is over; treat requests without an answer for too long as lost."""
        self.timer = None
        now = self.loop.time()
        for request in [request for request in self.unanswered if request.due <= now]:
            del self.unanswered[request]
            self.unanswered_size -= request.size
            waited = now - request.sent_at
            assert request.connection is not None
            if request.connection.last_read < request.sent_at:
                # Its peer hangs. It would hold what is sent until the system finds that out, which may be never.
                request.connection.abort()
                self.avoided[request.queue.broker_name] = now + AVOIDED_S
            self.lost(
                request, BrokerError(f"the broker does not answer: broker={request.broker} sent_s_ago={waited:.1f}")
            )
        for broker, requests in self.connecting.items():
            for request in [request for request in requests if request.deadline <= now]:
                requests.remove(request)
                request.fail(self.too_late(f"the broker cannot be reached in time: broker={broker}"))
        for topic, waiting in self.routing.items():
            error = self.too_late(f"no name server gives a route in time: topic={topic!r}")
            self.routing[topic] = fail_overdue(waiting, now, error)
        error = self.too_late(
            f"earlier puts were not answered in time: unanswered_size={self.unanswered_size} "
            f"unanswered_size_max={UNANSWERED_SIZE_MAX}"
        )
        self.held = deque(fail_overdue(self.held, now, error))
        self.release()
        times = [request.due for request in self.unanswered]
        times += [request.deadline for requests in self.connecting.values() for request in requests]
        times += [one.deadline for waiting in (self.held, *self.routing.values()) for one in waiting]
        if times:
            self.watch(min(times))

    def too_late(self, reason: str) -> BrokerError:
        """Return the error for a put whose time is over."""
        return BrokerError(
            f"{reason} timeout_s={self.timeout:g}", "Check that the brokers run, or connect with a larger timeout."
        )

    # Life.

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task, and keep a reference so that it is not collected."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def drain(self) -> None:
        """Wait for the puts under way."""
        while self.pending or self.held or self.routing or self.unanswered or self.tasks or self.connecting:
            futures: list[asyncio.Future[Any]] = [*self.unanswered.values(), *self.tasks]
            if futures:
                # `look` may give a future up, so it is not waited for without end.
                await asyncio.wait(futures, timeout=LOOK_INTERVAL_MAX_S)
            else:
                await asyncio.sleep(0)


def fail_all(sendings: Iterable[Sending], error: ReputError) -> None:
    """Tell *error* to all that wait for *sendings*."""
    for sending in sendings:
        if not sending.outcome.done():
            sending.outcome.set_exception(error)


def fail_overdue(waiting: Iterable[PutTurn], now: float, error: ReputError) -> list[PutTurn]:
    """Fail the messages whose deadline is not after *now*; return the others."""
    left = []
    for one in waiting:
        if one.deadline <= now:
            fail_all(one.sendings, error)
        else:
            left.append(one)
    return left
