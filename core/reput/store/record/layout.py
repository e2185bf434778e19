"""Layout of the record: one message in the commit log, seventeen fields, big-endian.

B and S are the sizes of the born host and the store host: 8 for IPv4, 20 for IPv6, each by its own bit of ``sys_flag``.

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

The unused rest of a segment is a blank: its size, the magic code CBD43194, and bytes without a meaning.

A name that ends in ``_AT`` is the offset of a field from the record's first byte. A pair of them is indexed by the bit
of the born host, a group of four by both bits: ``sys_flag >> HOST_FLAGS_SHIFT & HOST_FLAGS_MASK``.

Source: RocketMQ store, CommitLog.calMsgLength and MessageExtEncoder.encode.
"""

from __future__ import annotations

from struct import Struct

__all__ = [
    "BLANK_MAGIC_CODE",
    "BLANK_SIZE_MIN",
    "BODY_AT",
    "BODY_CRC_AND_SYS_FLAG",
    "BODY_SIZE",
    "BODY_SIZE_FORMAT",
    "BORN_HOST_AT",
    "BORN_HOST_V6_FLAG",
    "FIXED_FIELDS",
    "HEADERS",
    "HOST_FLAGS_MASK",
    "HOST_FLAGS_SHIFT",
    "HOST_PORT_AT",
    "IDENTITY",
    "INNER_BATCH_FLAG",
    "IPV4_HOST_SIZE",
    "IPV6_EXTRA_SIZE",
    "IPV6_HOST_SIZE",
    "MAGIC_AND_SYS_FLAG",
    "MAGIC_CODE_AT",
    "MESSAGE_MAGIC_CODE",
    "MESSAGE_MAGIC_CODES",
    "MESSAGE_MAGIC_CODE_V2",
    "NEED_UNWRAP_FLAG",
    "ORIGIN_FORMAT",
    "PLACE",
    "PLACE_FORMAT",
    "PORT",
    "PREPARED_TRANSACTION_OFFSET_BEFORE_BODY",
    "PROPERTIES_SIZE",
    "QUEUE_PLACE",
    "QUEUE_PLACE_V4",
    "RECONSUME_TIMES_BEFORE_BODY",
    "RECORD_SIZE_MIN",
    "SIZE",
    "SIZE_AND_MAGIC",
    "SIZE_MAGIC_AND_OFFSET",
    "STORE_HOST_V6_FLAG",
    "STORE_TIMESTAMP",
    "STORE_TIMESTAMP_AT",
    "STORE_TIMESTAMP_END_MAX",
    "SYS_FLAG",
    "SYS_FLAG_AT",
    "TOPIC_SIZE_MAX_V1",
    "TOPIC_SIZE_MAX_V2",
    "TOPIC_SIZE_V1",
    "TOPIC_SIZE_V2",
    "TRANSACTION_COMMIT_TYPE",
    "TRANSACTION_PREPARED_TYPE",
    "TRANSACTION_ROLLBACK_TYPE",
]

MESSAGE_MAGIC_CODE = 0xDAA320A7
MESSAGE_MAGIC_CODE_V2 = 0xDAA320AB
MESSAGE_MAGIC_CODES = (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
BLANK_MAGIC_CODE = 0xCBD43194

# The bits of the sys flag.
TRANSACTION_PREPARED_TYPE = 0x4
TRANSACTION_COMMIT_TYPE = 0x8
TRANSACTION_ROLLBACK_TYPE = 0xC
BORN_HOST_V6_FLAG = 0x10
STORE_HOST_V6_FLAG = 0x20
NEED_UNWRAP_FLAG = 0x40
INNER_BATCH_FLAG = 0x80
HOST_FLAGS_SHIFT = 4
HOST_FLAGS_MASK = 3
assert BORN_HOST_V6_FLAG == 1 << HOST_FLAGS_SHIFT
assert STORE_HOST_V6_FLAG == 2 << HOST_FLAGS_SHIFT

IPV4_HOST_SIZE = 8
IPV6_HOST_SIZE = 20
IPV6_EXTRA_SIZE = IPV6_HOST_SIZE - IPV4_HOST_SIZE
# The port is the last word of a host.
PORT = Struct(">i")
HOST_PORT_AT = IPV4_HOST_SIZE - PORT.size

# The first nine fields, which have the same place in every record: name, and type as numpy spells it.
FIXED_FIELDS: tuple[tuple[str, str], ...] = (
    ("record_size", ">i4"),
    ("magic_code", ">u4"),
    ("body_crc", ">u4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("commit_log_offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born_timestamp", ">i8"),
)
MAGIC_CODE_AT = 4
SYS_FLAG_AT = 36
BORN_HOST_AT = 48
STORE_TIMESTAMP_AT = (56, 68)
BODY_AT = (88, 100, 100, 112)

# As `struct` spells them: fields 1 to 7; then 8 to 14, which say where and when the message came from, to be filled in
# with the sizes of both hosts; then the body size.
PLACE_FORMAT = "iIIiiqq"
ORIGIN_FORMAT = "iq{}sq{}siq"
BODY_SIZE_FORMAT = "i"
# All of them, by both bits of the hosts.
HEADERS = tuple(
    Struct(f">{PLACE_FORMAT}{ORIGIN_FORMAT.format(born_host_size, store_host_size)}{BODY_SIZE_FORMAT}")
    for store_host_size in (IPV4_HOST_SIZE, IPV6_HOST_SIZE)
    for born_host_size in (IPV4_HOST_SIZE, IPV6_HOST_SIZE)
)
assert tuple(header.size for header in HEADERS) == BODY_AT

# How far before the body these fields begin.
RECONSUME_TIMES_BEFORE_BODY = 16
PREPARED_TRANSACTION_OFFSET_BEFORE_BODY = 12

SIZE = Struct(">i")
SIZE_AND_MAGIC = Struct(">iI")
SYS_FLAG = Struct(">i")
STORE_TIMESTAMP = Struct(">q")
BODY_SIZE = Struct(f">{BODY_SIZE_FORMAT}")
TOPIC_SIZE_V1 = Struct(">b")
TOPIC_SIZE_V2 = Struct(">h")
PROPERTIES_SIZE = Struct(">h")

# Fields of the header that are read together, from the record's first byte on:
# size, magic code, queue offset, commit-log offset, sys flag
PLACE = Struct(">iI12xqqi")
# size, magic code, queue id, queue offset, commit-log offset, sys flag
QUEUE_PLACE = Struct(">iI4xi4xqqi")
# the same, and the body size, of a record whose hosts are both IPv4
QUEUE_PLACE_V4 = Struct(">iI4xi4xqqi44xi")
# size, magic code, commit-log offset
SIZE_MAGIC_AND_OFFSET = Struct(">iI20xq")
# size, magic code, body CRC as a signed number, commit-log offset, sys flag
IDENTITY = Struct(">iIi16xqi")
# magic code, sys flag
MAGIC_AND_SYS_FLAG = Struct(">4xI28xi")
# body CRC, sys flag
BODY_CRC_AND_SYS_FLAG = Struct(">8xI24xi")

SYS_FLAG_END = SYS_FLAG_AT + SYS_FLAG.size
assert PLACE.size == SYS_FLAG_END
assert QUEUE_PLACE.size == SYS_FLAG_END
assert QUEUE_PLACE_V4.size == BODY_AT[0]
assert SIZE_MAGIC_AND_OFFSET.size == SYS_FLAG_AT
assert IDENTITY.size == SYS_FLAG_END
assert MAGIC_AND_SYS_FLAG.size == SYS_FLAG_END
assert BODY_CRC_AND_SYS_FLAG.size == SYS_FLAG_END

# The most bytes of a record up to and with its store timestamp.
STORE_TIMESTAMP_END_MAX = STORE_TIMESTAMP_AT[1] + STORE_TIMESTAMP.size
assert STORE_TIMESTAMP_AT[0] == BORN_HOST_AT + IPV4_HOST_SIZE
assert STORE_TIMESTAMP_AT[1] == BORN_HOST_AT + IPV6_HOST_SIZE

TOPIC_SIZE_MAX_V1 = 127
TOPIC_SIZE_MAX_V2 = 32767
# A record leaves at least this much of its segment free, for the head of a blank.
BLANK_SIZE_MIN = SIZE_AND_MAGIC.size
# IPv4 hosts, no body, no properties, and an empty topic.
RECORD_SIZE_MIN = BODY_AT[0] + TOPIC_SIZE_V1.size + PROPERTIES_SIZE.size
assert RECORD_SIZE_MIN == 91
