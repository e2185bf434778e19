"""Client: what `reput.connect` returns."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from reput.access.credentials import NO_CREDENTIALS, Credentials, credentials
from reput.argument_checks import OFFSET_MAX, require_path, require_seconds, require_text, require_whole
from reput.client.administration import ClusterAdministration
from reput.client.background_loop import run_in
from reput.client.group_session import GroupSession
from reput.client.offsets import Offsets
from reput.client.puts import Puts
from reput.client.reading import TIMESTAMP_MAX, get_messages, query_messages
from reput.client.remote_consumer import RemoteConsumer
from reput.client.sender import Sender
from reput.client.session import Session
from reput.client.sessions import Sessions
from reput.client.transactions import Transactions
from reput.closing_block import ClosingBlock
from reput.consume.pull.topic_reader import Beginning, check_beginning
from reput.consume.registry.subscription import Filter, checked_filter, checked_topics, subscribe
from reput.consume.registry.subscription_groups import check_group
from reput.consume.registry.topics import RETRY_PREFIX, check_consumed_topic
from reput.errors import ConfigError
from reput.filter import SUBSCRIBE_ALL, parse_plain_tags
from reput.in_thread import in_thread
from reput.remoting.allocation import STRATEGIES, Allocation
from reput.store.reader.results import GetMessageResult
from reput.store.record.record import decode_message_id
from reput.worker.running import RunsWorkers
from reput_hooks import Record

if TYPE_CHECKING:
    from reput.worker.worker import Worker

__all__ = ["Client", "Producer", "connect"]

PRODUCER_GROUP = "reput_producer"
TIMEOUT_S = 10.0


class Producer(Puts):
    """Puts messages under the name of a producer group. Make it with `Client.producer`.

    Brokers list the name among their connections, and identify the sender of a transaction by it.
    """

    @property
    def group(self) -> str:
        """The name of the producer group."""
        return self._group


class Client(Puts, ClosingBlock, RunsWorkers):
    """A client of brokers. Any number of threads and tasks may use it. Make it with `reput.connect`.

    A client has those methods of a store that make sense over the network. Every method that may wait has a
    coroutine twin: the same name with the prefix ``a``, the same arguments, result and errors. After `close`, every
    method raises `reput.StoreClosed`. A forked child of the program opens connections of its own; consumers
    belong to the process that made them.
    """

    def __init__(
        self, target: str | os.PathLike[str], timeout: float, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        """Programs call `reput.connect` instead."""
        super().__init__(Sessions(target, timeout, credentials), PRODUCER_GROUP)
        self._consumers: set[RemoteConsumer] = set()
        self._transactions = Transactions(self._sessions)

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._sessions.closed

    def producer(self, group: str) -> Producer:
        """Return a `Producer`, which puts messages under the name of a producer group. It closes with the client.

        Raises:
            RequestRefused: the name is illegal.
        """
        check_group(group)
        return Producer(self._sessions, group)

    # Consuming.

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str],
        filter: Filter = None,
        *,
        begin: Beginning = "earliest",
        in_flight_max: int = 1000,
        broadcast: bool = False,
        offset_store: str | os.PathLike[str] | None = None,
        in_order: bool = False,
        allocation: Allocation = "averagely",
    ) -> RemoteConsumer:
        """Return a consumer of *group*, which shares the messages of *topics* with the group's other consumers.

        Args:
            filter: tags like ``a || b``, or an SQL92 expression from `reput.filter.parse`; None: all messages.
            begin: where the group starts in queues that it never consumed: "earliest", "latest", or a store time in ms
                since 1970.
            in_flight_max: how many unacknowledged messages the consumer may hold.
            broadcast: the consumer does not share, and gets every message.
            offset_store: the file in which a broadcasting consumer keeps its offsets. Without a file it keeps them in
                memory, and each new consumer starts from *begin*.
            in_order: lock the queues at their brokers, so that two consumers never handle messages of one queue at the
                same time (RocketMQ's MessageListenerOrderly).
            allocation: how the group shares queues: RocketMQ's "averagely", "averagely_by_circle" or "consistent_hash".
                All consumers of a group, in any language, need the same one.

        Raises:
            RequestRefused: the group's name is illegal, or a broker does not accept the filter.
            FilterSyntaxError: the filter does not parse.
            ConfigError: an argument is wrong.
            BrokerError: no name server or no broker can be reached.
        """
        session = self._sessions.background().session
        return run_in(
            session.loop,
            self._joined(group, topics, filter, begin, in_flight_max, broadcast, offset_store, in_order, allocation),
        )

    async def aconsumer(
        self,
        group: str,
        topics: str | Iterable[str],
        filter: Filter = None,
        *,
        begin: Beginning = "earliest",
        in_flight_max: int = 1000,
        broadcast: bool = False,
        offset_store: str | os.PathLike[str] | None = None,
        in_order: bool = False,
        allocation: Allocation = "averagely",
    ) -> RemoteConsumer:
        """Like `consumer`, for a task. The consumer belongs to the running loop; close it there."""
        return await self._joined(
            group, topics, filter, begin, in_flight_max, broadcast, offset_store, in_order, allocation
        )

    async def _joined(
        self,
        group: str,
        topics: str | Iterable[str],
        filter: Filter,
        begin: Beginning,
        in_flight_max: int,
        broadcast: bool,
        offset_store: str | os.PathLike[str] | None,
        in_order: bool,
        allocation: Allocation,
        queue_in_flight_max: int = sys.maxsize,
    ) -> RemoteConsumer:
        """Return a consumer that belongs to the running loop."""
        self._sessions.require_open()
        check_group(group)
        check_beginning("begin", begin)
        require_whole("in_flight_max", in_flight_max, 1)
        if allocation not in STRATEGIES:
            raise ConfigError(
                f"allocation is unknown: allocation={allocation!r} known={','.join(STRATEGIES)}",
                "Give one of these names.",
            )
        if offset_store is not None and not broadcast:
            raise ConfigError(
                f"only a broadcasting consumer keeps its offsets in a file: offset_store={offset_store!s}",
                "Leave offset_store out: brokers keep the offsets of a group.",
            )
        path = None if offset_store is None else require_path("offset_store", offset_store)
        names = checked_topics(topics)
        filter = checked_filter(filter)
        if not names:
            raise ConfigError("a consumer has no topic", "Give at least one topic.")
        for topic in names:
            check_consumed_topic(topic)
        version = int(time.time() * 1000)
        subscriptions = {topic: subscribe(topic, filter, sub_version=version) for topic in names}
        if not broadcast:
            retry = RETRY_PREFIX + group
            subscriptions.setdefault(retry, subscribe(retry, sub_version=version))
        consumer = RemoteConsumer(group, in_flight_max, queue_in_flight_max)
        session = GroupSession(
            self._sessions.new_target(),
            group,
            subscriptions,
            dict.fromkeys(subscriptions, begin),
            broadcast=broadcast,
            in_order=in_order,
            allocation=allocation,
            offsets=Offsets(path) if broadcast else None,
            lock=consumer._lock,
            on_messages=consumer._came,
            on_dropped=consumer._gone,
        )
        await consumer._start(session, self._consumers.discard)
        self._consumers.add(consumer)
        return consumer

    def _worker_consumer(
        self,
        worker: Worker,
        group: str,
        topics: str | Iterable[str],
        filter: Filter,
        begin: Beginning,
        in_flight_max: int,
        queue_in_flight_max: int,
    ) -> RemoteConsumer:
        """Return a consumer that belongs to the worker's loop: no other thread stands between it and the handlers."""
        assert worker.loop is not None
        return run_in(
            worker.loop,
            self._joined(
                group,
                topics,
                filter,
                begin,
                in_flight_max,
                False,
                None,
                worker.in_order,
                "averagely",
                queue_in_flight_max,
            ),
        )

    # Transactions.

    @property
    def transactions(self) -> Transactions:
        """Messages that are delivered only when their sender commits them."""
        self._sessions.require_open()
        return self._transactions

    async def atransactions(self) -> Transactions:
        """Like `transactions`, for a task. It never waits; that of a store may."""
        return self.transactions

    # Reading.

    def get(
        self,
        topic: str,
        queue_id: int = 0,
        queue_offset: int = 0,
        count_max: int = 32,
        *,
        tags: str | None = None,
        broker_name: str | None = None,
    ) -> GetMessageResult:
        """Return up to *count_max* messages of a queue, from *queue_offset* on, in the queue's order.

        Args:
            tags: an expression like ``a || b``; only messages with one of these tags are returned.
            broker_name: the broker of the queue; None: only one broker has the topic.

        Raises:
            ConfigError: an argument is wrong, or several brokers have the queue and *broker_name* is None.
            RequestRefused: the topic does not exist, or has no such queue.
            BrokerError: the broker cannot be reached.
        """
        background = self._sessions.background()
        return background.thread.run(
            self._got(background.session, topic, queue_id, queue_offset, count_max, tags, broker_name)
        )

    async def aget(
        self,
        topic: str,
        queue_id: int = 0,
        queue_offset: int = 0,
        count_max: int = 32,
        *,
        tags: str | None = None,
        broker_name: str | None = None,
    ) -> GetMessageResult:
        """Like `get`, for a task."""
        session = self._sessions.here().session
        return await self._got(session, topic, queue_id, queue_offset, count_max, tags, broker_name)

    async def _got(
        self,
        session: Session,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        tags: str | None,
        broker_name: str | None,
    ) -> GetMessageResult:
        """Check the arguments of `get`, and return its result."""
        require_text("topic", topic)
        require_whole("queue_id", queue_id)
        require_whole("queue_offset", queue_offset, None)
        require_whole("count_max", count_max, 1)
        if tags is not None:
            require_text("tags", tags)
        wanted = parse_plain_tags(SUBSCRIBE_ALL if tags is None else tags)
        return await get_messages(session, topic, queue_id, queue_offset, count_max, wanted, broker_name)

    def query(
        self,
        topic: str | None = None,
        key: str | None = None,
        count_max: int = 64,
        *,
        begin: int = 0,
        end: int = TIMESTAMP_MAX,
    ) -> list[Record]:
        """Return the newest messages of *topic* with this key, the oldest of them first.

        Args:
            count_max: number of messages, at most what the brokers' ``max_msgs_num_batch`` allows.
            topic: None if *key* is a ``message_id``.
            key: one of a message's keys, the unique key that RocketMQ's clients set, or a ``message_id``.
            begin: the earliest store time, in ms since 1970. Brokers compare times to the second.
            end: the latest store time.

        Raises:
            ConfigError: an argument is wrong, or *topic* is None and *key* is not a message id.
            RequestRefused: the topic does not exist, or a broker refuses.
            BrokerError: a broker cannot be reached.
        """
        background = self._sessions.background()
        return background.thread.run(self._queried(background.session, topic, key, count_max, begin, end))

    async def aquery(
        self,
        topic: str | None = None,
        key: str | None = None,
        count_max: int = 64,
        *,
        begin: int = 0,
        end: int = TIMESTAMP_MAX,
    ) -> list[Record]:
        """Like `query`, for a task."""
        return await self._queried(self._sessions.here().session, topic, key, count_max, begin, end)

    async def _queried(
        self, session: Session, topic: str | None, key: str | None, count_max: int, begin: int, end: int
    ) -> list[Record]:
        """Check the arguments of `query`, and return its result."""
        if topic is not None:
            require_text("topic", topic)
        require_text("key", key)
        assert key is not None
        require_whole("count_max", count_max)
        require_whole("begin", begin, None)
        require_whole("end", end, None)
        if topic is None and decode_message_id(key) is None:
            raise ConfigError(
                f"a query without a topic needs a message id: key={key!r}",
                "Name the topic, or give the message_id that put has returned.",
            )
        return await query_messages(session, topic, key, count_max, begin, end)

    # Topics and groups.

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that consumers read, ascending; an empty list if the topic is unknown.

        Raises:
            BrokerError: no name server can be reached.
        """
        background = self._sessions.background()
        return background.thread.run(self._readable_queues(background.session, topic))

    async def aqueue_ids(self, topic: str) -> list[int]:
        """Like `queue_ids`, for a task."""
        return await self._readable_queues(self._sessions.here().session, topic)

    async def _readable_queues(self, session: Session, topic: str) -> list[int]:
        """Check the argument of `queue_ids`, and return its result."""
        require_text("topic", topic)
        route = await session.routes.refresh(topic)
        return [] if route is None else sorted({queue.queue_id for queue in route.readable()})

    def queue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Return the queue offset of the first message that can be read, and the one after the last.

        Raises:
            RequestRefused: the topic does not exist, or has no such queue, or several brokers have it.
            BrokerError: the broker cannot be reached.
        """
        found = self.get(topic, queue_id, OFFSET_MAX, 1)
        return found.queue_offset_min, found.queue_offset_max

    async def aqueue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Like `queue_range`, for a task."""
        found = await self.aget(topic, queue_id, OFFSET_MAX, 1)
        return found.queue_offset_min, found.queue_offset_max

    @property
    def administration(self) -> ClusterAdministration:
        """Shows and changes the topics and consumer groups of all brokers."""
        background = self._sessions.background()
        return ClusterAdministration(background.thread, background.session, self)

    async def aadministration(self) -> ClusterAdministration:
        """Like `administration`, for a task."""
        return await in_thread(lambda: self.administration)

    # Life.

    def close(self) -> None:
        """Close the consumers, and end all connections. Closing again does nothing.

        Puts that are under way are waited for. In a task, await `aclose`.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[RemoteConsumer]] = {}
        for consumer in list(self._consumers):
            # In a forked child they are closed already, and their loop does not run.
            if not consumer._closed:
                by_loop.setdefault(consumer._session.loop, []).append(consumer)
        for loop, consumers in by_loop.items():
            run_in(loop, closed_consumers(consumers))
        of_loops, background = self._sessions.end()
        for here in of_loops:
            run_in(here.loop, closed_sender(here.sender))
        if background is not None:
            background.thread.run(closed_sender(background.sender))
            background.thread.stop()

    async def aclose(self) -> None:
        """Like `close`, for a task. If it is cancelled, all connections end nevertheless."""
        try:
            await closed_consumers(list(self._consumers))
        finally:
            await self._end_sessions()

    async def _end_sessions(self) -> None:
        """End the connections of all loops: each, also after the wait for another one was cancelled."""
        loop = asyncio.get_running_loop()
        of_loops, background = self._sessions.end()
        async with AsyncExitStack() as ending:
            if background is not None:
                ending.push_async_callback(in_thread, background.thread.stop)
                ending.push_async_callback(in_thread, background.thread.run, closed_sender(background.sender))
            for here in of_loops:
                if here.loop is loop:
                    ending.push_async_callback(closed_sender, here.sender)
                else:
                    ending.push_async_callback(in_thread, run_in, here.loop, closed_sender(here.sender))

    def _require_open(self) -> None:
        """Refuse calls on a closed client."""
        self._sessions.require_open()


async def closed_consumers(consumers: Sequence[RemoteConsumer]) -> None:
    """Close consumers, all at once: a broker that hangs would cost its time for each."""
    for error in await asyncio.gather(*(consumer.aclose() for consumer in consumers), return_exceptions=True):
        if error is not None:
            raise error


async def closed_sender(sender: Sender) -> None:
    """Wait for the puts that are under way, and end the connections."""
    try:
        await sender.drain()
    finally:
        await sender.session.close()


def connect(
    target: str | os.PathLike[str],
    *,
    timeout: float = TIMEOUT_S,
    tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
) -> Client:
    """Return a client of RocketMQ-compatible brokers. Connections are made when they are first needed.

        with reput.connect("127.0.0.1:9876") as client:
            client.put(reput.Message("orders", b"..."))

    Args:
        target: ``HOST:PORT`` of a name server, or several of them separated by semicolons; or the directory of a
            store that `reput serve` serves on this machine, without port or name server; or ``unix:PATH`` of a broker's
            socket.
        timeout: seconds that a put may take. If brokers cannot be reached or do not answer, it then fails.
        tls: encrypts connections over the network: a file with the authorities that have signed the brokers'
            certificates, or an `ssl.SSLContext`. None: connections are not encrypted.
        access_key: the account with which every request is signed, for brokers that have accounts.
        secret_key: the account's secret; given together with *access_key*.

    Raises:
        ConfigError: an argument is wrong.
    """
    require_seconds("timeout", timeout)
    if timeout is None:
        raise ConfigError(
            "timeout is not a number of seconds: timeout=None", "Give a float; float('inf') has no limit."
        )
    return Client(target, timeout, credentials(tls, access_key, secret_key))
