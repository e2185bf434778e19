"""Records as programs get them: with the body that the producer gave, although a client has compressed it.

    in the log                     a program's Record
    sys_flag: compressed     ──▶   sys_flag without these bits, body unpacked
             └─ does not unpack ──▶  both as they are in the log

This holds for whatever consumes and reads messages: consumers, `get`, `query`, `records`, the command line and the
console, of an open store and through brokers. It does not hold for dispatchers, hooks, `reput dump` and `reput check`,
which get records as the log has them. Where a message is stored once more - sent back, delivered after its delay - its
bytes are copied as they are.

A body is unpacked when a program asks for it, not before: a few compressed bytes may stand for many.

Source: RocketMQ common, MessageDecoder.decode, which unpacks every body that a client reads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from reput.kernel import RecordMaker, kernel
from reput.store.record.body_compression import COMPRESSED_FLAG, COMPRESSION_MASK, unpack_body
from reput.store.record.layout import SYS_FLAG_AT
from reput.store.record.record import EARLY_BODY_END_MAX, decode_fields, decode_record
from reput_hooks import Record
from reput_hooks.record import UndecodedRecord

__all__ = ["as_sent", "decode_sent_fields", "record_maker", "sent_record", "set_first_topic", "stored_body"]

# The byte with `COMPRESSED_FLAG`.
FLAG_BYTE_AT = SYS_FLAG_AT + 3


def sent_record(data: bytes | bytearray | memoryview, at: int = 0) -> Record:
    """Return the record whose first byte is ``data[at]``, for a program.

    Raises:
        DamagedStore: the bytes there are not a whole record.
    """
    return as_sent(decode_record(data, at))


def as_sent(record: Record) -> Record:
    """Return a record that was decoded as the log has it, for a program."""
    data: bytes = record._data
    if not data[FLAG_BYTE_AT] & COMPRESSED_FLAG:
        return record
    sent: Any = UndecodedRecord()
    sent.queue_offset, sent.commit_log_offset = record.queue_offset, record.commit_log_offset
    sent.record_size, sent._data, sent._decode = record.record_size, data, decode_sent_fields
    sent.__class__ = Record
    made: Record = sent
    return made


@cache
def record_maker() -> RecordMaker:
    """Return what makes records for a program of those that the kernel has read. For a process that has a kernel."""
    used = kernel()
    assert used is not None
    return used.RecordMaker(Record, decode_sent_fields, EARLY_BODY_END_MAX)


def decode_sent_fields(data: bytes, name: str) -> dict[str, Any]:
    """Return values of fields as `decode_fields` does, for a program's record."""
    values = decode_fields(data, name)
    if not data[FLAG_BYTE_AT] & COMPRESSED_FLAG:
        return values
    if name not in ("body", "sys_flag"):
        # Whether the body unpacks decides on it.
        values.pop("sys_flag", None)
        return values
    values |= decode_fields(data, "body" if name == "sys_flag" else "sys_flag")
    body = unpack_body(values["body"], values["sys_flag"])
    if body is not None:
        values |= {"body": body, "sys_flag": values["sys_flag"] & ~COMPRESSION_MASK}
    return values


def stored_body(record: Record) -> tuple[bytes, int]:
    """Return body and system flag of a record as they are in the log, also if the record is a program's."""
    # A record that a program has made has no bytes.
    data: bytes | None = getattr(record, "_data", None)
    if data is None or not data[FLAG_BYTE_AT] & COMPRESSED_FLAG:
        return record.body, record.sys_flag
    return decode_fields(data, "body")["body"], decode_fields(data, "sys_flag")["sys_flag"]


def set_first_topic(record: Record) -> None:
    """Give a record of a retry topic, which nothing else has yet, the topic that it was first sent to."""
    topic = record.properties.get("RETRY_TOPIC")
    if topic is not None:
        object.__setattr__(record, "topic", topic)
