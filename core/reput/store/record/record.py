"""Encode and decode whole records; `layout` draws one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, TypeAlias

from isal.isal_zlib import crc32

from reput.errors import DamagedStore
from reput.store.record.body_compression import COMPRESSED_FLAG
from reput.store.record.layout import (
    BODY_AT,
    BODY_SIZE,
    BORN_HOST_V6_FLAG,
    HEADERS,
    HOST_FLAGS_MASK,
    HOST_FLAGS_SHIFT,
    IPV6_HOST_SIZE,
    MAGIC_AND_SYS_FLAG,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    MESSAGE_MAGIC_CODES,
    PLACE,
    PORT,
    PROPERTIES_SIZE,
    STORE_HOST_V6_FLAG,
    STORE_TIMESTAMP,
    STORE_TIMESTAMP_AT,
    SYS_FLAG,
    SYS_FLAG_AT,
    TOPIC_SIZE_MAX_V1,
    TOPIC_SIZE_MAX_V2,
    TOPIC_SIZE_V1,
    TOPIC_SIZE_V2,
)
from reput.store.record.properties import decode_properties
from reput_hooks import Record
from reput_hooks.record import UndecodedRecord

__all__ = [
    "CRC_NAME",
    "CRC_PROPERTY_NAME",
    "CRC_PROPERTY_SIZE",
    "EARLY_BODY_END_MAX",
    "INNER_NUM",
    "OFFSET_DIGITS",
    "body_crc",
    "checked_record",
    "crc_property",
    "decode_fields",
    "decode_host",
    "decode_message_id",
    "decode_record",
    "encode_address",
    "encode_host",
    "encode_message_id",
    "encode_record",
    "store_timestamp_of",
]

# The property that says how many messages are under one record, in the batch queues of RocketMQ 5.
INNER_NUM = "INNER_NUM"

CRC_NAME = "__CRC32#"
CRC_PROPERTY_NAME = CRC_NAME.encode() + b"\x01"
CRC_PROPERTY_SIZE = 20
assert len(CRC_PROPERTY_NAME) + 10 + 1 == CRC_PROPERTY_SIZE

# A body that ends before is copied when the record is made: that costs a fifth of decoding it later.
EARLY_BODY_END_MAX = 8192

TOPIC_SIZE_MAX = {MESSAGE_MAGIC_CODE: TOPIC_SIZE_MAX_V1, MESSAGE_MAGIC_CODE_V2: TOPIC_SIZE_MAX_V2}

# Returns values of fields of a record by name, among them that of the name that is given.
DecodeFields: TypeAlias = Callable[[bytes, str], dict[str, Any]]

OFFSET = Struct(">q")
OFFSET_DIGITS = 2 * OFFSET.size
MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


def store_timestamp_of(head: bytes) -> int | None:
    """Return the store time, in ms, of the record that begins with *head*; None if no record does, or it ends before.

    `STORE_TIMESTAMP_END_MAX` bytes are always enough.
    """
    try:
        magic_code, sys_flag = MAGIC_AND_SYS_FLAG.unpack_from(head)
        if magic_code not in MESSAGE_MAGIC_CODES:
            return None
        (timestamp,) = STORE_TIMESTAMP.unpack_from(head, STORE_TIMESTAMP_AT[bool(sys_flag & BORN_HOST_V6_FLAG)])
    except StructError:
        return None
    return int(timestamp)


def body_crc(body: bytes) -> int:
    """Return the CRC-32 of *body* without its highest bit."""
    return crc32(body) & 0x7FFFFFFF


@lru_cache(1024)
def encode_host(host: str, port: int) -> bytes:
    """Return the stored form of an address: 4 or 16 bytes, then the port as an int."""
    return ipaddress.ip_address(host).packed + PORT.pack(port)


@lru_cache(4096)
def encode_address(address: str) -> bytes:
    """Return the stored form of ``127.0.0.1:5000`` or ``[::1]:5000``, as a `Record` has it.

    Raises:
        ValueError: *address* is not a numeric address with a port.
    """
    host, _, port = address.rpartition(":")
    return encode_host(host.strip("[]"), int(port))


@lru_cache(4096)
def decode_host(data: bytes) -> str:
    """Return ``127.0.0.1:5000`` or ``[::1]:5000``."""
    address = ipaddress.ip_address(data[:-4])
    (port,) = PORT.unpack_from(data, len(data) - 4)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


@lru_cache(256)
def host_digits(store_host: bytes) -> str:
    """Return the hex digits of a stored address."""
    return store_host.hex().upper()


def encode_message_id(store_host: bytes, commit_log_offset: int) -> str:
    """Return the store's own id of a record, in 32 (IPv4) or 56 (IPv6) upper-case hex digits."""
    return f"{host_digits(store_host)}{commit_log_offset:0{OFFSET_DIGITS}X}"


def decode_message_id(message_id: str) -> int | None:
    """Return the commit-log offset that a message id names, in either case of letters; None: it is not an id.

    Source: RocketMQ common, MessageDecoder.decodeMessageId.
    """
    return int(message_id[-OFFSET_DIGITS:], 16) if MESSAGE_ID.fullmatch(message_id) else None


def crc_property(crc: int) -> bytes:
    """Return the property that carries the CRC of a whole record: ten digits, the least significant first.

    Source: RocketMQ store, MessageExtEncoder and UtilAll.crc32Digits (5.2 and later, ``enabledAppendPropCRC``).
    """
    return CRC_PROPERTY_NAME + f"{crc:010d}"[::-1].encode() + b"\x02"


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    body: bytes,
    properties: bytes,
    flag: int,
    queue_offset: int,
    commit_log_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return the record's bytes. Hosts are in their stored form, their bits of *sys_flag* are set here.

    Topics of more than 127 bytes get magic V2.
    """
    sys_flag &= ~(BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG)
    if len(born_host) == IPV6_HOST_SIZE:
        sys_flag |= BORN_HOST_V6_FLAG
    if len(store_host) == IPV6_HOST_SIZE:
        sys_flag |= STORE_HOST_V6_FLAG
    long_topic = len(topic) > TOPIC_SIZE_MAX_V1
    topic_size = (TOPIC_SIZE_V2 if long_topic else TOPIC_SIZE_V1).pack(len(topic))
    properties_size = PROPERTIES_SIZE.pack(len(properties))
    after_body = b"".join((topic_size, topic, properties_size, properties))
    header = HEADERS[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
    return b"".join(
        (
            header.pack(
                header.size + len(body) + len(after_body),
                MESSAGE_MAGIC_CODE_V2 if long_topic else MESSAGE_MAGIC_CODE,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                commit_log_offset,
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                len(body),
            ),
            body,
            after_body,
        )
    )


def decode_record(data: bytes | bytearray | memoryview, at: int = 0) -> Record:
    """Return the record whose first byte is ``data[at]``. Its body is not checked against its CRC.

    Sizes are checked and the record's place is decoded now. Other fields are decoded on access, which cannot fail.

    Raises:
        DamagedStore: the bytes there are not a whole record.
    """
    try:
        size, magic_code, queue_offset, commit_log_offset, sys_flag = PLACE.unpack_from(data, at)
        body_at = at + BODY_AT[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
        (body_size,) = BODY_SIZE.unpack_from(data, body_at - BODY_SIZE.size)
        topic_field = body_at + body_size
        if magic_code == MESSAGE_MAGIC_CODE:
            topic_size = data[topic_field] if topic_field >= body_at else -1
            properties_field = topic_field + 1 + topic_size
        elif magic_code == MESSAGE_MAGIC_CODE_V2:
            (topic_size,) = TOPIC_SIZE_V2.unpack_from(data, topic_field)
            properties_field = topic_field + 2 + topic_size
        else:
            raise DamagedStore(f"no record here: magic_code={magic_code:08X} at={at}")
        (properties_size,) = PROPERTIES_SIZE.unpack_from(data, properties_field)
    except (StructError, IndexError):
        raise DamagedStore(f"record reaches past the end of its bytes: at={at} size={len(data)}") from None
    end = properties_field + 2 + (properties_size if properties_size > 0 else 0)
    if body_size < 0 or not 0 <= topic_size <= TOPIC_SIZE_MAX[magic_code] or end != at + size or end > len(data):
        raise DamagedStore(
            f"the record's sizes contradict each other: record_size={size} body_size={body_size} "
            f"topic_size={topic_size} "
            f"properties_size={properties_size} at={at}"
        )
    # A copy, unless the bytes hold only this record: a record must not keep other bytes, or a mapping, alive.
    own = data if type(data) is bytes and len(data) == size else bytes(data[at:end])
    return checked_record(own, (queue_offset, (commit_log_offset, size, 0)), body_at - at, topic_field - at)


def checked_record(
    data: bytes,
    place: tuple[int, tuple[int, int, int]],
    body_at: int,
    body_end: int,
    decode: DecodeFields | None = None,
) -> Record:
    """Return the record of *data*, whose sizes agree.

    Args:
        place: its queue offset and its unit, which agree with the record itself.
        body_at, body_end: where its body begins and ends.
        decode: decodes the other fields; None: `decode_fields`, and the body is that of the log.
    """
    record: Any = UndecodedRecord()
    record.queue_offset, (record.commit_log_offset, record.record_size, _) = place
    record._data = data
    record._decode = decode or decode_fields
    if body_end <= EARLY_BODY_END_MAX and not (decode and data[SYS_FLAG_AT + 3] & COMPRESSED_FLAG):
        record.body = data[body_at:body_end]
    record.__class__ = Record
    decoded: Record = record
    return decoded


def decode_fields(data: bytes, name: str) -> dict[str, Any]:
    """Return values of fields of a record with checked sizes, by name; the field *name* is among them."""
    (sys_flag,) = SYS_FLAG.unpack_from(data, SYS_FLAG_AT)
    header = HEADERS[sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK]
    body_at = header.size
    (body_size,) = BODY_SIZE.unpack_from(data, body_at - BODY_SIZE.size)
    topic_field = body_at + body_size
    if name == "body":
        return {"body": data[body_at:topic_field]}
    if name == "topic" or name == "properties":
        long_topic = data[7] == MESSAGE_MAGIC_CODE_V2 & 0xFF
        topic_at = topic_field + (2 if long_topic else 1)
        topic_end = topic_at + int.from_bytes(data[topic_field:topic_at], "big")
        if name == "topic":
            return {"topic": str(data[topic_at:topic_end], "utf-8", "replace")}
        return {"properties": decode_properties(data[topic_end + 2 :])}
    (
        _,
        magic_code,
        crc,
        queue_id,
        flag,
        _,
        commit_log_offset,
        _,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        _,
    ) = header.unpack_from(data)
    return {
        "queue_id": queue_id,
        "flag": flag,
        "sys_flag": sys_flag,
        "magic_code": magic_code,
        "born_timestamp": born_timestamp,
        "born_host": decode_host(born_host),
        "store_timestamp": store_timestamp,
        "store_host": decode_host(store_host),
        "reconsume_times": reconsume_times,
        "prepared_transaction_offset": prepared_transaction_offset,
        "body_crc": crc,
        "message_id": encode_message_id(store_host, commit_log_offset),
    }
