"""ConnectedClients: the connections that have sent heartbeats, by client, and their groups.

A client may have several connections, and a connection several groups. When a connection ends, its client leaves the
groups as after UNREGISTER_CLIENT, which the Go client never sends.

Source: RocketMQ broker, ProducerManager, ConsumerManager, ClientChannelInfo and DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from reput.consume.registry.consumer_manager import BROADCASTING, CLUSTERING, ConsumerManager
from reput.consume.registry.subscription import Subscription
from reput.errors import RequestRefused
from reput.metrics.store_figures import ConnectionCount
from reput.remoting.connection import Connection
from reput.remoting.response_code import ResponseCode

__all__ = ["VERSION_NAMES", "ClientChannel", "ConnectedClients", "ConsumerGroupChannels", "connection_counts"]

# Of RocketMQ's ordinals; any other one stands for itself.
VERSION_NAMES = {407: "V4_9_7", 409: "V4_9_8", 413: "V5_0_0", 479: "V5_3_3"}
CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push"}

# A client without a heartbeat for this long is gone.
HEARTBEAT_MAX_S = 120.0
# Limits of what the heartbeats of one connection register: groups, and bytes of subscriptions.
GROUPS_MAX = 4096
SUBSCRIPTIONS_SIZE_MAX = 8 << 20


class ClientChannel:
    """One client on one connection.

    Attributes:
        version: RocketMQ's ordinal of the client's version.
        heartbeat_at: time of the last heartbeat, in seconds of the loop's clock.
    """

    __slots__ = ("client_id", "connection", "heartbeat_at", "language", "version")

    def __init__(self, connection: Connection, client_id: str, language: str, version: int) -> None:
        self.connection = connection
        self.client_id = client_id
        self.language = language
        self.version = version
        self.heartbeat_at = 0.0


class ConsumerGroupChannels:
    """The connections of one consumer group, and how the group consumes, as the last heartbeat says."""

    __slots__ = ("channels", "consume_from_where", "consume_type", "message_model", "subscriptions")

    def __init__(self) -> None:
        self.channels: dict[Connection, ClientChannel] = {}
        self.consume_type = "CONSUME_PASSIVELY"
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        self.message_model = CLUSTERING
        self.subscriptions: list[Subscription] = []

    def client_ids(self) -> list[str]:
        """Return the ids of the clients, each once."""
        return list(dict.fromkeys(channel.client_id for channel in self.channels.values()))

    def channel_of(self, client_id: str) -> ClientChannel | None:
        """Return a connection of a client; None: the client is not in the group."""
        return next((channel for channel in self.channels.values() if channel.client_id == client_id), None)


class Memberships:
    """The groups of one connection, by kind and name, with the size of their subscriptions."""

    __slots__ = ("size", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[tuple[bool, str], int] = {}
        self.size = 0

    def add(self, consumes: bool, group: str, size: int) -> None:
        """Count a group.

        Raises:
            RequestRefused: SYSTEM_BUSY; the connection has too many groups or subscriptions.
        """
        key = consumes, group
        total = self.size + size - self.sizes.get(key, 0)
        if (key not in self.sizes and len(self.sizes) >= GROUPS_MAX) or total > SUBSCRIPTIONS_SIZE_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"a connection has too many groups or subscriptions: groups_max={GROUPS_MAX} "
                f"subscriptions_size_max={SUBSCRIPTIONS_SIZE_MAX}",
            )
        self.sizes[key] = size
        self.size = total

    def remove(self, consumes: bool, group: str) -> None:
        """Remove a group from the count."""
        self.size -= self.sizes.pop((consumes, group), 0)


class ConnectedClients:
    """Used in the thread of the broker's loop only.

    Args:
        registry: where subscriptions are registered for pulls.
        on_changed: called with a group whose members or topics have changed, and its connections.
        on_producer: called with a producer group that gets its first connection.
    """

    def __init__(
        self,
        registry: ConsumerManager,
        monotonic: Callable[[], float],
        on_changed: Callable[[str, ConsumerGroupChannels], None],
        on_producer: Callable[[str], None],
    ) -> None:
        self.registry = registry
        self.monotonic = monotonic
        self.on_changed = on_changed
        self.on_producer = on_producer
        self.producers: dict[str, dict[Connection, ClientChannel]] = {}
        self.consumers: dict[str, ConsumerGroupChannels] = {}
        self.memberships: dict[Connection, Memberships] = {}

    def register_producer(self, group: str, channel: ClientChannel) -> None:
        """Register a connection in a producer group, or refresh it.

        Raises:
            RequestRefused: SYSTEM_BUSY; the connection has too many groups.
        """
        self.memberships_of(channel.connection).add(False, group, 0)
        channels = self.producers.get(group)
        if channels is None:
            channels = self.producers[group] = {}
            self.on_producer(group)
        channel.heartbeat_at = self.monotonic()
        channels[channel.connection] = channel

    def register_consumer(
        self,
        group: str,
        channel: ClientChannel,
        subscriptions: Iterable[Subscription],
        *,
        message_model: str,
        consume_type: str,
        consume_from_where: str,
        size: int = 0,
    ) -> bool:
        """Register a connection in a consumer group, or refresh it; return whether the group has changed.

        The group has changed if the connection is new, or if a topic has come or gone.

        Args:
            size: bytes that the subscriptions take.

        Raises:
            RequestRefused: SYSTEM_BUSY; the connection has too many groups or subscriptions.
        """
        self.memberships_of(channel.connection).add(True, group, size)
        found = self.consumers.get(group)
        if found is None:
            found = self.consumers[group] = ConsumerGroupChannels()
        former = found.channels.get(channel.connection)
        channel.heartbeat_at = self.monotonic()
        found.channels[channel.connection] = channel
        found.message_model = message_model
        found.consume_type = consume_type
        found.consume_from_where = consume_from_where
        found.subscriptions = list(subscriptions)
        changed = self.registry.register(group, channel.client_id, found.subscriptions, message_model) or former is None
        if former is not None and former.client_id != channel.client_id:
            # A client that changes its id on one connection must not stay registered under the former id.
            changed = True
            if found.channel_of(former.client_id) is None:
                self.registry.unregister(group, former.client_id)
        if changed and message_model != BROADCASTING:
            self.on_changed(group, found)
        return changed

    def unregister(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a connection from one producer group and one consumer group. Other connections of its client stay."""
        if producer_group:
            self.remove_producer(producer_group, [connection])
        if consumer_group:
            self.remove_consumer(consumer_group, [connection])

    def connection_lost(self, connection: Connection) -> None:
        """Remove a connection from all groups."""
        memberships = self.memberships.pop(connection, None)
        for consumes, group in [] if memberships is None else list(memberships.sizes):
            if consumes:
                self.remove_consumer(group, [connection])
            else:
                self.remove_producer(group, [connection])

    def memberships_of(self, connection: Connection) -> Memberships:
        """Return the registrations of a connection."""
        found = self.memberships.get(connection)
        if found is None:
            found = self.memberships[connection] = Memberships()
        return found

    def leave(self, connection: Connection, consumes: bool, group: str) -> None:
        """Remove a group of a connection from its count."""
        if connection in self.memberships:
            self.memberships[connection].remove(consumes, group)

    def remove_producer(self, group: str, connections: Iterable[Connection]) -> None:
        """Remove connections from a producer group."""
        channels = self.producers.get(group, {})
        for connection in connections:
            channels.pop(connection, None)
            self.leave(connection, False, group)
        if not channels:
            self.producers.pop(group, None)

    def remove_consumer(self, group: str, connections: Iterable[Connection]) -> None:
        """Remove connections from a consumer group, and tell the remaining ones."""
        found = self.consumers.get(group)
        if found is None:
            return
        connections = list(connections)
        for connection in connections:
            self.leave(connection, True, group)
        gone = [channel for connection in connections if (channel := found.channels.pop(connection, None))]
        for channel in gone:
            if found.channel_of(channel.client_id) is None:
                self.registry.unregister(group, channel.client_id)
        if not found.channels:
            del self.consumers[group]
        elif gone and found.message_model != BROADCASTING:
            self.on_changed(group, found)

    def drop_silent(self) -> None:
        """End connections that have not sent a heartbeat for too long."""
        before = self.monotonic() - HEARTBEAT_MAX_S
        for channel in list(self.all_channels()):
            if channel.heartbeat_at < before:
                channel.connection.abort()

    def all_channels(self) -> Iterator[ClientChannel]:
        """Yield every connection of every group."""
        for channels in self.producers.values():
            yield from channels.values()
        for found in self.consumers.values():
            yield from found.channels.values()

    def channel_of_producer(self, client_id: str) -> ClientChannel | None:
        """Return the connection of a producer group's client that has sent its last heartbeat; None: there is none."""
        found = [
            channel
            for channels in self.producers.values()
            for channel in channels.values()
            if channel.client_id == client_id
        ]
        # A former connection of the client may be dead without anybody having noticed.
        return max(found, key=lambda channel: channel.heartbeat_at, default=None)

    def has_producer(self, group: str) -> bool:
        """Return whether a producer group has a connection. Any thread may call."""
        return group in self.producers

    def next_producer(self, group: str) -> ClientChannel | None:
        """Return a connection of a producer group, each in turn; None: it has none."""
        channels = self.producers.get(group, {})
        for connection, channel in channels.items():
            if not connection.closed:
                # A producer that hangs must not get every question.
                channels[connection] = channels.pop(connection)
                return channel
        return None


def connection_counts(clients: ConnectedClients) -> list[ConnectionCount]:
    """Return how many connections there are of each kind. Any thread may call: each look at a table is one copy."""
    counts: Counter[tuple[str | None, str, int, str]] = Counter()
    for channels in list(clients.producers.values()):
        counts.update((None, channel.language, channel.version, "") for channel in list(channels.values()))
    for group, found in list(clients.consumers.items()):
        mode = CONSUME_MODES.get(found.consume_type, found.consume_type.lower())
        counts.update((group, channel.language, channel.version, mode) for channel in list(found.channels.values()))
    return [
        ConnectionCount(group, language.lower(), VERSION_NAMES.get(version, str(version)).lower(), mode, count)
        for (group, language, version, mode), count in counts.items()
    ]
