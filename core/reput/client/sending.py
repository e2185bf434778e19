"""Sending: one message on its way, and the requests and responses of sends.

    SEND_MESSAGE_V2          one message: its properties are in the header
    SEND_BATCH_MESSAGE       several of one topic and queue; the body of the request:

     0  size (4)      of this message, this word included
     4  magic, CRC (4 + 4)   0
    12  flag (4)
    16  body size (4), body
        properties size (2), properties

Source: RocketMQ client, MQClientAPIImpl.sendMessage and processSendResponse; RocketMQ common, MessageDecoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Protocol

import msgspec

from reput.client.routes import DEFAULT_TOPIC, refused
from reput.consume.delivery.uniq_key import new_uniq_key
from reput.errors import BrokerError, MessageIllegal, ReputError
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.record.message import (
    Message,
    PutMessageResult,
    PutMessageStatus,
    check_properties,
    check_topic,
    message_properties,
)
from reput.store.record.properties import PROPERTIES_SIZE_MAX

__all__ = ["UNKNOWN", "Outcome", "Sending", "prepare", "refusal_of", "results_of", "send_request", "size_of"]

BODY_SIZE_MAX = 4 << 20
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
DELAY_LEVEL_MAX = 18
# The value of numbers that a broker does not report.
UNKNOWN = -1
RETRY_PREFIX = "%RETRY%"
DEFAULT_TOPIC_QUEUE_NUMS = "4"
PUT_OK, FLUSH_DISK_TIMEOUT = PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT
# The message is stored, but the broker's disk or its slaves were slow.
STATUSES: Mapping[int, PutMessageStatus] = {
    ResponseCode.SUCCESS: PUT_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: PutMessageStatus.SLAVE_NOT_AVAILABLE,
}
ID_DIGITS = 16

CHECKED_TOPICS_MAX = 10_000
checked_topics: set[str] = set()

pack_head = Struct(">iiiii").pack
pack_properties_size = Struct(">h").pack
HEAD_SIZE = 20
BATCHED_OVERHEAD = HEAD_SIZE + 2


class Outcome(Protocol):
    """Receives the result of a put, for a task or thread that waits."""

    def done(self) -> bool:
        """Whether the wait is over."""

    def set_result(self, result: PutMessageResult) -> None:
        """The message is stored."""

    def set_exception(self, error: BaseException) -> None:
        """The message is not stored."""


class Sending(msgspec.Struct, gc=False):
    """One checked message, in the form in which requests carry it.

    Attributes:
        properties: in the form of records, the unique key included.
        is_alone: the message may not be part of a batch.
        reconsume_times: number of failed deliveries, in a retry topic.
        max_reconsume_times: the number after which the broker makes a dead letter of it; None: as the group says.
    """

    outcome: Outcome
    group: str
    topic: str
    body: bytes
    properties: bytes
    flag: int
    queue_id: int | None
    sharding_key: str | None
    uniq_key: str
    is_alone: bool
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


def prepare(message: Message, group: str, outcome: Outcome, born_host: bytes) -> Sending:
    """Check a message, and return the fields to send.

    Raises:
        MessageIllegal: the message breaks a limit.
    """
    topic, body, flag, queue_id = message.topic, message.body, message.flag, message.queue_id
    if topic not in checked_topics:
        check_topic(topic)
        if len(checked_topics) < CHECKED_TOPICS_MAX:
            checked_topics.add(topic)
    if type(body) is not bytes:
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise MessageIllegal(f"body is not bytes: type={type(body).__name__}")
        body = bytes(body)
    if not body:
        # A broker refuses it alone, and stores it in a batch.
        raise MessageIllegal(f"the message has no body: topic={topic}")
    if len(body) > BODY_SIZE_MAX:
        raise MessageIllegal(f"body is too long: body_size={len(body)} max_message_size={BODY_SIZE_MAX}")
    if type(flag) is not int or not INT_MIN <= flag <= INT_MAX:
        raise MessageIllegal(f"flag is not a number of 32 bits: flag={flag!r}")
    if queue_id is not None:
        check_queue(message, queue_id)
    given = message.properties
    if given is not None:
        check_properties(given)
    properties, _, _, uniq_key = message_properties(message)
    is_alone = topic.startswith(RETRY_PREFIX)
    if uniq_key is None:
        uniq_key = new_uniq_key(born_host)
        properties += b"UNIQ_KEY\x01" + uniq_key.encode() + b"\x02"
    if message.delay_level:
        properties += delay_property(message)
        is_alone = True
    elif given is not None and ("DELAY" in given or "TRAN_MSG" in given or "WAIT" in given):
        is_alone = True
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise MessageIllegal(
            f"properties are too long: properties_size={len(properties)} properties_size_max={PROPERTIES_SIZE_MAX}"
        )
    return Sending(outcome, group, topic, body, properties, flag, queue_id, message.sharding_key, uniq_key, is_alone)


def check_queue(message: Message, queue_id: object) -> None:
    """Refuse a queue id that is not valid, or that is given together with a sharding key."""
    if type(queue_id) is not int or not 0 <= queue_id <= INT_MAX:
        raise MessageIllegal(f"queue_id is not a number from 0 to {INT_MAX}: queue_id={queue_id!r}")
    if message.sharding_key is not None:
        raise MessageIllegal(
            f"a message cannot have both a queue id and a sharding key: queue_id={queue_id} "
            f"sharding_key={message.sharding_key!r}",
            "Omit one of them.",
        )


def delay_property(message: Message) -> bytes:
    """Return the property that delays a message."""
    level = message.delay_level
    if type(level) is not int or level < 0:
        raise MessageIllegal(f"a delay level must be a nonnegative number: delay_level={level!r}")
    if message.properties and "DELAY" in message.properties:
        raise MessageIllegal(
            f"a message is delayed twice: delay_level={level} DELAY={message.properties['DELAY']}",
            "Omit one of them.",
        )
    return b"DELAY\x01%d\x02" % level


def size_of(sending: Sending) -> int:
    """Return the size of a message in a batch."""
    return BATCHED_OVERHEAD + len(sending.body) + len(sending.properties)


def send_request(queue: MessageQueue, sendings: Sequence[Sending], born_timestamp: int) -> RemotingCommand:
    """Return the request that sends one message, or several of the same topic, to a queue."""
    first = sendings[0]
    fields = {
        "a": first.group,
        "b": first.topic,
        "c": DEFAULT_TOPIC,
        "d": DEFAULT_TOPIC_QUEUE_NUMS,
        "e": str(queue.queue_id),
        "f": "0",
        "g": str(born_timestamp),
        "h": str(first.flag),
        "j": str(first.reconsume_times),
        "k": "false",
        "m": "false",
        "n": queue.broker_name,
    }
    if len(sendings) == 1:
        fields["i"] = first.properties.decode()
        if first.max_reconsume_times is not None:
            fields["l"] = str(first.max_reconsume_times)
        return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, first.body)
    fields["h"] = "0"
    fields["i"] = ""
    fields["m"] = "true"
    pieces: list[bytes] = []
    for sending in sendings:
        body, properties = sending.body, sending.properties
        size = BATCHED_OVERHEAD + len(body) + len(properties)
        pieces += (
            pack_head(size, 0, 0, sending.flag, len(body)),
            body,
            pack_properties_size(len(properties)),
            properties,
        )
    return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields, pieces)


def results_of(response: RemotingCommand, count: int) -> list[PutMessageResult]:
    """Return where the broker has stored *count* messages, as its response says.

    Raises:
        BrokerError: the response does not say so.
    """
    fields = response.ext_fields
    try:
        ids = fields["msgId"].split(",")
        queue_id, queue_offset = int(fields["queueId"]), int(fields["queueOffset"])
        status = STATUSES[response.code]
        sizes = fields.get("recordSizes")
        record_sizes = [UNKNOWN] * count if sizes is None else [int(size) for size in sizes.split(",")]
        store_timestamp = int(fields.get("storeTimestamp", UNKNOWN))
        if len(ids) != count or len(record_sizes) != count:
            raise ValueError(f"ids={len(ids)} record_sizes={len(record_sizes)}")
        results = []
        for message_id, record_size in zip(ids, record_sizes, strict=True):
            offset = int(message_id[-ID_DIGITS:], 16)
            results.append(
                PutMessageResult(
                    status,
                    offset,
                    UNKNOWN if record_size == UNKNOWN else offset + record_size,
                    record_size,
                    queue_id,
                    queue_offset,
                    store_timestamp,
                    bytes.fromhex(message_id[:-ID_DIGITS]),
                )
            )
            queue_offset += 1
    except (KeyError, ValueError) as error:
        raise BrokerError(
            f"the broker's answer does not say where messages are: count={count} error={error} fields={fields}"
        ) from None
    return results


def refusal_of(response: RemotingCommand) -> ReputError:
    """Return the error of a put that a broker refuses with *response*."""
    error = refused(response)
    return MessageIllegal(str(error)) if response.code == ResponseCode.MESSAGE_ILLEGAL else error
