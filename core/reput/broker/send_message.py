"""SendMessageProcessor: single messages, batches and retries that clients send.

    header ──▶ checks in RocketMQ's order ──▶ topic, created if need be ──▶ message ──▶ PendingPuts ──▶ answer

Source: RocketMQ broker, SendMessageProcessor and AbstractSendMessageProcessor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import NamedTuple

from reput.broker.broker_topics import NOT_SENT_TO, BrokerTopics
from reput.broker.pending_puts import Outcome, PendingPuts
from reput.broker.rebalance_locks import RebalanceLocks
from reput.consume.delivery.send_back import dead_letter_when_exhausted
from reput.consume.delivery.uniq_key import new_uniq_key
from reput.consume.registry.topics import RETRY_PREFIX
from reput.embedded.store_engine import StoreEngine
from reput.errors import MessageIllegal, RequestRefused, StoreBusy, StoreClosed, StoreError, StoreFull, StoreReadOnly
from reput.remoting.connection import Connection
from reput.remoting.custom_header import optional_whole, text, truth, whole
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.config.topic_config_manager import PERM_WRITE, TopicConfig
from reput.store.record.message import MessageExtBrokerInner, PutMessageResult, PutMessageStatus, check_topic
from reput.store.record.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from reput.store.record.record import encode_host

__all__ = ["SendHeader", "SendMessageProcessor", "put_refusal"]

# The names of the same fields in both forms of the header.
V2_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
V1_NAMES = {name: name for name in V2_NAMES}
V1_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
BATCH_HEAD = Struct(">iiiii")
BATCH_PROPERTIES = Struct(">h")
TOPIC_SIZE_MAX = 127
# From this version on a broker respects the number of deliveries that a client names.
MAX_RECONSUME_VERSION = 121
TIMERS = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
STATUS_CODES = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
}


class SendHeader(NamedTuple):
    """The custom header of a send, in either form."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    is_batch: bool

    @classmethod
    def of(cls, request: RemotingCommand) -> SendHeader:
        """Return the header of a request.

        Raises:
            RequestRefused: SYSTEM_ERROR; a field is missing, or is no number.
        """
        fields = request.ext_fields
        names = V1_NAMES if request.code in V1_CODES else V2_NAMES
        max_name = names["maxReconsumeTimes"]
        return cls(
            text(fields, names["producerGroup"]),
            text(fields, names["topic"]),
            text(fields, names["defaultTopic"]),
            whole(fields, names["defaultTopicQueueNums"]),
            whole(fields, names["queueId"]),
            whole(fields, names["sysFlag"]),
            whole(fields, names["bornTimestamp"], is_long=True),
            whole(fields, names["flag"]),
            fields.get(names["properties"], ""),
            optional_whole(fields, names["reconsumeTimes"], 0),
            truth(fields, names["unitMode"]),
            whole(fields, max_name) if max_name in fields else None,
            truth(fields, names["batch"]),
        )


class SendMessageProcessor:
    """Used in the thread of the broker's loop only."""

    def __init__(
        self,
        engine: StoreEngine,
        puts: PendingPuts,
        topics: BrokerTopics,
        locks: RebalanceLocks,
        half_stored: Callable[[str], None],
        region_id: str = "DefaultRegion",
    ) -> None:
        """*half_stored* is called, in a thread, with the producer group of a half message."""
        self.half_stored = half_stored
        self.is_draining = False
        self.engine = engine
        self.settings = engine.settings
        self.services = engine.services
        self.puts = puts
        self.topics = topics
        self.locks = locks
        self.region_id = region_id
        self.common_fields = {"MSG_REGION": region_id, "TRACE_ON": "true"}
        self.store_address = engine.writer.store_host

    def send(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Answer SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        if self.is_draining:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker stops")
        header = SendHeader.of(request)
        config = self.checked_topic(header)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(config.write_queue_nums, 1))
        if header.is_batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            return self.send_batch(request, connection, header, queue_id)
        properties = self.complete(parse_properties(header.properties), connection)
        message = self.message(connection, header, queue_id, request.body_bytes, properties)
        if header.topic.startswith(RETRY_PREFIX):
            message = self.dead_letter(request, header, message)
        if properties.get("TRAN_MSG", "").lower() == "true" and not message.delay_level:
            return self.send_half(request, connection, header, message)
        answer = partial(self.answer, request, connection, queue_id, properties["UNIQ_KEY"])
        self.puts.put(message, answer, waits=properties.get("WAIT") != "false")
        return None

    def checked_topic(self, header: SendHeader) -> TopicConfig:
        """Return the description of the topic that a message is for.

        Raises:
            RequestRefused: it may not be sent to, or is unknown and not created, or has no such queue.
        """
        topic = header.topic
        config = self.topics.topics.manager.entries.get(topic)
        if not self.settings.broker_permission & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker takes no messages: broker_permission={self.settings.broker_permission}",
            )
        if config is None:
            try:
                check_topic(topic)
            except MessageIllegal as error:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topic in NOT_SENT_TO:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if config is None:
            config = self.topics.found_or_created(
                topic, header.default_topic, header.default_topic_queue_nums, is_unit=header.unit_mode
            )
        if config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!", "Create the topic."
            )
        queue_nums = max(config.write_queue_nums, config.read_queue_nums)
        if header.queue_id >= queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal: topic={topic} queues={queue_nums}",
            )
        return config

    def complete(self, properties: dict[str, str], connection: Connection) -> dict[str, str]:
        """Return the properties of a message with those that a broker adds.

        Raises:
            RequestRefused: SYSTEM_ERROR; they ask for a delivery at a time of the sender's choice.
        """
        properties.pop("POP_CK", None)
        if any(name in properties for name in TIMERS) and not is_positive(properties.get("DELAY")):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled: reput delivers by delay levels alone",
                "Set a delay level instead of a time.",
            )
        properties["MSG_REGION"] = self.region_id
        properties["TRACE_ON"] = "true"
        if not properties.get("UNIQ_KEY"):
            properties["UNIQ_KEY"] = new_uniq_key(born_host(connection, self.store_address))
        properties["CLUSTER"] = self.settings.broker_cluster_name
        return properties

    def message(
        self, connection: Connection, header: SendHeader, queue_id: int, body: bytes, properties: dict[str, str]
    ) -> MessageExtBrokerInner:
        """Return the message that is stored.

        Raises:
            RequestRefused: SYSTEM_ERROR; its delay is no number.
        """
        return MessageExtBrokerInner(
            header.topic,
            body,
            properties=properties,
            flag=header.flag,
            queue_id=queue_id,
            delay_level=delay_level(properties.get("DELAY")),
            born_timestamp=header.born_timestamp,
            born_host=born_host(connection, self.store_address),
            sys_flag=header.sys_flag & ~12,
            reconsume_times=header.reconsume_times,
        )

    def dead_letter(
        self, request: RemotingCommand, header: SendHeader, message: MessageExtBrokerInner
    ) -> MessageExtBrokerInner:
        """Return what is stored for a message that a consumer sends to its retry topic.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        times_max = header.max_reconsume_times if request.version >= MAX_RECONSUME_VERSION else None
        if self.locks.is_locked(header.topic.removeprefix(RETRY_PREFIX)):
            # An orderly consumer has given the message up: it does not come again.
            times_max = -1
        return dead_letter_when_exhausted(self.engine, message, times_max)

    def answer(
        self, request: RemotingCommand, connection: Connection, queue_id: int, uniq_key: str, outcome: Outcome
    ) -> None:
        """Answer a send whose message was stored or refused."""
        if isinstance(outcome, PutMessageResult):
            response = self.stored(outcome, outcome.message_id, queue_id, uniq_key)
        else:
            response = put_refusal(outcome)
            response.ext_fields = self.common_fields
        connection.respond(request, response)

    def stored(self, result: PutMessageResult, message_id: str, queue_id: int, uniq_key: str) -> RemotingCommand:
        """Return the response for a message that is stored."""
        return RemotingCommand(
            STATUS_CODES[result.status],
            {
                "msgId": message_id,
                "queueId": str(queue_id),
                "queueOffset": str(result.queue_offset),
                "transactionId": uniq_key,
                **self.common_fields,
            },
        )

    # Batches.

    def send_batch(
        self, request: RemotingCommand, connection: Connection, header: SendHeader, queue_id: int
    ) -> RemotingCommand | None:
        """Answer a send of several messages of one topic.

        Raises:
            RequestRefused: MESSAGE_ILLEGAL; the topic takes no batches, or the body is none.
        """
        if header.topic.startswith(RETRY_PREFIX) or len(header.topic) > TOPIC_SIZE_MAX:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )
        host = born_host(connection, self.store_address)
        cluster = self.settings.broker_cluster_name
        messages = []
        for flag, body, properties in batch_messages(request.body_bytes):
            properties["CLUSTER"] = cluster
            if "UNIQ_KEY" not in properties:
                properties["UNIQ_KEY"] = new_uniq_key(host)
            messages.append(
                MessageExtBrokerInner(
                    header.topic,
                    body,
                    properties=properties,
                    flag=flag,
                    queue_id=queue_id,
                    born_timestamp=header.born_timestamp,
                    born_host=host,
                    sys_flag=header.sys_flag & ~12,
                    reconsume_times=header.reconsume_times,
                )
            )
        if not messages:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch has no message")
        waits = parse_properties(header.properties).get("WAIT") != "false"
        first = messages[0].properties
        assert first is not None
        uniq_key = first["UNIQ_KEY"]

        def answer(results: list[PutMessageResult]) -> None:
            ids = ",".join([result.message_id for result in results])
            connection.respond(request, self.stored(results[0], ids, queue_id, uniq_key))

        try:
            self.puts.put_batch([*messages], answer, waits=waits)
        except StoreError as error:
            return put_refusal(error)
        return None

    # Transactions.

    def send_half(
        self, request: RemotingCommand, connection: Connection, header: SendHeader, message: MessageExtBrokerInner
    ) -> RemotingCommand | None:
        """Store the half message of a transaction, in a thread."""
        properties = message.properties
        assert properties is not None
        group = properties.get("PGROUP") or header.producer_group
        loop = self.puts.loop

        def put() -> RemotingCommand:
            try:
                result = self.engine.transactions.put_half(group, message).result
                self.half_stored(group)
            except RequestRefused as error:
                return RemotingCommand(error.response_code, remark=str(error))
            except StoreError as error:
                return put_refusal(error)
            assert message.queue_id is not None
            return self.stored(result, result.message_id, message.queue_id, properties["UNIQ_KEY"])

        future = loop.run_in_executor(None, put)
        future.add_done_callback(lambda done: connection.respond(request, done.result()))
        return None


def put_refusal(error: StoreError) -> RemotingCommand:
    """Return the response for a message that was not stored."""
    if isinstance(error, MessageIllegal):
        code, remark = ResponseCode.MESSAGE_ILLEGAL, str(error)
    elif isinstance(error, StoreBusy):
        code, remark = (
            ResponseCode.SYSTEM_BUSY,
            f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error}",
        )
    elif isinstance(error, (StoreFull, StoreReadOnly, StoreClosed)):
        code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"
    else:
        code, remark = ResponseCode.SYSTEM_ERROR, str(error)
    return RemotingCommand(code, remark=remark)


def born_host(connection: Connection, otherwise: bytes) -> bytes:
    """Return the address of a client as records hold it; of a Unix socket, *otherwise*."""
    host = connection.attachments.get("born_host")
    if host is None:
        address, _, port = connection.peer.rpartition(":")
        host = encode_host(address.strip("[]"), int(port)) if address and port.isdigit() else otherwise
        connection.attachments["born_host"] = host
    assert isinstance(host, bytes)
    return host


def parse_properties(properties: str) -> dict[str, str]:
    """Return the properties of a message; a piece without name or value is none.

    Source: RocketMQ common, MessageDecoder.string2messageProperties.
    """
    found = {}
    for piece in properties.split(PROPERTY_SEPARATOR):
        name, _, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            found[name] = value
    return found


def delay_level(delay: str | None) -> int:
    """Return the delay level that a property names; 0: no delay.

    Raises:
        RequestRefused: SYSTEM_ERROR; it is no number, as in RocketMQ.
    """
    if delay is None:
        return 0
    return max(whole({"DELAY": delay}, "DELAY"), 0)


def is_positive(delay: str | None) -> bool:
    """Return whether a property names a delay level."""
    return delay is not None and delay_level(delay) > 0


def batch_messages(body: bytes) -> list[tuple[int, bytes, dict[str, str]]]:
    """Return flag, body and properties of each message of a batch.

    Raises:
        RequestRefused: MESSAGE_ILLEGAL; the bytes are no batch.

    Source: RocketMQ common, MessageDecoder.encodeMessages.
    """
    messages = []
    at, end = 0, len(body)
    while at < end:
        if end - at < BATCH_HEAD.size + BATCH_PROPERTIES.size:
            raise broken_batch(at, end)
        size, _, _, flag, body_size = BATCH_HEAD.unpack_from(body, at)
        body_at = at + BATCH_HEAD.size
        body_end = body_at + body_size
        if body_size < 0 or body_end + BATCH_PROPERTIES.size > end:
            raise broken_batch(at, end)
        (properties_size,) = BATCH_PROPERTIES.unpack_from(body, body_end)
        properties_at = body_end + BATCH_PROPERTIES.size
        following = properties_at + properties_size
        if properties_size < 0 or following > end or following - at != size:
            raise broken_batch(at, end)
        properties = parse_properties(body[properties_at:following].decode("utf-8", "replace"))
        messages.append((flag, body[body_at:body_end], properties))
        at = following
    return messages


def broken_batch(at: int, end: int) -> RequestRefused:
    """Return the refusal of a batch whose sizes contradict each other."""
    return RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is broken: position={at} body_size={end}")
