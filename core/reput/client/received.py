"""Records of a pull's answer, in the form that the consumer's program gets.

    body of the answer ──▶ records ──▶ tag ──▶ first topic restored

Source: RocketMQ client, PullAPIWrapper.processPullResult; RocketMQ common, MessageDecoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from reput.errors import BrokerError, DamagedStore
from reput.filter import TagFilter
from reput.store.record.sent_record import sent_record, set_first_topic
from reput_hooks import Record

__all__ = ["received_records", "records_of"]

SIZE = Struct(">i")
SYS_FLAG_AT = 36


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
            record = sent_record(piece)
        except DamagedStore as error:
            raise BrokerError(f"the broker's answer holds a broken record: {error}") from None
        if tags and record.properties.get("TAGS") not in tags:
            continue
        if is_retry:
            set_first_topic(record)
        found.append((record.queue_offset, record))
        total += record.record_size
    return found, total


def wanted_tags(compiled: object) -> frozenset[str]:
    """Return the tags that the consumer itself compares."""
    return compiled.tags if isinstance(compiled, TagFilter) else frozenset()
