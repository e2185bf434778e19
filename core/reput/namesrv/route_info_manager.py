"""RouteInfoManager: the registered brokers, and the queues of each topic that they have.

    topic ──▶ broker name ──▶ QueueData          broker name ──▶ BrokerData: addresses by id
                                                 address ──▶ LiveBroker: time and connection of its last registration

A broker is dropped when its connection ends, or after it has not registered for too long.

Source: RocketMQ namesrv, RouteInfoManager.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

import msgspec

from reput.errors import RequestRefused
from reput.namesrv.route_info import BrokerData, ClusterInfo, QueueData, TopicRouteData
from reput.remoting.connection import Connection
from reput.remoting.response_code import ResponseCode

__all__ = [
    "BROKER_TIMEOUT_S",
    "LEGAL_NAME",
    "RegisteredTopic",
    "RegisteredVersion",
    "Registration",
    "RouteInfoManager",
]

BROKER_TIMEOUT_S = 120.0
MASTER_ID = 0
PERM_WRITE = 2
# Limits of what brokers can register, and so of this process's memory.
BROKERS_MAX = 1000
ROWS_MAX = 1_000_000
BROKER_ID_MAX = 2**63 - 1
# Names of brokers and clusters.
LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_.-]{1,255}")
LEGAL_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%a-z]{2,60}\]|[a-zA-Z0-9_.-]{1,253}):([0-9]{1,5})", re.ASCII)

logger = logging.getLogger(__name__)


class RegisteredVersion(msgspec.Struct, rename="camel", frozen=True):
    """The version of a broker's topics, which changes whenever they change."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class RegisteredTopic(msgspec.Struct, rename="camel", frozen=True):
    """One topic as a broker registers it."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_sys_flag: int = 0


class Registration(msgspec.Struct, frozen=True):
    """The registration of a broker.

    Attributes:
        topics: by name; None: the topics have not changed.
        timeout: seconds after which the broker is dropped unless it registers again.
        connection: the connection of the request; None: the broker is in this process, and is never dropped.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    topics: dict[str, RegisteredTopic] | None = None
    data_version: RegisteredVersion = RegisteredVersion()
    enable_acting_master: bool = False
    timeout: float = BROKER_TIMEOUT_S
    connection: Connection | None = None


class LiveBroker:
    """A broker that has registered."""

    __slots__ = ("registered_at", "registration")

    def __init__(self, registration: Registration, registered_at: float) -> None:
        self.registration = registration
        self.registered_at = registered_at


class RouteInfoManager:
    """The routes of one name server. Used in the thread of its loop only.

    Args:
        monotonic: returns seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        # By address.
        self.live: dict[str, LiveBroker] = {}
        # The brokers in this process: addresses by name and id.
        self.own: dict[tuple[str, int], str] = {}
        # The number of (topic, broker) pairs.
        self.row_count = 0

    # Brokers.

    def register(self, registration: Registration) -> tuple[str, str]:
        """Register a broker, or update its registration; return the HA address and the address of its master, or "".

        Raises:
            RequestRefused: SYSTEM_ERROR; the registration is not valid, or would take the place of another broker.
        """
        name, address = registration.broker_name, registration.address
        data = self.brokers.get(name)
        if registration.connection is None:
            self.own[name, registration.broker_id] = address
        else:
            self.refuse_illegal(registration)
            self.refuse_stranger(registration, data)
            self.refuse_rows(len(registration.topics or ()))
        if data is None:
            data = self.brokers[name] = BrokerData({}, name, registration.cluster)
            logger.info("a broker has registered: broker_name=%s address=%s", name, address)
        data.enable_acting_master = registration.enable_acting_master
        self.clusters.setdefault(registration.cluster, {})[name] = None
        broker_id = str(registration.broker_id)
        for other_id, other in list(data.broker_addrs.items()):
            # The broker returns with another id, or another broker had its address before.
            if (other == address) != (other_id == broker_id):
                del data.broker_addrs[other_id]
                self.live.pop(other, None)
        data.broker_addrs[broker_id] = address
        known = self.live.get(address)
        self.live[address] = LiveBroker(registration, self.monotonic())
        if registration.topics is not None and self.decides_topics(registration):
            has_changed = known is None or known.registration.data_version != registration.data_version
            if has_changed or not any(name in queues for queues in self.topics.values()):
                self.replace_topics(name, registration.topics.values())
        master = data.broker_addrs.get(str(MASTER_ID), "")
        if registration.broker_id == MASTER_ID or not master:
            return "", ""
        return self.live[master].registration.ha_address if master in self.live else "", master

    def decides_topics(self, registration: Registration) -> bool:
        """Return whether a registered broker's topics are those of its name: it is the master, or acts for it."""
        return registration.broker_id == min(map(int, self.brokers[registration.broker_name].broker_addrs))

    def refuse_illegal(self, registration: Registration) -> None:
        """Refuse a registration from the network that is not valid.

        Raises:
            RequestRefused: SYSTEM_ERROR; the text names the field.
        """
        for field, value in (("brokerName", registration.broker_name), ("clusterName", registration.cluster)):
            if not LEGAL_NAME.fullmatch(value):
                raise illegal(f"a name may contain only letters, digits and %|_.-: {field}={value[:300]!r}")
        address = LEGAL_ADDRESS.fullmatch(registration.address)
        if address is None or not 0 < int(address[1]) <= 65_535:
            raise illegal(f"an address must have the form host:port: brokerAddr={registration.address[:300]!r}")
        if len(registration.ha_address) > 300:
            raise illegal(f"an address is too long: haServerAddr={registration.ha_address[:300]!r}")
        if not 0 <= registration.broker_id <= BROKER_ID_MAX:
            raise illegal(f"a broker's id must not be negative: brokerId={registration.broker_id}")
        if len(self.live) >= BROKERS_MAX and registration.address not in self.live:
            raise illegal(f"too many brokers have registered: brokers_max={BROKERS_MAX}")

    def refuse_stranger(self, registration: Registration, data: BrokerData | None) -> None:
        """Refuse a registration from the network that would take the place of another broker.

        Raises:
            RequestRefused: SYSTEM_ERROR; the name or the address belongs to another broker.
        """
        name = registration.broker_name
        if self.is_own(name, registration.broker_id, registration.address):
            raise illegal(
                f"this name or address belongs to the broker beside this name server: broker_name={name!r} "
                f"broker_id={registration.broker_id} address={registration.address}"
            )
        if data is not None and data.cluster != registration.cluster:
            raise illegal(f"a broker of this name is in another cluster: broker_name={name!r} cluster={data.cluster!r}")

    def is_own(self, broker_name: str, broker_id: int, address: str) -> bool:
        """Return whether a broker in this process has this name and id, or this address: a slave has another id."""
        return (broker_name, broker_id) in self.own or address in self.own.values()

    def refuse_rows(self, count: int) -> None:
        """Refuse *count* more topics if all topics would then take too much memory.

        Raises:
            RequestRefused: SYSTEM_ERROR; brokers have registered too many topics.
        """
        if self.row_count + count > ROWS_MAX:
            raise illegal(f"brokers have registered too many topics: rows_max={ROWS_MAX}")

    def replace_topics(self, broker_name: str, topics: Iterable[RegisteredTopic]) -> None:
        """Set the topics of a broker to *topics*."""
        wanted = {topic.topic_name: topic for topic in topics}
        for name in [name for name, queues in self.topics.items() if broker_name in queues and name not in wanted]:
            self.remove_topic(name, broker_name)
        for topic in wanted.values():
            self.set_topic(broker_name, topic)

    def set_topic(self, broker_name: str, topic: RegisteredTopic) -> None:
        """Add or change one topic of a broker."""
        queues = self.topics.setdefault(topic.topic_name, {})
        self.row_count += broker_name not in queues
        queues[broker_name] = QueueData(
            broker_name, topic.perm, topic.read_queue_nums, topic.topic_sys_flag, topic.write_queue_nums
        )

    def remove_topic(self, topic: str, broker_name: str) -> None:
        """Forget that a broker has a topic."""
        queues = self.topics.get(topic, {})
        if queues.pop(broker_name, None) is not None:
            self.row_count -= 1
        if not queues:
            self.topics.pop(topic, None)

    def unregister(self, broker_name: str, broker_id: int, address: str) -> None:
        """Drop a broker that unregisters, if it is known."""
        data = self.brokers.get(broker_name)
        if data is None or data.broker_addrs.get(str(broker_id)) != address:
            return
        logger.info("a broker has gone: broker_name=%s address=%s", broker_name, address)
        self.live.pop(address, None)
        del data.broker_addrs[str(broker_id)]
        if data.broker_addrs:
            return
        del self.brokers[broker_name]
        names = self.clusters.get(data.cluster, {})
        names.pop(broker_name, None)
        if not names:
            self.clusters.pop(data.cluster, None)
        self.replace_topics(broker_name, ())

    def connection_lost(self, connection: Connection) -> None:
        """Drop the brokers that had registered over *connection*."""
        for broker in [broker for broker in self.live.values() if broker.registration.connection is connection]:
            self.drop(broker.registration)

    def drop_silent(self) -> None:
        """Drop the brokers that have not registered for too long."""
        now = self.monotonic()
        for broker in list(self.live.values()):
            registration = broker.registration
            if registration.connection is not None and now - broker.registered_at > registration.timeout:
                self.drop(registration)

    def drop(self, registration: Registration) -> None:
        """Drop a broker that has disconnected or is silent."""
        self.unregister(registration.broker_name, registration.broker_id, registration.address)

    def heartbeat(self, address: str) -> None:
        """Restart the time after which a silent broker is dropped."""
        broker = self.live.get(address)
        if broker is not None:
            broker.registered_at = self.monotonic()

    def has_changed(self, address: str, data_version: RegisteredVersion) -> bool:
        """Return whether a broker must register its topics again; if not, count this as a heartbeat."""
        broker = self.live.get(address)
        if broker is None or broker.registration.data_version != data_version:
            return True
        self.heartbeat(address)
        return False

    # Questions.

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic; None: no registered broker has the topic."""
        queues = self.topics.get(topic)
        if queues is None:
            return None
        brokers = [self.brokers[name] for name in queues if name in self.brokers]
        if not brokers:
            return None
        return TopicRouteData(brokers, {}, list(queues.values()))

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers."""
        return ClusterInfo(self.brokers, {cluster: list(names) for cluster, names in self.clusters.items()})

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that brokers of a cluster have."""
        names = self.clusters.get(cluster, {}).keys()
        return [topic for topic, queues in self.topics.items() if not names.isdisjoint(queues)]

    def set_write_perm(self, broker_name: str, writable: bool) -> int:
        """Allow or forbid writing to a broker, until its topics change; return the number of its topics."""
        count = 0
        for queues in self.topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                perm = queue.perm | PERM_WRITE if writable else queue.perm & ~PERM_WRITE
                queues[broker_name] = msgspec.structs.replace(queue, perm=perm)
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Forget a topic, on all brokers or on the brokers of one cluster."""
        names = list(self.clusters.get(cluster, {})) if cluster else list(self.topics.get(topic, {}))
        for name in names:
            self.remove_topic(topic, name)


def illegal(text: str) -> RequestRefused:
    """Return the refusal of a registration."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, text, "Give the broker another name, or correct its settings.")
