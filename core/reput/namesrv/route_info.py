"""The bodies that name servers, brokers and clients exchange about routes. Fields are sorted by name.

Source: RocketMQ remoting, TopicRouteData, QueueData, BrokerData, ClusterInfo and TopicList.
"""

from __future__ import annotations

import re

import msgspec

from reput.errors import BrokerError
from reput.remoting.message_queue import MessageQueue

__all__ = [
    "BrokerData",
    "ClusterInfo",
    "QueueData",
    "TopicList",
    "TopicRouteData",
    "parsed_route",
    "quoted",
    "readable_queues",
]

PERM_READ = 4
BARE_KEY = re.compile(rb"([{,]\s*)(\d+)\s*:")


class QueueData(msgspec.Struct, rename="camel", frozen=True):
    """The queues that one broker has of a topic.

    Attributes:
        perm: sum of 1 (inherit), 2 (write) and 4 (read).
        topic_sys_flag: 1 unit, 2 unit-sub.
    """

    broker_name: str = ""
    perm: int = 6
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(msgspec.Struct, rename="camel"):
    """The brokers of one name.

    Attributes:
        broker_addrs: ``host:port`` by broker id; "0" is the master.
    """

    broker_addrs: dict[str, str]
    broker_name: str
    cluster: str
    enable_acting_master: bool = False


class TopicRouteData(msgspec.Struct, rename="camel"):
    """Where a topic's queues are. Its JSON has no blanks, because the Go client splits the text without parsing it."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    queue_datas: list[QueueData] = []


decode_route = msgspec.json.Decoder(TopicRouteData).decode


def parsed_route(body: bytes) -> TopicRouteData:
    """Return a route from a name server's answer.

    Raises:
        BrokerError: the answer is no route.
    """
    try:
        try:
            return decode_route(body)
        except msgspec.DecodeError:
            # RocketMQ's name servers before 4.9.4.
            return decode_route(quoted(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokerError(f"a name server's route cannot be read: error={error} body={body[:100]!r}") from None


def quoted(body: bytes) -> bytes:
    """Return JSON in which keys that are whole numbers have quotes, which Java leaves out."""
    return BARE_KEY.sub(rb'\1"\2":', body)


def readable_queues(route: TopicRouteData, topic: str) -> list[MessageQueue]:
    """Return the queues that consumers read, in the order in which RocketMQ allocates them."""
    names = {broker.broker_name for broker in route.broker_datas}
    return [
        MessageQueue(queue.broker_name, queue_id, topic)
        for queue in sorted(route.queue_datas, key=lambda queue: queue.broker_name)
        if queue.perm & PERM_READ and queue.broker_name in names
        for queue_id in range(queue.read_queue_nums)
    ]


class ClusterInfo(msgspec.Struct, rename="camel"):
    """All brokers, by name, and the names of each cluster."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class TopicList(msgspec.Struct, rename="camel"):
    """Names of topics."""

    broker_addr: str | None
    topic_list: list[str]
