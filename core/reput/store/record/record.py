"""The record: one message in the commit log, seventeen fields, big-endian.

B and S are the sizes of the born and store host: 8 for IPv4, 20 for IPv6, each by its own bit of ``sys_flag``.

    at             size  field
     0                4  total size                    bytes of the whole record
     4                4  magic code                    DAA320A7 (V1) or DAA320AB (V2)
     8                4  body CRC                      CRC-32 of the body AND 7FFFFFFF, 0 of an empty body
    12                4  queue id
    16                4  flag                          the user's
    20                8  queue offset                  units of the consume queue
    28                8  commit-log offset             of this very record
    36                4  sys flag
    40                8  born timestamp                ms
    48                B  born host                     address, then port as int
    48+B              8  store timestamp               ms
    56+B              S  store host
    56+B+S            4  reconsume times
    60+B+S            8  prepared transaction offset
    68+B+S          4+L  body size, body
    72+B+S+L        T+t  topic size (one byte; V2: two), topic
    ...             2+p  properties size, properties

Source: RocketMQ store, CommitLog.calMsgLength and MessageExtEncoder.encode.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

from isal.isal_zlib import crc32

from reput.errors import DamagedStore
from reput.store.record.properties import decode_properties
from reput_hooks import Record
from reput_hooks.record import UndecodedRecord

__all__ = [
    "BLANK_MAGIC_CODE",
    "BLANK_SIZE_MIN",
    "BORN_HOST_V6_FLAG",
    "CRC_NAME",
    "CRC_PROPERTY_NAME",
    "CRC_PROPERTY_SIZE",
    "INNER_BATCH_FLAG",
    "INNER_NUM",
    "MESSAGE_MAGIC_CODE",
    "MESSAGE_MAGIC_CODE_V2",
    "NEED_UNWRAP_FLAG",
    "RECORD_SIZE_MIN",
    "STORE_HOST_V6_FLAG",
    "TOPIC_SIZE_MAX_V1",
    "TRANSACTION_COMMIT_TYPE",
    "TRANSACTION_PREPARED_TYPE",
    "TRANSACTION_ROLLBACK_TYPE",
    "body_crc",
    "checked_record",
    "crc_property",
    "decode_message_id",
    "decode_record",
    "encode_address",
    "encode_host",
    "encode_message_id",
    "encode_record",
    "stored_at",
]

MESSAGE_MAGIC_CODE = 0xDAA320A7
MESSAGE_MAGIC_CODE_V2 = 0xDAA320AB
BLANK_MAGIC_CODE = 0xCBD43194
# A record must leave this much of its segment: the size and magic of a blank.
BLANK_SIZE_MIN = 8
RECORD_SIZE_MIN = 91

TRANSACTION_PREPARED_TYPE = 0x4
TRANSACTION_COMMIT_TYPE = 0x8
TRANSACTION_ROLLBACK_TYPE = 0xC
BORN_HOST_V6_FLAG = 0x10
STORE_HOST_V6_FLAG = 0x20
NEED_UNWRAP_FLAG = 0x40
INNER_BATCH_FLAG = 0x80
# The property that says how many messages are under one record, in the batch queues of RocketMQ 5.
INNER_NUM = "INNER_NUM"

CRC_NAME = "__CRC32#"
CRC_PROPERTY_NAME = CRC_NAME.encode() + b"\x01"
CRC_PROPERTY_SIZE = 20
assert len(CRC_PROPERTY_NAME) + 10 + 1 == CRC_PROPERTY_SIZE

# A body that ends before is copied as soon as there is a record: that costs a fifth of what a look for it later does.
EARLY_BODY_END_MAX = 8192

IPV4_HOST_SIZE = 8
IPV6_HOST_SIZE = 20
TOPIC_SIZE_MAX_V1 = 127
TOPIC_SIZE_MAX = {MESSAGE_MAGIC_CODE: TOPIC_SIZE_MAX_V1, MESSAGE_MAGIC_CODE_V2: 32767}

FIXED = Struct(">iIIiiqqiq")
AFTER_BORN_HOST = Struct(">q")
AFTER_STORE_HOST = Struct(">iqi")
# Fields 1 to 15 up to the body, by the two bits that say which host is IPv6; the born host's is the lower one.
LAYOUTS = tuple(Struct(f">iIIiiqqiq{born}sq{store}siqi") for store in (8, 20) for born in (8, 20))
LAYOUT_SIZES = tuple(layout.size for layout in LAYOUTS)
# Size, magic code, queue offset, commit-log offset, sys flag.
PLACE = Struct(">iI12xqqi")
BODY_SIZE = Struct(">i")
SYS_FLAG = Struct(">i")
SYS_FLAG_AT = 36
# Where the store time stands behind a born host of IPv4, and behind one of IPv6.
STORE_TIMESTAMP, STORE_TIMESTAMP_AT = Struct(">q"), (56, 68)
HOST_FLAGS_SHIFT = 4
assert BORN_HOST_V6_FLAG == 1 << HOST_FLAGS_SHIFT
assert STORE_HOST_V6_FLAG == 2 << HOST_FLAGS_SHIFT
TOPIC_SIZE_V1 = Struct(">b")
TOPIC_SIZE_V2 = Struct(">h")
PROPERTIES_SIZE = Struct(">h")
PORT = Struct(">i")
OFFSET = Struct(">q")
OFFSET_DIGITS = 2 * OFFSET.size
MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
assert FIXED.size == 48


def stored_at(data: bytes) -> int:
    """Return the store time, in ms, of the whole record *data*."""
    (sys_flag,) = SYS_FLAG.unpack_from(data, SYS_FLAG_AT)
    (timestamp,) = STORE_TIMESTAMP.unpack_from(data, STORE_TIMESTAMP_AT[bool(sys_flag & BORN_HOST_V6_FLAG)])
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
        ValueError: it is no numeric address with a port.
    """
    host, _, port = address.rpartition(":")
    return encode_host(host.strip("[]"), int(port))


@lru_cache(4096)
def decode_host(data: bytes) -> str:
    """Return ``127.0.0.1:5000`` or ``[::1]:5000``."""
    address = ipaddress.ip_address(data[:-4])
    (port,) = PORT.unpack_from(data, len(data) - 4)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def encode_message_id(store_host: bytes, commit_log_offset: int) -> str:
    """Return the store's own id of a record, in 32 (IPv4) or 56 (IPv6) upper-case hex digits."""
    return (store_host + OFFSET.pack(commit_log_offset)).hex().upper()


def decode_message_id(message_id: str) -> int | None:
    """Return the commit-log offset that such an id names, in either case of letters; None if it is none.

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
    size = 74 + len(born_host) + len(store_host) + len(body) + len(topic_size) + len(topic) + len(properties)
    return b"".join(
        (
            FIXED.pack(
                size,
                MESSAGE_MAGIC_CODE_V2 if long_topic else MESSAGE_MAGIC_CODE,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                commit_log_offset,
                sys_flag,
                born_timestamp,
            ),
            born_host,
            AFTER_BORN_HOST.pack(store_timestamp),
            store_host,
            AFTER_STORE_HOST.pack(reconsume_times, prepared_transaction_offset, len(body)),
            body,
            topic_size,
            topic,
            PROPERTIES_SIZE.pack(len(properties)),
            properties,
        )
    )


def decode_record(data: bytes | bytearray | memoryview, at: int = 0) -> Record:
    """Return the record whose first byte is ``data[at]``. Its body is not checked against its CRC.

    Sizes are checked now, and where the record belongs is decoded; all else when it is asked for, which cannot fail.

    Raises:
        DamagedStore: the bytes there are no whole record.
    """
    try:
        size, magic_code, queue_offset, commit_log_offset, sys_flag = PLACE.unpack_from(data, at)
        body_at = at + LAYOUT_SIZES[sys_flag >> HOST_FLAGS_SHIFT & 3]
        (body_size,) = BODY_SIZE.unpack_from(data, body_at - 4)
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
            f"sizes of the record disagree: record_size={size} body_size={body_size} topic_size={topic_size} "
            f"properties_size={properties_size} at={at}"
        )
    # A copy unless these bytes are nothing else: a record that is kept keeps nothing else, nor a mapping.
    own = data if type(data) is bytes and len(data) == size else bytes(data[at:end])
    return checked_record(own, (queue_offset, (commit_log_offset, size, 0)), body_at - at, topic_field - at)


def checked_record(data: bytes, place: tuple[int, tuple[int, int, int]], body_at: int, body_end: int) -> Record:
    """Return the record of *data*, whose sizes agree.

    Args:
        place: its queue offset and the unit of its queue, which are what the record itself says.
        body_at, body_end: where its body begins and ends.
    """
    record: Any = UndecodedRecord()
    record.queue_offset, (record.commit_log_offset, record.record_size, _) = place
    record._data = data
    record._decode = decode_fields
    if body_end <= EARLY_BODY_END_MAX:
        record.body = data[body_at:body_end]
    record.__class__ = Record
    decoded: Record = record
    return decoded


def decode_fields(data: bytes, name: str) -> dict[str, Any]:
    """Return values of fields of a record whose sizes were checked, by name; that of *name* is one of them."""
    (sys_flag,) = SYS_FLAG.unpack_from(data, SYS_FLAG_AT)
    layout = LAYOUTS[sys_flag >> HOST_FLAGS_SHIFT & 3]
    body_at = layout.size
    (body_size,) = BODY_SIZE.unpack_from(data, body_at - 4)
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
    ) = layout.unpack_from(data)
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
