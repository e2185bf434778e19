"""Records of a pull's answer, in the form that the consumer's program gets.

    body of the answer ──▶ records ──▶ tag ──▶ body inflated, first topic restored

Source: RocketMQ client, PullAPIWrapper.processPullResult; RocketMQ common, MessageDecoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from struct import Struct
from typing import Any

from reput.errors import BrokerError, DamagedStore
from reput.filter import TagFilter
from reput.store.record.body_compression import COMPRESSED_FLAG, COMPRESSION_MASK, unpack_body
from reput.store.record.record import decode_record
from reput_hooks import Record

__all__ = ["INFLATED_SIZE_MAX", "received_records", "records_of"]

SIZE = Struct(">i")
SYS_FLAG_AT = 36
# If a body is larger, once inflated, than producers may send, it is damaged or an attack.
INFLATED_SIZE_MAX = 32 << 20


def records_of(data: bytes) -> Iterator[bytes]:
    """Yield the bytes of each record of an answer.

    Raises:
        BrokerError: the bytes are not records.
    """
    at, end = 0, len(data)
    while at < end:
        size = SIZE.unpack_from(data, at)[0] if at + SIZE.size <= end else 0
        if not SYS_FLAG_AT + 4 < size <= end - at:
            raise BrokerError(f"the broker's answer holds no record: position={at} record_size={size} body_size={end}")
        yield data[at : at + size]
        at += size


def received_records(data: bytes, tags: frozenset[str], *, is_retry: bool) -> tuple[list[tuple[int, Record]], int]:
    """Return the wanted records of an answer with their queue offsets, and the size of all bytes they hold.

    Args:
        tags: the wanted tags; empty: all. The broker compares only their hashes.
        is_retry: the records come from a retry topic, and are returned with the topic that they were first sent to.

    Raises:
        BrokerError: the bytes are not records.
    """
    found: list[tuple[int, Record]] = []
    total = 0
    for piece in records_of(data):
        try:
            record = decode_record(piece)
        except DamagedStore as error:
            raise BrokerError(f"the broker's answer holds a broken record: {error}") from None
        if tags and record.properties.get("TAGS") not in tags:
            continue
        if is_retry or piece[SYS_FLAG_AT + 3] & COMPRESSED_FLAG:
            record = as_sent(record, is_retry=is_retry)
        found.append((record.queue_offset, record))
        total += record.record_size
    return found, total


def as_sent(record: Record, *, is_retry: bool) -> Record:
    """Return a record as its producer sent it: inflated, with the topic that it was first sent to."""
    changes: dict[str, Any] = {}
    if is_retry:
        changes["topic"] = record.properties.get("RETRY_TOPIC", record.topic)
    if record.sys_flag & COMPRESSED_FLAG:
        body = unpack_body(record.body, record.sys_flag, INFLATED_SIZE_MAX)
        if body is not None:
            changes |= {"body": body, "sys_flag": record.sys_flag & ~COMPRESSION_MASK}
    return replace(record, **changes) if changes else record


def wanted_tags(compiled: object) -> frozenset[str]:
    """Return the tags that the consumer itself compares."""
    return compiled.tags if isinstance(compiled, TagFilter) else frozenset()
