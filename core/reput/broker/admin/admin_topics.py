"""AdminTopicsProcessor: shows, changes and deletes topics and consumer groups.

Source: RocketMQ broker, AdminBrokerProcessor; common, TopicAttributes and AttributeParser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reput.broker.admin.admin_bodies import json_response
from reput.broker.requests.client_manage import decode_body
from reput.broker.state.broker_topics import BrokerTopics
from reput.embedded.store_engine import StoreEngine
from reput.errors import RequestRefused
from reput.json_encoding import encode_json
from reput.remoting.connection import Connection
from reput.remoting.custom_header import optional_whole, text, truth, whole
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.config.stored_fields import DataVersion
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig
from reput.store.config.topic_config_manager import TopicConfig
from reput.store.config.versioned_table import VersionedTable

__all__ = ["AdminTopicsProcessor"]

SUCCESS = ResponseCode.SUCCESS
# The attributes that a topic may have here. Only RocketMQ has batch queues and compaction.
ATTRIBUTES = {
    "message.type": {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"},
    "queue.type": {"SimpleCQ"},
    "cleanup.policy": {"DELETE"},
}
FILTER_TYPES = {"SINGLE_TAG", "MULTI_TAG"}


class TopicListBody(msgspec.Struct, rename="camel"):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[dict[str, Any]]


class TableBody:
    """The body with a whole table. It is made again after a change only: slaves, proxies and tools ask all the time."""

    def __init__(self, manager: VersionedTable[Any], make: Callable[[], dict[str, Any]]) -> None:
        """*make* returns the body's fields but for the version; it is called under the lock of *manager*."""
        self.manager = manager
        self.make = make
        self.made: tuple[DataVersion | None, bytes] = (None, b"")

    def is_stale(self) -> bool:
        """Whether the table has changed since the body was made."""
        return self.made[0] is not self.manager.data_version

    def response(self) -> RemotingCommand:
        """Return the response with the table as it is now."""
        version, body = self.made
        if version is not self.manager.data_version:
            with self.manager.lock:
                version = self.manager.data_version
                fields = {"dataVersion": with_state(version.to_fields()), **self.make()}
            body = encode_json(fields)
            self.made = (version, body)
        return RemotingCommand(SUCCESS, body=body)


class AdminTopicsProcessor:
    """Requests run in threads, because a change is on disk before it is answered, but for tables that are known."""

    def __init__(self, engine: StoreEngine, topics: BrokerTopics) -> None:
        self.services = engine.services
        self.administration = engine.services.administration
        self.system_topics = frozenset(topics.system_topics())
        topic_table, group_table = self.services.topics.manager, self.services.groups.manager
        self.topic_body = TableBody(
            topic_table,
            lambda: {"topicConfigTable": {name: topic_fields(config) for name, config in topic_table.entries.items()}},
        )
        self.group_body = TableBody(
            group_table,
            lambda: {
                "forbiddenTable": {},
                "subscriptionGroupTable": {name: group_fields(config) for name, config in group_table.entries.items()},
            },
        )

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        table = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.list_system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
        }
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: Processor(self.all_topics, in_thread=self.topic_body.is_stale),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Processor(
                self.all_groups, in_thread=self.group_body.is_stale
            ),
            **{code: Processor(process, in_thread=True) for code, process in table.items()},
        }

    # Topics.

    def update_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UPDATE_AND_CREATE_TOPIC."""
        del connection
        fields = request.ext_fields
        name = text(fields, "topic")
        self.change_topic(
            TopicConfig(
                topic_name=name,
                read_queue_nums=whole(fields, "readQueueNums"),
                write_queue_nums=whole(fields, "writeQueueNums"),
                perm=whole(fields, "perm"),
                topic_filter_type=fields.get("topicFilterType", "SINGLE_TAG"),
                topic_sys_flag=optional_whole(fields, "topicSysFlag", 0),
                order=truth(fields, "order"),
            ),
            wanted_attributes(fields.get("attributes", "")),
        )
        return RemotingCommand(SUCCESS)

    def update_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UPDATE_AND_CREATE_TOPIC_LIST. If a topic is refused, the topics before it have been changed."""
        del connection
        try:
            configs = [
                TopicConfig.from_fields(entry) for entry in decode_body(request, TopicListBody).topic_config_list
            ]
        except msgspec.ValidationError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not a valid topic: error={error}") from None
        if not configs:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the list of topics is empty", "Name a topic.")
        for config in configs:
            wanted = wanted_attributes(",".join(f"{name}={value}" for name, value in (config.attributes or {}).items()))
            self.change_topic(msgspec.structs.replace(config, attributes=None), wanted)
        return RemotingCommand(SUCCESS)

    def change_topic(self, config: TopicConfig, wanted: Mapping[str, str | None]) -> None:
        """Create or change a topic; *wanted* are the attributes to set, or to remove if the value is None.

        Raises:
            RequestRefused: INVALID_PARAMETER; RocketMQ would refuse the topic, or it is a system topic.
        """
        topic = config.topic_name
        if topic in self.system_topics:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"topic is the system's own: topic={topic!r}")
        if config.topic_filter_type not in FILTER_TYPES:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the filter type must be SINGLE_TAG or MULTI_TAG: topic_filter_type={config.topic_filter_type!r}",
            )
        former = self.services.topics.manager.entries.get(topic)
        attributes = dict((former and former.attributes) or {})
        for name, value in wanted.items():
            if value is None:
                attributes.pop(name, None)
            else:
                attributes[name] = value
        self.services.topics.create_or_update(msgspec.structs.replace(config, attributes=attributes or None))

    def all_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_ALL_TOPIC_CONFIG."""
        del request, connection
        return self.topic_body.response()

    def topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_TOPIC_CONFIG."""
        del connection
        topic = text(request.ext_fields, "topic")
        config = self.services.topics.find(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return json_response(topic_fields(config))

    def delete_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer DELETE_TOPIC_IN_BROKER. Deleting an unknown topic succeeds: other brokers may have it."""
        del connection
        topic = text(request.ext_fields, "topic")
        if topic in self.system_topics:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"topic is the system's own: topic={topic!r}")
        try:
            self.administration.delete_topic(topic)
        except RequestRefused as error:
            if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        return RemotingCommand(SUCCESS)

    def list_system_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        del request, connection
        return json_response({"topicList": sorted(self.system_topics)})

    # Groups.

    def update_group(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        del connection
        fields = decode_body(request, dict[str, Any])
        try:
            config = SubscriptionGroupConfig.from_fields(fields)
        except msgspec.ValidationError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not a valid consumer group: error={error}") from None
        self.services.groups.create_or_update(config)
        return RemotingCommand(SUCCESS)

    def all_groups(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        del request, connection
        return self.group_body.response()

    def group(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_SUBSCRIPTIONGROUP_CONFIG."""
        del connection
        group = text(request.ext_fields, "group")
        config = self.services.groups.manager.entries.get(group)
        if config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}")
        return json_response(group_fields(config))

    def delete_group(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer DELETE_SUBSCRIPTIONGROUP. Deleting an unknown group succeeds."""
        del connection
        fields = request.ext_fields
        # RocketMQ 4.9 and RocketMQ 5 name this flag differently.
        cleans = truth(fields, "cleanOffset") or truth(fields, "removeOffset")
        try:
            self.administration.delete_group(text(fields, "groupName"), clean_offsets=cleans)
        except RequestRefused as error:
            if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
        return RemotingCommand(SUCCESS)


def wanted_attributes(given: str) -> dict[str, str | None]:
    """Return the attributes in a text like ``+message.type=FIFO,-queue.type``; the value None removes one.

    Raises:
        RequestRefused: INVALID_PARAMETER; an attribute or its value is unknown here.
    """
    wanted: dict[str, str | None] = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, has_value, value = part.lstrip("+").partition("=")
        if name.startswith("-") and not has_value:
            wanted[name[1:]] = None
        elif value in ATTRIBUTES.get(name, ()):
            wanted[name] = value
        else:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"a topic has no such attribute: attribute={part!r}")
    return wanted


def topic_fields(config: TopicConfig) -> dict[str, Any]:
    """Return a topic as RocketMQ's clients read it."""
    return {"attributes": {}, **without_nulls(config.to_fields())}


def group_fields(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Return a consumer group as RocketMQ's clients read it."""
    return {
        "attributes": {},
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        **without_nulls(config.to_fields()),
    }


def with_state(version: dict[str, Any]) -> dict[str, Any]:
    """Return a version with the field that only RocketMQ 5 stores."""
    return {"stateVersion": 0, **without_nulls(version)}


def without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return *fields* without nulls, which fastjson does not write."""
    return {name: value for name, value in fields.items() if value is not None}
