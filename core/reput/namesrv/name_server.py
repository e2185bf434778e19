"""NameServer: answers the requests of clients, tools and brokers about routes.

Source: RocketMQ namesrv, DefaultRequestProcessor, ClientRequestProcessor and KVConfigManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from isal.isal_zlib import crc32

from reput.errors import RequestRefused
from reput.json_encoding import encode_json
from reput.namesrv.route_info import ClusterInfo, TopicList
from reput.namesrv.route_info_manager import (
    BROKER_TIMEOUT_S,
    RegisteredTopic,
    RegisteredVersion,
    Registration,
    RouteInfoManager,
)
from reput.remoting.connection import Connection
from reput.remoting.custom_header import optional_whole, text, truth, whole
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode

__all__ = ["NameServer", "Process"]

Process: TypeAlias = Callable[[RemotingCommand, Connection], RemotingCommand | None]

LOOK_S = 5.0
# The settings with which RocketMQ's name server would behave like this one.
CONFIGURATION = {
    "deleteTopicWithBrokerRegistration": "true",
    "enableAllTopicList": "true",
    "enableTopicList": "true",
    "orderMessageEnable": "false",
    "returnOrderTopicConfigToBroker": "true",
    "scanNotActiveBrokerInterval": str(round(LOOK_S * 1000)),
}
# Maximum number of characters in all keys and values that clients can store.
KV_SIZE_MAX = 4 << 20
SUCCESS = ResponseCode.SUCCESS


class TopicConfigWrapper(msgspec.Struct, rename="camel"):
    """The topics of a broker, and their version."""

    data_version: RegisteredVersion = RegisteredVersion()
    topic_config_table: dict[str, RegisteredTopic] = {}


class RegisterBrokerBody(msgspec.Struct, rename="camel"):
    """The body of REGISTER_BROKER."""

    topic_config_serialize_wrapper: TopicConfigWrapper = msgspec.field(default_factory=TopicConfigWrapper)


decode_registration = msgspec.json.Decoder(RegisterBrokerBody).decode
decode_data_version = msgspec.json.Decoder(RegisteredVersion).decode


class NameServer:
    """One name server. Used in the thread of its loop only."""

    def __init__(self, routes: RouteInfoManager) -> None:
        self.routes = routes
        self.kv_configs: dict[str, dict[str, str]] = {}
        self.kv_size = 0
        self.loop = asyncio.get_running_loop()
        self.timer = self.loop.call_later(LOOK_S, self.look)

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        table: dict[int, Process] = {
            **self.route_reads(),
            RequestCode.PUT_KV_CONFIG: self.put_kv_config,
            RequestCode.GET_KV_CONFIG: self.get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_list,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.GET_NAMESRV_CONFIG: self.configuration,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.refuse_configuration,
        }
        return {code: Processor(process) for code, process in table.items()}

    def route_reads(self) -> Mapping[int, Process]:
        """Return what answers each request for routes and for the names of topics."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
        }

    def look(self) -> None:
        """Drop the brokers that have not registered for too long."""
        self.timer = self.loop.call_later(LOOK_S, self.look)
        self.routes.drop_silent()

    def close(self) -> None:
        """Stop looking for silent brokers."""
        self.timer.cancel()

    # Routes.

    def route(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_ROUTEINFO_BY_TOPIC."""
        del connection
        topic = text(request.ext_fields, "topic")
        route = self.routes.route(topic)
        if route is None:
            return RemotingCommand(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info in name server for the topic: {topic}"
            )
        return RemotingCommand(SUCCESS, body=encode_json(route))

    def cluster_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_BROKER_CLUSTER_INFO."""
        del request, connection
        info: ClusterInfo = self.routes.cluster_info()
        return RemotingCommand(SUCCESS, body=encode_json(info))

    def all_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        del request, connection
        return topic_list(list(self.routes.topics))

    def topics_by_cluster(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_TOPICS_BY_CLUSTER."""
        del connection
        return topic_list(self.routes.topics_of_cluster(text(request.ext_fields, "cluster")))

    def system_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_NS: names of clusters and brokers, and a broker that knows the rest."""
        del request, connection
        names = [name for cluster, brokers in self.routes.clusters.items() for name in (cluster, *brokers)]
        address = next(
            (address for data in self.routes.brokers.values() for address in data.broker_addrs.values()), None
        )
        return topic_list(names, address)

    def wipe_write_perm(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer WIPE_WRITE_PERM_OF_BROKER."""
        del connection
        count = self.routes.set_write_perm(text(request.ext_fields, "brokerName"), False)
        return RemotingCommand(SUCCESS, {"wipeTopicCount": str(count)})

    def add_write_perm(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer ADD_WRITE_PERM_OF_BROKER."""
        del connection
        count = self.routes.set_write_perm(text(request.ext_fields, "brokerName"), True)
        return RemotingCommand(SUCCESS, {"addTopicCount": str(count)})

    def delete_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer DELETE_TOPIC_IN_NAMESRV."""
        del connection
        self.routes.delete_topic(text(request.ext_fields, "topic"), request.ext_fields.get("clusterName", ""))
        return RemotingCommand(SUCCESS)

    # Brokers.

    def register_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer REGISTER_BROKER."""
        fields = request.ext_fields
        body = request.body_bytes
        crc = optional_whole(fields, "bodyCrc32", 0)
        if crc and crc32(body) & 0x7FFFFFFF != crc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"crc32 not match: crc32={crc}")
        if truth(fields, "compressed"):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"a compressed registration is not supported: body_size={len(body)}",
                "Set compressedRegister=false at the broker.",
            )
        wrapper = registered(body).topic_config_serialize_wrapper if body else None
        topics = None
        if wrapper is not None:
            topics = {
                name: msgspec.structs.replace(topic, topic_name=name)
                for name, topic in wrapper.topic_config_table.items()
            }
        timeout_ms = optional_whole(fields, "heartbeatTimeoutMillis", 0, is_long=True)
        registration = Registration(
            text(fields, "clusterName"),
            text(fields, "brokerName"),
            whole(fields, "brokerId", is_long=True),
            text(fields, "brokerAddr"),
            fields.get("haServerAddr", ""),
            topics,
            RegisteredVersion() if wrapper is None else wrapper.data_version,
            truth(fields, "enableActingMaster"),
            timeout_ms / 1000 if timeout_ms > 0 else BROKER_TIMEOUT_S,
            connection,
        )
        ha_address, master = self.routes.register(registration)
        answer = {"haServerAddr": ha_address, "masterAddr": master} if master else {}
        return RemotingCommand(SUCCESS, answer, encode_json({"table": self.kv_configs.get("ORDER_TOPIC_CONFIG", {})}))

    def unregister_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UNREGISTER_BROKER."""
        fields = request.ext_fields
        address = text(fields, "brokerAddr")
        del connection
        name, broker_id = text(fields, "brokerName"), whole(fields, "brokerId", is_long=True)
        if self.routes.is_own(name, broker_id, address):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker beside this name server cannot be removed: address={address}"
            )
        self.routes.unregister(name, broker_id, address)
        return RemotingCommand(SUCCESS)

    def query_data_version(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_DATA_VERSION."""
        del connection
        try:
            version = decode_data_version(request.body_bytes or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not a data version: error={error}") from None
        address = text(request.ext_fields, "brokerAddr")
        changed = self.routes.has_changed(address, version)
        live = self.routes.live.get(address)
        body = b"" if live is None else encode_json(live.registration.data_version)
        return RemotingCommand(SUCCESS, {"changed": "true" if changed else "false"}, body)

    def broker_heartbeat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer BROKER_HEARTBEAT."""
        del connection
        self.routes.heartbeat(text(request.ext_fields, "brokerAddr"))
        return RemotingCommand(SUCCESS)

    def member_group(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_BROKER_MEMBER_GROUP: the brokers of one name."""
        del connection
        cluster, name = text(request.ext_fields, "clusterName"), text(request.ext_fields, "brokerName")
        data = self.routes.brokers.get(name)
        addresses = {} if data is None else data.broker_addrs
        body = {"brokerMemberGroup": {"brokerAddrs": addresses, "brokerName": name, "cluster": cluster}}
        return RemotingCommand(SUCCESS, body=encode_json(body))

    def register_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer REGISTER_TOPIC_IN_NAMESRV: one topic of a broker over the connection it registered with."""
        topic = text(request.ext_fields, "topic")
        live = [
            broker.registration for broker in self.routes.live.values() if broker.registration.connection is connection
        ]
        if not live:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no broker has registered here: topic={topic}")
        try:
            found = msgspec.json.decode(request.body_bytes or b"{}")
            queues = msgspec.convert(found.get("queueDatas") or [], list[RegisteredTopic])
        except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not a route: error={error}") from None
        self.routes.refuse_rows(len(queues))
        for queue in queues if self.routes.decides_topics(live[0]) else ():
            self.routes.set_topic(live[0].broker_name, msgspec.structs.replace(queue, topic_name=topic))
        return RemotingCommand(SUCCESS)

    # Keys and values.

    def put_kv_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer PUT_KV_CONFIG."""
        del connection
        fields = request.ext_fields
        namespace, key, value = text(fields, "namespace"), text(fields, "key"), text(fields, "value")
        size = self.kv_size - self.size_of(namespace, key) + len(namespace) + len(key) + len(value)
        if size > KV_SIZE_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"keys and values take too much memory: kv_size_max={KV_SIZE_MAX}"
            )
        self.kv_configs.setdefault(namespace, {})[key] = value
        self.kv_size = size
        return RemotingCommand(SUCCESS)

    def get_kv_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_KV_CONFIG."""
        del connection
        namespace, key = text(request.ext_fields, "namespace"), text(request.ext_fields, "key")
        value = self.kv_configs.get(namespace, {}).get(key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return RemotingCommand(SUCCESS, {"value": value})

    def delete_kv_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer DELETE_KV_CONFIG."""
        del connection
        namespace, key = text(request.ext_fields, "namespace"), text(request.ext_fields, "key")
        self.kv_size -= self.size_of(namespace, key)
        found = self.kv_configs.get(namespace, {})
        found.pop(key, None)
        if not found:
            self.kv_configs.pop(namespace, None)
        return RemotingCommand(SUCCESS)

    def size_of(self, namespace: str, key: str) -> int:
        """Return the counted characters of a key; 0 if there is no such key."""
        value = self.kv_configs.get(namespace, {}).get(key)
        return 0 if value is None else len(namespace) + len(key) + len(value)

    def kv_list(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_KVLIST_BY_NAMESPACE."""
        del connection
        namespace = text(request.ext_fields, "namespace")
        found = self.kv_configs.get(namespace)
        if found is None:
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return RemotingCommand(SUCCESS, body=encode_json({"table": found}))

    # Configuration.

    def configuration(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_NAMESRV_CONFIG: the behaviour of this name server as RocketMQ's settings."""
        del request, connection
        lines = [f"{name}={value}\n" for name, value in CONFIGURATION.items()]
        return RemotingCommand(SUCCESS, body="".join(lines).encode())

    def refuse_configuration(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UPDATE_NAMESRV_CONFIG with a refusal: no setting can change."""
        del request, connection
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"a name server's settings cannot change while it runs: settings={','.join(CONFIGURATION)}",
        )


def topic_list(topics: list[str], broker_address: str | None = None) -> RemotingCommand:
    """Return an answer that lists *topics*."""
    return RemotingCommand(SUCCESS, body=encode_json(TopicList(broker_address, topics)))


def registered(body: bytes) -> RegisterBrokerBody:
    """Return the registration of a broker.

    Raises:
        RequestRefused: SYSTEM_ERROR; the body is not a registration.
    """
    try:
        try:
            return decode_registration(body)
        except msgspec.ValidationError:
            # RocketMQ treats a null as a missing member.
            return msgspec.convert(without_nulls(msgspec.json.decode(body)), RegisterBrokerBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not a registration: error={error}") from None


def without_nulls(value: Any) -> Any:
    """Return decoded JSON without the members that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(member) for member in value] if isinstance(value, list) else value
