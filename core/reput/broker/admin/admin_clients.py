"""AdminClientsProcessor: lists the connected clients, and forwards requests to them.

    GET_CONSUMER_RUNNING_INFO ──▶ connection of the client ── its answer, 10 s at most ──▶ response
    INVOKE_BROKER_TO_RESET_OFFSET ──▶ offsets of the group, on disk ──▶ RESET_CONSUMER_CLIENT_OFFSET to all its clients

Source: RocketMQ broker, AdminBrokerProcessor and Broker2Client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import msgspec

from reput.access.access_control import AccessControl
from reput.broker.admin.admin_bodies import json_response, object_keyed, parse_body, queue_table
from reput.broker.admin.admin_queues import subscription_data
from reput.broker.state.connected_clients import ClientChannel, ConnectedClients
from reput.consume.pull.topic_reader import Beginning
from reput.embedded.store_engine import StoreEngine
from reput.errors import ReputError, RequestRefused
from reput.json_encoding import encode_json
from reput.remoting.connection import Connection, ConnectionLost
from reput.remoting.custom_header import optional_whole, text, truth, whole
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor, refusal
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput_hooks import Record

__all__ = ["AdminClientsProcessor"]

SUCCESS = ResponseCode.SUCCESS
# RocketMQ's value; mqadmin waits 15 s.
CLIENT_TIMEOUT_S = 10.0
# Requests that wait for a client's answer, and their bytes.
RELAYED_MAX = 1000
RELAYED_SIZE_MAX = 64 << 20

logger = logging.getLogger(__name__)


class AdminClientsProcessor:
    """Used in the thread of the broker's loop, except for methods that say they run in threads."""

    def __init__(
        self,
        engine: StoreEngine,
        clients: ConnectedClients,
        access: AccessControl | None = None,
        timeout: float = CLIENT_TIMEOUT_S,
    ) -> None:
        """Relay to *clients*.

        Args:
            access: decides which records a client may have consumed; None: all.
            timeout: seconds to wait for a client's answer.
        """
        self.engine = engine
        self.access = access
        self.administration = engine.services.administration
        self.clients = clients
        self.timeout = timeout
        self.broker_name = engine.settings.broker_name
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self.relayed_size = 0

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: Processor(self.consumer_connections),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: Processor(self.producer_connections),
            RequestCode.GET_ALL_PRODUCER_INFO: Processor(self.producers),
            RequestCode.GET_CONSUMER_RUNNING_INFO: Processor(self.running_info),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: Processor(self.consume_directly),
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Processor(self.consumer_status),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Processor(self.reset_offset, in_thread=True),
        }

    # Connections.

    def consumer_connections(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_CONSUMER_CONNECTION_LIST."""
        del connection
        group = text(request.ext_fields, "consumerGroup")
        found = self.clients.consumers.get(group)
        if found is None:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        return json_response(
            {
                "connectionSet": connection_set(found.channels.values()),
                "consumeFromWhere": found.consume_from_where,
                "consumeType": found.consume_type,
                "messageModel": found.message_model,
                "subscriptionTable": {entry.topic: subscription_data(entry) for entry in found.subscriptions},
            }
        )

    def producer_connections(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_PRODUCER_CONNECTION_LIST."""
        del connection
        group = text(request.ext_fields, "producerGroup")
        found = self.clients.producers.get(group)
        if found is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return json_response({"connectionSet": connection_set(found.values())})

    def producers(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_ALL_PRODUCER_INFO: the connections of every producer group."""
        del request, connection
        now, now_ms = self.loop.time(), time.time_ns() // 1_000_000
        data = {
            group: [
                {
                    "clientId": channel.client_id,
                    "language": channel.language,
                    "lastUpdateTimestamp": now_ms - round((now - channel.heartbeat_at) * 1000),
                    "remoteIP": f"/{channel.connection.peer}",
                    "version": channel.version,
                }
                for channel in channels.values()
            ]
            for group, channels in self.clients.producers.items()
        }
        return json_response({"data": data})

    # Forwarding.

    def running_info(self, request: RemotingCommand, connection: Connection) -> None:
        """Answer GET_CONSUMER_RUNNING_INFO with what the client says."""
        fields = request.ext_fields
        channel = self.channel_of(fields)
        self.begin(request, connection, self.relayed(request, channel, dict(fields), request.body_bytes))

    def consume_directly(self, request: RemotingCommand, connection: Connection) -> None:
        """Answer CONSUME_MESSAGE_DIRECTLY: let a client consume a message again, and report the result."""
        fields = request.ext_fields
        channel = self.channel_of(fields)
        self.begin(request, connection, self.consumed_directly(request, connection, channel))

    def channel_of(self, fields: Mapping[str, str]) -> ClientChannel:
        """Return the connection of the client that a request is for.

        Raises:
            RequestRefused: SYSTEM_ERROR; the client is not in the group.
        """
        group, client_id = text(fields, "consumerGroup"), fields.get("clientId", "")
        found = self.clients.consumers.get(group)
        channel = None if found is None else found.channel_of(client_id)
        if channel is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        return channel

    async def consumed_directly(
        self, request: RemotingCommand, connection: Connection, channel: ClientChannel
    ) -> RemotingCommand:
        """Forward the request together with its message."""
        fields = request.ext_fields
        message_id = text(fields, "msgId")
        found = await self.loop.run_in_executor(None, self.record_of_id, message_id)
        if found is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no such message: message_id={message_id!r}")
        record, data = found
        if self.access is not None:
            self.access.check_record(connection, request, record)
        return await self.relayed(request, channel, {**fields, "brokerName": self.broker_name}, data)

    def record_of_id(self, message_id: str) -> tuple[Record, bytes] | None:
        """Return the record whose place the message id names, and its bytes; None: there is none. Reads the log."""
        with self.engine.slow_reader.reading() as reader:
            store = reader.store
            record = store.record_of_id(message_id)
            if record is None:
                return None
            return record, store.read_log(record.commit_log_offset, record.record_size)

    async def relayed(
        self, request: RemotingCommand, channel: ClientChannel, fields: Mapping[str, str], body: bytes
    ) -> RemotingCommand:
        """Forward a request to a client, and return its answer unchanged.

        Raises:
            RequestRefused: CONSUME_MSG_TIMEOUT; the client does not answer in time. SYSTEM_ERROR; it has disconnected.
                SYSTEM_BUSY; the requests that wait for answers take too much memory.
        """
        size = len(body) + sum(map(len, fields.values()))
        if self.relayed_size and self.relayed_size + size > RELAYED_SIZE_MAX:
            raise busy(f"relayed_size={self.relayed_size} relayed_size_max={RELAYED_SIZE_MAX}")
        self.relayed_size += size
        try:
            answer = await self.asked(channel, RemotingCommand(request.code, fields, body))
        finally:
            self.relayed_size -= size
        return RemotingCommand(answer.code, answer.ext_fields, answer.body_bytes, answer.remark)

    async def asked(self, channel: ClientChannel, command: RemotingCommand) -> RemotingCommand:
        """Return a client's answer.

        Raises:
            RequestRefused: as `relayed`.
        """
        try:
            return await channel.connection.invoke(command, self.timeout)
        except TimeoutError:
            raise RequestRefused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"the client does not answer: client_id={channel.client_id!r} timeout={self.timeout}",
            ) from None
        except ConnectionLost as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None

    def begin(
        self, request: RemotingCommand, connection: Connection, work: Coroutine[Any, Any, RemotingCommand]
    ) -> None:
        """Start *work*, and answer the request with its result.

        Raises:
            RequestRefused: SYSTEM_BUSY; too many requests wait for answers.
        """
        if len(self.tasks) >= RELAYED_MAX:
            work.close()
            raise busy(f"relayed_max={RELAYED_MAX}")
        # The work has what it needs of it.
        request.body = b""
        task = self.loop.create_task(self.answered(request, connection, work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def answered(
        self, request: RemotingCommand, connection: Connection, work: Coroutine[Any, Any, RemotingCommand]
    ) -> None:
        """Respond with the result of *work*, or with its error."""
        try:
            response = await work
        except Exception as error:
            if not isinstance(error, ReputError):
                logger.exception("a request failed: code=%d peer=%s", request.code, connection.peer)
            response = refusal(error)
        connection.respond(request, response)

    # Offsets.

    def reset_offset(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer INVOKE_BROKER_TO_RESET_OFFSET. Runs in threads.

        The broker sets the offsets, and tells the group's clients. Connected clients adopt them after 10 s, and
        overwrite the offsets that they have committed meanwhile.
        """
        del connection
        fields = request.ext_fields
        group, topic = text(fields, "group"), text(fields, "topic")
        timestamp = whole(fields, "timestamp", is_long=True)
        queue_id = optional_whole(fields, "queueId", -1)
        queue_offset = optional_whole(fields, "offset", -1, is_long=True)
        if queue_id >= 0 and queue_offset >= 0:
            rows = [self.administration.set_offset(group, topic, queue_id, queue_offset)]
        else:
            to: Beginning = "latest" if timestamp < 0 else timestamp
            rows = self.administration.reset_offsets(
                group,
                topic,
                to,
                queue_id=queue_id if queue_id >= 0 else None,
                back_only=not truth(fields, "isForce", True),
            )
        offsets = {MessageQueue(self.broker_name, row.queue_id, topic): row.consumer_offset for row in rows}
        self.loop.call_soon_threadsafe(self.tell_reset, group, topic, timestamp, offsets)
        return json_response({"offsetTable": object_keyed(offsets)})

    def tell_reset(self, group: str, topic: str, timestamp: int, offsets: Mapping[MessageQueue, int]) -> None:
        """Tell every client of a group from which offsets to continue."""
        found = self.clients.consumers.get(group)
        if found is None:
            return
        fields = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true"}
        of_objects = encode_json({"offsetTable": object_keyed(offsets)})
        # The C++ client expects a list instead of the map.
        of_list = encode_json(
            {"offsetTable": [{**msgspec.to_builtins(queue), "offset": offset} for queue, offset in offsets.items()]}
        )
        for channel in found.channels.values():
            body = of_list if channel.language == "CPP" else of_objects
            channel.connection.notify(RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body))

    def consumer_status(self, request: RemotingCommand, connection: Connection) -> None:
        """Answer INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the queues of each client, and its offsets there."""
        fields = request.ext_fields
        group, topic, client_id = text(fields, "group"), text(fields, "topic"), fields.get("clientAddr", "")
        found = self.clients.consumers.get(group)
        channels = [] if found is None else list(found.channels.values())
        if client_id:
            channels = [channel for channel in channels if channel.client_id == client_id]
        if not channels:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{group}]")
        self.begin(request, connection, self.statuses(group, topic, channels))

    async def statuses(self, group: str, topic: str, channels: Iterable[ClientChannel]) -> RemotingCommand:
        """Return the offsets that each client has reached."""
        command_fields = {"topic": topic, "group": group}
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        channels = list(channels)
        answers = await asyncio.gather(
            *(self.asked(channel, RemotingCommand(code, command_fields)) for channel in channels),
            return_exceptions=True,
        )
        table = {}
        for channel, answer in zip(channels, answers, strict=True):
            if isinstance(answer, RequestRefused):
                logger.warning("a client does not report its queues: group=%r error=%s", group, answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer.code == SUCCESS and answer.body_bytes:
                table[channel.client_id] = await self.loop.run_in_executor(None, status_of, answer.body_bytes)
        return json_response({"consumerTable": table, "messageQueueTable": {}})


def busy(text: str) -> RequestRefused:
    """Return the refusal of a request that waits for no client."""
    return RequestRefused(ResponseCode.SYSTEM_BUSY, f"too many requests wait for answers of clients: {text}")


def status_of(body: bytes) -> msgspec.Raw:
    """Return a client's queues and its offsets in them, as part of a body.

    Raises:
        RequestRefused: SYSTEM_ERROR; the client has sent something else.
    """
    fields = parse_body(body)
    return object_keyed(queue_table((isinstance(fields, dict) and fields.get("messageQueueTable")) or {}, "offset"))


def connection_set(channels: Iterable[ClientChannel]) -> list[dict[str, object]]:
    """Return connections as RocketMQ's clients read them."""
    return [
        {
            "clientAddr": channel.connection.peer,
            "clientId": channel.client_id,
            "language": channel.language,
            "version": channel.version,
        }
        for channel in channels
    ]
