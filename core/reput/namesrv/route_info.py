"""The bodies that name servers, brokers and clients exchange about routes. Fields are sorted by name.

Source: RocketMQ remoting, TopicRouteData, QueueData, BrokerData, ClusterInfo and TopicList.
"""

from __future__ import annotations

import msgspec

__all__ = ["BrokerData", "ClusterInfo", "QueueData", "TopicList", "TopicRouteData"]


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


class ClusterInfo(msgspec.Struct, rename="camel"):
    """All brokers, by name, and the names of each cluster."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class TopicList(msgspec.Struct, rename="camel"):
    """Names of topics."""

    broker_addr: str | None
    topic_list: list[str]
