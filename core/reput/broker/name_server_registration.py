"""NameServerRegistration: keeps this broker known to name servers elsewhere.

    start ──▶ REGISTER_BROKER to all ── every 30 s, and soon after topics have changed ──▶ … ──▶ UNREGISTER_BROKER

A name server that ends its connection may have been started again, and knows no broker then: it is tried every second.
One that hangs does not delay the others.

Source: RocketMQ broker, BrokerOuterAPI.registerBrokerAll and BrokerController.registerBrokerAll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from isal.isal_zlib import crc32

from reput.access.credentials import NO_CREDENTIALS, Credentials
from reput.broker.state.broker_topics import routed
from reput.errors import BrokerError, ReputError
from reput.json_encoding import encode_json
from reput.namesrv.route_info import TopicRouteData, parsed_route
from reput.remoting.connection import Connection
from reput.remoting.remoting_client import RemotingClient
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.config.stored_fields import StoredFields
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager

__all__ = ["NameServerRegistration"]

INTERVAL_S = 30.0
# Seconds to wait, so that topics which are created at the same time are registered together.
CHANGE_PAUSE_S = 0.02
# The interval while a name server is not connected.
AGAIN_S = 1.0
TIMEOUT_S = 6.0
FIRST_TIMEOUT_S = 3.0
ROUTE_TIMEOUT_S = 1.0
# RocketMQ's slaves connect to this port, next to that of clients.
HA_PORT_DISTANCE = 1

logger = logging.getLogger(__name__)


class NameServerRegistration:
    """Used in the thread of the broker's loop only.

    Attributes:
        settings: replaced when the broker's permission changes.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        address: str,
        ha_address: str | None,
        settings: Settings,
        topics: TopicConfigManager,
        is_current: Callable[[], bool] = lambda: True,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """*addresses*: of the name servers; *address*: of this broker; *ha_address*: where slaves copy its log.

        *is_current*: tells whether the broker still is what it registers as: another may have its place.
        *credentials*: the account, and the encryption, with which it asks the name servers.
        """
        self.addresses = addresses
        self.settings = settings
        self.topics = topics
        self.is_current = is_current
        self.fields = {
            "brokerAddr": address,
            "brokerId": str(settings.broker_id),
            "brokerName": settings.broker_name,
            "clusterName": settings.broker_cluster_name,
        }
        self.ha_address = ha_address or beside(address)
        self.client = RemotingClient(tls=credentials.tls, greet=self.connected, sign=credentials.sign)
        # The JSON of each topic with its permission at the broker: to write that of thousands takes long.
        self.topic_texts: dict[str, tuple[TopicConfig, msgspec.Raw]] = {}
        self.permission = settings.broker_permission
        # The last refusal of each name server, so that the same reason is logged only once.
        self.refusals: dict[str, str] = {}
        self.changed = {address: asyncio.Event() for address in addresses}
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Register at all name servers, and keep registering."""
        await asyncio.gather(*(self.register(address, FIRST_TIMEOUT_S) for address in self.addresses))
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(self.keep_registering(address)) for address in self.addresses]

    def topic_changed(self) -> None:
        """Register again soon: topics, or the broker's permission, have changed."""
        for changed in self.changed.values():
            changed.set()

    async def connected(self, address: str, connection: Connection) -> None:
        """Register again once a connection to a name server has ended."""
        connection.lost.add_done_callback(lambda lost: self.changed[address].set())

    async def keep_registering(self, address: str) -> None:
        """Register at one name server every `INTERVAL_S`, and after each change."""
        changed = self.changed[address]
        while True:
            try:
                async with asyncio.timeout(AGAIN_S if self.client.connected(address) is None else INTERVAL_S):
                    await changed.wait()
                await asyncio.sleep(CHANGE_PAUSE_S)
            except TimeoutError:
                pass
            changed.clear()
            await self.register(address, TIMEOUT_S)

    async def register(self, address: str, timeout: float) -> None:
        """Register once at one name server."""
        if self.is_current():
            await self.tell(address, self.registration, timeout)

    def registration(self) -> RemotingCommand:
        """Return REGISTER_BROKER."""
        body = self.body()
        fields = {
            **self.fields,
            "haServerAddr": self.ha_address,
            "bodyCrc32": str(crc32(body) & 0x7FFFFFFF),
            "compressed": "false",
        }
        return RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)

    def body(self) -> bytes:
        """Return the topics of this broker, as JSON."""
        manager = self.topics
        with manager.lock:
            version = written(manager.data_version)
            topics = list(manager.entries.items())
        if self.permission != self.settings.broker_permission:
            self.permission = self.settings.broker_permission
            self.topic_texts = {}
        texts = {}
        for name, config in topics:
            known = self.topic_texts.get(name)
            if known is None or known[0] is not config:
                known = config, msgspec.Raw(encode_json(written(routed(config, self.settings))))
            texts[name] = known
        self.topic_texts = texts
        table = {name: text for name, (_, text) in texts.items()}
        wrapper = {"dataVersion": version, "topicConfigTable": table}
        return encode_json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})

    async def tell(self, address: str, command: Callable[[], RemotingCommand], timeout: float) -> None:
        """Send one request to one name server, and log its result if it differs from the last one.

        *command* makes the request, which may be long, once the name server is connected.
        """
        try:
            async with asyncio.timeout(timeout):
                connection = await self.client.connection(address)
                answer = await connection.invoke(command(), timeout)
        except (ReputError, TimeoutError) as error:
            refusal = str(error) or f"no answer in time: timeout_s={timeout:g}"
        else:
            refusal = "" if answer.code == ResponseCode.SUCCESS else f"code={answer.code} remark={answer.remark!r}"
        former = self.refusals.get(address)
        self.refusals[address] = refusal
        if refusal and refusal != former:
            logger.warning("a name server does not register this broker: name_server=%s reason=%s", address, refusal)
        elif not refusal and former != "":
            logger.info("the broker is registered: name_server=%s broker=%s", address, self.fields["brokerAddr"])

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic as the first name server that answers knows it; None: it knows none.

        Raises:
            BrokerError, TimeoutError: the last name server cannot be reached, or its answer cannot be read.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        for number, address in enumerate(self.addresses, 1):
            try:
                command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                answer = await self.client.invoke(address, command, ROUTE_TIMEOUT_S)
                return parsed_route(answer.body_bytes) if answer.code == ResponseCode.SUCCESS else None
            except (BrokerError, TimeoutError):
                if number == len(self.addresses):
                    raise
        return None

    async def end(self) -> None:
        """Unregister, so that clients go to other brokers, and end the connections."""
        for task in self.tasks:
            task.cancel()
        if not self.is_current():
            # RocketMQ 4's name server would drop whatever broker has this name and id now.
            await self.client.close()
            return
        await asyncio.gather(
            *(
                self.tell(
                    address, partial(RemotingCommand, RequestCode.UNREGISTER_BROKER, self.fields), FIRST_TIMEOUT_S
                )
                for address in self.addresses
            )
        )
        await self.client.close()


def beside(address: str) -> str:
    """Return where slaves look for the HA port of a broker that has none: RocketMQ's name server demands an address."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + HA_PORT_DISTANCE}"


def written(fields: StoredFields) -> dict[str, Any]:
    """Return the fields of an object as RocketMQ writes them: fields that are not set are left out."""
    return {name: value for name, value in fields.to_fields().items() if value is not None}
