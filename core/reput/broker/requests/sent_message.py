"""What clients send: the header in both forms, the properties as text or bytes, and the messages of a batch.

Pure: nothing here stores or reads anything.

Source: RocketMQ remoting, SendMessageRequestHeader and SendMessageRequestHeaderV2; common, MessageDecoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from reput.errors import RequestRefused
from reput.remoting.custom_header import whole
from reput.remoting.remoting_command import ReceivedFields, RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.record.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

__all__ = ["SendHeader", "batch_messages", "delay_level", "parse_properties", "plain_properties"]

Int: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Long: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

# The short names of the second form, in the order of the fields of `SendHeader`.
SHORT_NAMES = "abcdefghijklm"
V1_CODES = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
BATCH_HEAD = Struct(">iiiii")
BATCH_PROPERTIES = Struct(">h")
# The answer names each message, and has to fit a frame. The Java client sends fewer, because each has a unique key.
BATCH_COUNT_MAX = 65_536
# Properties that have an effect beyond being stored, and properties that the broker sets.
SPECIAL = frozenset(
    (
        *(b"DELAY", b"TRAN_MSG", b"POP_CK", b"INNER_NUM", b"INNER_MULTI_DISPATCH", b"INNER_MULTI_QUEUE_OFFSET"),
        *(b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"__CRC32#"),
        *(b"MSG_REGION", b"TRACE_ON", b"CLUSTER"),
    )
)


class SendHeader(msgspec.Struct, rename="camel", gc=False):
    """The custom header of a send, with the names of its first form.

    Attributes:
        default_topic: the template from which a missing topic is created.
        queue_id: if negative, the broker chooses the queue.
        flag: a number for the user's own purposes.
        max_reconsume_times: in retry topics, the number of deliveries after which the message is a dead letter.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False

    @classmethod
    def of(cls, request: RemotingCommand) -> SendHeader:
        """Return the header of a request.

        Raises:
            RequestRefused: SYSTEM_ERROR; a field is missing, or is no number.
        """
        is_short = request.code not in V1_CODES
        fields = request.ext_fields
        try:
            if type(fields) is ReceivedFields and fields.found is None:
                return decode_short(fields.raw) if is_short else decode_long(fields.raw)
            return msgspec.convert({**fields}, ShortSendHeader if is_short else SendHeader, strict=False)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"a field of the header is missing or wrong: error={error}"
            ) from None


# `SendHeader` with the names of the second form. Each field is declared again, because only that renames it.
ShortSendHeader: type[SendHeader] = msgspec.defstruct(  # type: ignore[assignment]
    "ShortSendHeader",
    [(field.name, field.type, msgspec.field(default=field.default)) for field in msgspec.structs.fields(SendHeader)],
    bases=(SendHeader,),
    rename=dict(zip(SendHeader.__struct_fields__, SHORT_NAMES, strict=True)),
    gc=False,
)
decode_long = msgspec.json.Decoder(SendHeader, strict=False).decode
decode_short = msgspec.json.Decoder(ShortSendHeader, strict=False).decode


def plain_properties(data: bytes) -> dict[bytes, bytes] | None:
    """Return the properties in *data*; None: they cannot be stored unchanged.

    They cannot if RocketMQ would ignore a piece, if a name occurs twice, or if a property has an effect of its own.
    """
    pieces = data.removesuffix(b"\x02").split(b"\x02")
    try:
        found = dict([piece.split(b"\x01") for piece in pieces])
    except ValueError:
        return None
    if len(found) != len(pieces) or b"" in found or b"" in found.values() or not SPECIAL.isdisjoint(found):
        return None
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return None
    return found


def parse_properties(properties: str) -> dict[str, str]:
    """Return the properties of a message; a piece without name or value is ignored.

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
        RequestRefused: SYSTEM_ERROR; the value is not a number. RocketMQ refuses it as well.
    """
    return 0 if delay is None else max(whole({"DELAY": delay}, "DELAY"), 0)


def batch_messages(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield flag, body and properties of each message of a batch.

    Raises:
        RequestRefused: MESSAGE_ILLEGAL; the bytes are not a batch, or it has too many messages.

    Source: RocketMQ common, MessageDecoder.encodeMessages.
    """
    at, end, count = 0, len(body), 0
    while at < end:
        count += 1
        if count > BATCH_COUNT_MAX:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has too many messages: batch_count_max={BATCH_COUNT_MAX}",
                "Send fewer messages at once.",
            )
        body_at = at + BATCH_HEAD.size
        properties_at, following, size = 0, -1, 0
        if body_at <= end:
            size, _, _, flag, body_size = BATCH_HEAD.unpack_from(body, at)
            body_end = body_at + body_size
            properties_at = body_end + BATCH_PROPERTIES.size
            if body_size >= 0 and properties_at <= end:
                (properties_size,) = BATCH_PROPERTIES.unpack_from(body, body_end)
                following = properties_at + properties_size
        if not properties_at <= following <= end or following - at != size:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is broken: position={at} body_size={end}")
        yield flag, body[body_at:body_end], body[properties_at:following]
        at = following
