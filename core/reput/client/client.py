"""Client: what `reput.connect` returns."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from reput.argument_checks import require_path, require_seconds, require_whole
from reput.client.allocation import STRATEGIES, Allocation
from reput.client.background_loop import run_in
from reput.client.group_session import GroupSession
from reput.client.offsets import Offsets
from reput.client.puts import Puts
from reput.client.remote_consumer import RemoteConsumer
from reput.client.sender import Sender
from reput.client.sessions import Sessions
from reput.consume.pull.topic_reader import Beginning, check_beginning
from reput.consume.registry.subscription import Filter, subscribe
from reput.consume.registry.subscription_groups import check_group
from reput.consume.registry.topics import RETRY_PREFIX, check_consumed_topic
from reput.errors import ConfigError

if TYPE_CHECKING:
    pass

__all__ = ["Client", "Producer", "connect"]

PRODUCER_GROUP = "reput_producer"
TIMEOUT_S = 10.0


class Producer(Puts):
    """Puts messages under the name of a producer group. Make it with `Client.producer`.

    The name is what brokers list in their connections, and what transactions go by.
    """

    @property
    def group(self) -> str:
        """The name of the producer group."""
        return self._group


class Client(Puts):
    """Connected to brokers. Any number of threads and tasks may use it. Make it with `reput.connect`.

    It has the methods of a store that make sense over the wire, by the same names. Every method that may wait has a
    coroutine twin: the same name with the prefix ``a``, the same arguments, result and errors. After `close`, every
    method raises `reput.StoreClosed`. A forked child of the program goes on with connections of its own; consumers
    belong to the process that made them.
    """

    def __init__(self, target: str | os.PathLike[str], timeout: float) -> None:
        """Programs call `reput.connect` instead."""
        super().__init__(Sessions(target, timeout), PRODUCER_GROUP)
        self._consumers: set[RemoteConsumer] = set()

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._sessions.closed

    def producer(self, group: str) -> Producer:
        """Return what puts messages under the name of a producer group. It closes with the client.

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
            in_flight_max: how many messages the consumer may hold that it has not acknowledged.
            broadcast: the consumer shares with no other, and gets every message.
            offset_store: the file that keeps the place of a broadcasting consumer. Without one the consumer keeps its
                place in memory, and starts anew each time.
            in_order: the queues are locked at their brokers, so that no two consumers ever handle messages of one at
                once (RocketMQ's MessageListenerOrderly).
            allocation: how the group shares queues; the same for all of its consumers, in any language: RocketMQ's
                "averagely", "averagely_by_circle" or "consistent_hash".

        Raises:
            RequestRefused: the group's name is illegal; or a broker does not take the filter.
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
        """As `consumer`, for a task. The consumer lives in the running loop; close it there."""
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
    ) -> RemoteConsumer:
        """Return a consumer that lives in the running loop."""
        self._sessions.require_open()
        check_group(group)
        check_beginning("begin", begin)
        require_whole("in_flight_max", in_flight_max, 1)
        if allocation not in STRATEGIES:
            raise ConfigError(
                f"allocation is unknown: allocation={allocation!r} known={','.join(STRATEGIES)}", "Give a known one."
            )
        if offset_store is not None and not broadcast:
            raise ConfigError(
                f"only a broadcasting consumer keeps its place in a file: offset_store={offset_store!s}",
                "Leave it out: brokers keep the place of a group.",
            )
        path = None if offset_store is None else require_path("offset_store", offset_store)
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise ConfigError("a consumer has no topic", "Give one at least.")
        for topic in names:
            check_consumed_topic(topic)
        version = int(time.time() * 1000)
        subscriptions = {topic: subscribe(topic, filter, sub_version=version) for topic in names}
        if not broadcast:
            retry = RETRY_PREFIX + group
            subscriptions[retry] = subscribe(retry, sub_version=version)
        consumer = RemoteConsumer(group, in_flight_max)
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

    # Life.

    def close(self) -> None:
        """Close the consumers, and end all connections. Closing again does nothing.

        Puts that are under way are waited for. In a task, await `aclose`.
        """
        for consumer in list(self._consumers):
            consumer.close()
        of_loops, background = self._sessions.end()
        for here in of_loops:
            run_in(here.loop, closed_sender(here.sender))
        if background is not None:
            background.thread.run(closed_sender(background.sender))
            background.thread.stop()

    async def aclose(self) -> None:
        """As `close`, for a task."""
        for consumer in list(self._consumers):
            await consumer.aclose()
        loop = asyncio.get_running_loop()
        of_loops, background = self._sessions.end()
        for here in of_loops:
            if here.loop is loop:
                await closed_sender(here.sender)
            else:
                await asyncio.to_thread(run_in, here.loop, closed_sender(here.sender))
        if background is not None:
            await asyncio.to_thread(background.thread.run, closed_sender(background.sender))
            await asyncio.to_thread(background.thread.stop)

    def __enter__(self) -> Self:
        self._sessions.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def closed_sender(sender: Sender) -> None:
    """Wait for the puts that are under way, and end the connections."""
    await sender.drain()
    await sender.session.close()


def connect(target: str | os.PathLike[str], *, timeout: float = TIMEOUT_S) -> Client:
    """Return a client of RocketMQ-compatible brokers. Nothing is connected before it is needed.

        with reput.connect("127.0.0.1:9876") as client:
            client.put(reput.Message("orders", b"..."))

    Args:
        target: ``HOST:PORT`` of a name server, or several with semicolons between; or the directory of a store that
            `reput serve` serves on this machine, which needs neither port nor name server; or ``unix:PATH`` of a
            broker's socket.
        timeout: seconds that a put may take while brokers are away.

    Raises:
        ConfigError: an argument is wrong.
    """
    require_seconds("timeout", timeout)
    return Client(target, timeout)
