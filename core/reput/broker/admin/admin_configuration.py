"""AdminConfigurationProcessor: shows the broker's settings, and changes them while the broker runs.

Only the few settings that are read at each use can change. A change lasts until the broker ends: it is not written to
the broker's configuration file.

Source: RocketMQ broker, AdminBrokerProcessor.updateBrokerConfig and getBrokerConfig.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from reput.broker.requests.client_manage import ClientManageProcessor
from reput.broker.requests.send_message import SendMessageProcessor
from reput.broker.state.broker_topics import BrokerTopics
from reput.embedded.store_engine import StoreEngine
from reput.errors import ConfigError, RequestRefused
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.settings.java_properties import parse_properties
from reput.settings.sources import Assignment
from reput.settings.spelling import ROCKETMQ_SPELLING, setting_name
from reput.settings.values import field_value
from reput.store.config.stored_fields import DataVersion

__all__ = ["AdminConfigurationProcessor"]

# RocketMQ's settings that have one value here. Its tools that export configurations fail without them.
FIXED = {
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "slaveReadEnable": "false",
    "traceOn": "true",
    "traceTopicEnable": "true",
}

logger = logging.getLogger(__name__)


class SettingsHolder(Protocol):
    """A part that reads its settings at each use."""

    settings: Settings


class AdminConfigurationProcessor:
    """Used in the thread of the broker's loop only."""

    def __init__(
        self,
        engine: StoreEngine,
        topics: BrokerTopics,
        sends: SendMessageProcessor,
        client_manage: ClientManageProcessor,
        registration: SettingsHolder,
        permission_changed: Callable[[], None],
    ) -> None:
        """*permission_changed* is called after the broker's permission has changed, of which *registration* tells."""
        services = engine.services
        self.engine = engine
        self.topics = topics
        self.permission_changed = permission_changed
        self.version = DataVersion(timestamp=time.time_ns() // 1_000_000)
        # The settings that can change, and the parts that read them.
        self.holders: dict[str, tuple[SettingsHolder, ...]] = {
            "auto_create_topic_enable": (topics,),
            "auto_create_subscription_group": (services.groups,),
            "broker_permission": (sends, services.group_reader, registration),
            "clean_file_forcibly_enable": (engine.writer.retention,),
            "default_query_max_num": (),
            "delete_when": (engine.writer.retention,),
            "enable_property_filter": (client_manage, services.pull_service),
            "file_reserved_time": (engine.writer.retention,),
            "flush_consumer_offset_interval": (services,),
            "long_polling_enable": (services.pull_service,),
            "short_polling_time_mills": (services.pull_service,),
        }

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        return {
            RequestCode.GET_BROKER_CONFIG: Processor(self.show),
            RequestCode.UPDATE_BROKER_CONFIG: Processor(self.update),
        }

    def show(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_BROKER_CONFIG: the settings that RocketMQ knows, in its spelling."""
        del request, connection
        settings = self.engine.settings
        fields = [field for field in Settings.__struct_fields__ if field in ROCKETMQ_SPELLING]
        lines = [f"{ROCKETMQ_SPELLING[field]}={property_text(getattr(settings, field))}\n" for field in fields]
        lines += [f"{name}={value}\n" for name, value in FIXED.items()]
        lines.append(f"useTLS={property_text(bool(settings.tls_server_cert_path))}\n")
        # By this a follower knows that it may speak more than RocketMQ's wire.
        lines.append(f"reputEpoch={self.engine.writer.epochs.epoch}\n")
        version = {"stateVersion": 0, "counter": self.version.counter, "timestamp": self.version.timestamp}
        fields_of_answer = {"version": msgspec.json.encode(version).decode()}
        return RemotingCommand(ResponseCode.SUCCESS, fields_of_answer, "".join(sorted(lines)).encode())

    def update(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UPDATE_BROKER_CONFIG. If one of the settings cannot change, none does."""
        changes: dict[str, Any] = {}
        for name, value in self.assignments(request.body_bytes):
            field = setting_name(name)
            if field is None or field not in self.holders:
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION,
                    f"the setting cannot change while the broker runs: name={name!r}",
                    "Change it in the options of the broker, and restart the broker.",
                )
            try:
                changes[field] = field_value(field, Assignment(name, value, "request", textual=True))
            except ConfigError as error:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if not changes:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "no setting is named", "Name one and its value.")
        try:
            settings = msgspec.structs.replace(self.engine.settings, **changes)
        except ConfigError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from None
        self.engine.settings = settings
        for field, value in changes.items():
            logger.info("a setting has changed: name=%s value=%r peer=%s", field, value, connection.peer)
            for holder in self.holders[field]:
                holder.settings = settings
        self.version = self.version.next(time.time_ns() // 1_000_000)
        if changes.get("auto_create_topic_enable"):
            # A broker that started without this setting has no template topic yet.
            self.topics.add(self.topics.boot_topics())
        if "broker_permission" in changes:
            self.permission_changed()
        return RemotingCommand(ResponseCode.SUCCESS)

    def assignments(self, body: bytes) -> list[tuple[str, str]]:
        """Return the names and values in a properties file's text.

        Raises:
            RequestRefused: INVALID_PARAMETER; the body is not such a text.
        """
        try:
            return [(name, value) for name, value, _ in parse_properties(body)]
        except ConfigError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from None


def property_text(value: object) -> str:
    """Return a value as it is written in a properties file."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\")
