"""ReplyMessageProcessor: replies to requests, pushed to the client that waits for them.

    SEND_REPLY_MESSAGE ──▶ connection of REPLY_TO_CLIENT ── PUSH_REPLY_MESSAGE_TO_CLIENT ──▶ its answer ──▶ response

The reply is stored as well, in the reply topic of the cluster.

Source: RocketMQ broker, ReplyMessageProcessor.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from reput.broker.requests.pending_puts import Outcome, PendingPuts
from reput.broker.requests.send_message import SendMessageProcessor
from reput.broker.requests.sent_message import SendHeader, parse_properties
from reput.broker.state.connected_clients import ClientChannel, ConnectedClients
from reput.errors import ReputError, RequestRefused
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.record.message import MessageExtBrokerInner, PutMessageResult
from reput.store.record.properties import encode_properties
from reput.store.record.record import decode_host

__all__ = ["ReplyMessageProcessor"]

PUSH_TIMEOUT_S = 3.0
# Maximum number of replies that their clients have not answered yet; each keeps its body in memory.
REPLIES_MAX = 1000


class ReplyMessageProcessor:
    """Used in the thread of the broker's loop only."""

    def __init__(self, sends: SendMessageProcessor, puts: PendingPuts, clients: ConnectedClients) -> None:
        self.sends = sends
        self.puts = puts
        self.clients = clients
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()

    def send_reply(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Answer SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2.

        Raises:
            RequestRefused: the reply may not be stored, or too many wait for their clients.
        """
        header = SendHeader.of(request)
        self.sends.checked_topic(header)
        if len(self.tasks) >= REPLIES_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, start flow control for a while: replies_max={REPLIES_MAX}",
            )
        properties = parse_properties(header.properties)
        client_id = properties.get("REPLY_TO_CLIENT", "")
        channel = self.clients.channel_of_producer(client_id)
        queue_id = max(header.queue_id, 0)
        message = self.sends.message(
            connection, header, queue_id, request.body_bytes, self.sends.complete(dict(properties), connection)
        )
        task = self.loop.create_task(self.reply(request, connection, header, properties, client_id, channel, message))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return None

    async def reply(
        self,
        request: RemotingCommand,
        connection: Connection,
        header: SendHeader,
        properties: dict[str, str],
        client_id: str,
        channel: ClientChannel | None,
        message: MessageExtBrokerInner,
    ) -> None:
        """Push the reply, store it, and answer."""
        error = await self.push(header, message.born_host or b"", properties, request.body_bytes, client_id, channel)
        fields = {"msgId": "0", "queueId": str(message.queue_id), "queueOffset": "0", **self.sends.common_fields}
        response = RemotingCommand(ResponseCode.SUCCESS, fields)
        if error:
            response.code, response.remark = ResponseCode.SYSTEM_ERROR, error

        def stored(outcome: Outcome) -> None:
            if isinstance(outcome, PutMessageResult):
                response.ext_fields = {
                    **fields,
                    "msgId": outcome.message_id,
                    "queueOffset": str(outcome.queue_offset),
                }
            connection.respond(request, response)

        try:
            self.puts.put(msgspec.structs.replace(message, delay_level=0), stored, waits=False)
        except ReputError:
            connection.respond(request, response)

    async def push(
        self,
        header: SendHeader,
        born_host: bytes,
        properties: dict[str, str],
        body: bytes,
        client_id: str,
        channel: ClientChannel | None,
    ) -> str:
        """Push a reply to its client; return why it has not arrived, or ""."""
        if channel is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = str(time.time_ns() // 1_000_000)
        properties = {**properties, **self.sends.common_fields, "PUSH_REPLY_TIME": now}
        fields = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_topic_queue_nums),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp),
            "flag": str(header.flag),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": "true" if header.unit_mode else "false",
            "bornHost": decode_host(born_host),
            "storeHost": decode_host(self.sends.store_host),
            "storeTimestamp": now,
            "properties": encode_properties(properties).decode(),
        }
        command = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body)
        try:
            answer = await channel.connection.invoke(command, PUSH_TIMEOUT_S)
        except (ReputError, TimeoutError) as error:
            return f"push reply message to {client_id} fail: {error}"
        return "" if answer.code == ResponseCode.SUCCESS else f"push reply message fail, response code: {answer.code}"
