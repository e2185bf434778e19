"""Encode messages: record bytes and dispatch rows out of plain bytes and numbers. No lock, no clock, no file.

A message is encoded in two steps. The parts that do not depend on its place form an `EncodedMessage`, made before the
writer takes its lock. Under the lock its place and store time are known, and the rest is packed:

    EncodedMessage, queue offset, commit-log offset, store time ──▶ record bytes, dispatch row

`encode_message` packs one message, `encode_run` several that lie one behind the other. Both pack the same header and
the same row. They do not share a function for it: in the loop of a batch one more call per message costs a sixth of a
put.

`layout` draws the record, `reput_hooks.dispatch` the row.

Source: RocketMQ store, MessageExtEncoder.encode and CommitLog.DefaultAppendMessageCallback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from typing import Generic, TypeVar

import msgspec
from isal.isal_zlib import crc32

from reput.store.record.layout import (
    BODY_SIZE_FORMAT,
    BORN_HOST_V6_FLAG,
    IPV4_HOST_SIZE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    ORIGIN_FORMAT,
    PLACE_FORMAT,
    PROPERTIES_SIZE,
    SIZE,
    STORE_HOST_V6_FLAG,
    TOPIC_SIZE_MAX_V1,
    TOPIC_SIZE_V1,
    TOPIC_SIZE_V2,
)
from reput.store.record.message import PutMessageResult, PutMessageStatus
from reput.store.record.record import CRC_PROPERTY_SIZE, crc_property
from reput_hooks.dispatch import ROW

__all__ = [
    "EncodedMessage",
    "EncodedRun",
    "RecordHead",
    "TopicHead",
    "encode_message",
    "encode_run",
    "record_head",
    "with_further_offsets",
]

# Looked up once: reading an enum's attribute costs as much as making the result that holds it.
PUT_OK = PutMessageStatus.PUT_OK
pack_row = ROW.pack


class TopicHead:
    """The common parts of all records of one topic.

    Attributes:
        field: size and name, as a record has them.
        offsets: queue id → next queue offset. The encoder only reads it.
    """

    __slots__ = ("field", "magic_code", "name", "offsets")

    def __init__(self, name: str, data: bytes, offsets: dict[int, int]) -> None:
        """*data* is the stored form of *name*."""
        is_long = len(data) > TOPIC_SIZE_MAX_V1
        self.name = name
        self.magic_code = MESSAGE_MAGIC_CODE_V2 if is_long else MESSAGE_MAGIC_CODE
        self.field = (TOPIC_SIZE_V2 if is_long else TOPIC_SIZE_V1).pack(len(data)) + data
        self.offsets = offsets


TopicT = TypeVar("TopicT", bound=TopicHead)


class RecordHead(msgspec.Struct, frozen=True):
    """The fields of a record besides its message: one head for all messages of this program, others for
    `MessageExtBrokerInner`.

    Attributes:
        pack: packs fields 1 to 15 of the record; the result of `origin` provides 8 to 14.
        record_size_min: bytes of the record up to its body.
        born_timestamp: None stands for the store time.
        appends_crc: the properties end with room for the CRC of the whole record.
    """

    pack: Callable[..., bytes]
    pack_origin: Callable[..., bytes]
    record_size_min: int
    sys_flag: int
    born_timestamp: int | None
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    appends_crc: bool

    def origin(self, store_timestamp: int) -> bytes:
        """Return fields 8 to 14 of a record with this store time: where and when it came from."""
        return self.pack_origin(
            self.sys_flag,
            store_timestamp if self.born_timestamp is None else self.born_timestamp,
            self.born_host,
            store_timestamp,
            self.store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
        )


class EncodedMessage(msgspec.Struct, Generic[TopicT], gc=False):
    """One message, encoded except for the parts that depend on its place and store time.

    Attributes:
        crc: of the body, as the record has it.
        after_body: the record's bytes behind its body.
        texts: the message's texts for the dispatch row; the sizes below divide it.
        deliver_after: ms from the store time to the delivery of a delayed message; -1: not delayed.
        further: names of the further queues, by multi-dispatch. `with_further_offsets` adds the offsets there, which
            make the record longer.
        further_offsets: of each further queue the table, the queue id and the queue offset.
    """

    topic: TopicT
    head: RecordHead
    queue_id: int
    body: bytes
    crc: int
    flag: int
    after_body: bytes
    record_size: int
    tags_code: int
    texts: bytes
    keys_size: int
    uniq_key_size: int = -1
    deliver_after: int = -1
    properties_size: int = -1
    further: tuple[str, ...] = ()
    multi_dispatch_size: int = -1
    further_offsets: Sequence[tuple[dict[int, int], int, int]] = ()


class EncodedRun(msgspec.Struct, Generic[TopicT], gc=False):
    """Several messages, one behind the other.

    Attributes:
        data: their records; the size words are 0 until the log writes them.
        sizes: of the records.
        results: the result of each put.
        queues: (topic, queue id) of each queue, in the order of the rows' queue indexes.
        following: of each queue its topic, queue id, next queue offset behind the run, and bytes of records.
        rows, texts: what `DispatchColumns` take.
    """

    data: bytes
    sizes: list[int]
    results: list[PutMessageResult]
    queues: list[tuple[str, int]]
    following: list[tuple[TopicT, int, int, int]]
    rows: bytes
    texts: bytes


def encode_message(
    message: EncodedMessage[TopicT], queue_offset: int, commit_log_offset: int, store_timestamp: int, origin: bytes
) -> tuple[bytes, bytes]:
    """Return the record and the dispatch row of *message*, with queue index 0.

    Args:
        origin: what the head's `RecordHead.origin` returns for *store_timestamp*.
    """
    head, body, after_body = message.head, message.body, message.after_body
    record_size = message.record_size
    header = head.pack(
        record_size,
        message.topic.magic_code,
        message.crc,
        message.queue_id,
        message.flag,
        queue_offset,
        commit_log_offset,
        origin,
        len(body),
    )
    if head.appends_crc:
        after_body = with_record_crc(header, body, after_body)
    row = pack_row(
        commit_log_offset,
        queue_offset,
        message.tags_code if message.deliver_after < 0 else store_timestamp + message.deliver_after,
        store_timestamp,
        head.prepared_transaction_offset,
        record_size,
        0,
        head.sys_flag,
        len(message.texts),
        message.uniq_key_size,
        message.keys_size,
        message.multi_dispatch_size,
        message.properties_size,
    )
    return b"".join((header, body, after_body)), row


def encode_run(run: list[EncodedMessage[TopicT]], commit_log_offset: int, store_timestamp: int) -> EncodedRun[TopicT]:
    """Return the records of *run*, the first of which begins at *commit_log_offset*, and all that is known of them.

    One header, one row and one result per message.
    """
    at = commit_log_offset
    results: list[PutMessageResult] = []
    number_of: dict[tuple[str, int], int] = {}
    # Per queue: topic, queue id, next queue offset, bytes of records.
    following: list[tuple[TopicT, int, int, int]] = []
    pieces: list[bytes] = []
    sizes: list[int] = []
    rows: list[bytes] = []
    texts: list[bytes] = []
    topic, head = run[0].topic, run[0].head
    queue_id, queue_index, queue_offset = -1, 0, 0
    queue_size, counted_at = 0, at
    origin, sys_flag, store_host = head.origin(store_timestamp), head.sys_flag, head.store_host
    prepared_transaction_offset, appends_crc = head.prepared_transaction_offset, head.appends_crc
    for message in run:
        if message.queue_id != queue_id or message.topic is not topic:
            if queue_id >= 0:
                following[queue_index] = topic, queue_id, queue_offset, queue_size + at - counted_at
            topic, queue_id = message.topic, message.queue_id
            queue_index = number_of.setdefault((topic.name, queue_id), len(number_of))
            if queue_index == len(following):
                following.append((topic, queue_id, topic.offsets.get(queue_id, 0), 0))
            _, _, queue_offset, queue_size = following[queue_index]
            counted_at = at
        if message.head is not head:
            head = message.head
            origin, sys_flag, store_host = head.origin(store_timestamp), head.sys_flag, head.store_host
            prepared_transaction_offset = head.prepared_transaction_offset
        record_size, body, after_body = message.record_size, message.body, message.after_body
        header = head.pack(
            0,
            topic.magic_code,
            message.crc,
            queue_id,
            message.flag,
            queue_offset,
            at,
            origin,
            len(body),
        )
        if appends_crc:
            after_body = with_record_crc(SIZE.pack(record_size) + header[SIZE.size :], body, after_body)
        pieces += (header, body, after_body)
        sizes.append(record_size)
        own_texts = message.texts
        texts.append(own_texts)
        rows.append(
            pack_row(
                at,
                queue_offset,
                message.tags_code if message.deliver_after < 0 else store_timestamp + message.deliver_after,
                store_timestamp,
                prepared_transaction_offset,
                record_size,
                queue_index,
                sys_flag,
                len(own_texts),
                message.uniq_key_size,
                message.keys_size,
                message.multi_dispatch_size,
                message.properties_size,
            )
        )
        end = at + record_size
        results.append(
            PutMessageResult(PUT_OK, at, end, record_size, queue_id, queue_offset, store_timestamp, store_host)
        )
        at = end
        queue_offset += 1
    following[queue_index] = topic, queue_id, queue_offset, queue_size + at - counted_at
    return EncodedRun(b"".join(pieces), sizes, results, list(number_of), following, b"".join(rows), b"".join(texts))


def with_further_offsets(
    message: EncodedMessage[TopicT], offsets_name: str, further_offsets: Sequence[tuple[dict[int, int], int, int]]
) -> EncodedMessage[TopicT]:
    """Return *message* with its offsets in the further queues, in the record's properties and in the row's texts.

    Args:
        offsets_name: of the property that carries them.
        further_offsets: of each further queue the table, the queue id and the queue offset.
    """
    values = ",".join([str(queue_offset) for _, _, queue_offset in further_offsets])
    added = f"{offsets_name}\x01{values}\x02".encode()
    field = message.topic.field
    properties = message.after_body[len(field) + PROPERTIES_SIZE.size :]
    # The record's CRC comes last.
    end = len(properties) - CRC_PROPERTY_SIZE if message.head.appends_crc else len(properties)
    properties = properties[:end] + added + properties[end:]
    multi_dispatch = f"{','.join(message.further)}\x02{values}".encode()
    keys_end = max(message.uniq_key_size, 0) + max(message.keys_size, 0)
    carries_properties = message.properties_size >= 0
    tags = message.texts[keys_end + max(message.properties_size, 0) :]
    texts = b"".join((message.texts[:keys_end], multi_dispatch, properties if carries_properties else b"", tags))
    return msgspec.structs.replace(
        message,
        after_body=field + PROPERTIES_SIZE.pack(len(properties)) + properties,
        record_size=message.record_size + len(added),
        texts=texts,
        properties_size=len(properties) if carries_properties else -1,
        multi_dispatch_size=len(multi_dispatch),
        further_offsets=further_offsets,
    )


def record_head(
    sys_flag: int,
    born_timestamp: int | None,
    born_host: bytes,
    store_host: bytes,
    *,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    appends_crc: bool,
) -> RecordHead:
    """Return a head whose bits of *sys_flag* agree with the sizes of the hosts."""
    sys_flag &= ~(BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG)
    sys_flag |= BORN_HOST_V6_FLAG if len(born_host) > IPV4_HOST_SIZE else 0
    sys_flag |= STORE_HOST_V6_FLAG if len(store_host) > IPV4_HOST_SIZE else 0
    header, origin = headers(len(born_host), len(store_host))
    return RecordHead(
        header.pack,
        origin.pack,
        header.size,
        sys_flag,
        born_timestamp,
        born_host,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        appends_crc,
    )


@cache
def headers(born_host_size: int, store_host_size: int) -> tuple[Struct, Struct]:
    """Return fields 1 to 15 of a record whose hosts have these sizes, with 8 to 14 in one, and these by themselves."""
    origin = Struct(">" + ORIGIN_FORMAT.format(born_host_size, store_host_size))
    return Struct(f">{PLACE_FORMAT}{origin.size}s{BODY_SIZE_FORMAT}"), origin


def with_record_crc(header: bytes, body: bytes, after_body: bytes) -> bytes:
    """Return *after_body* with the CRC of the whole record in the room that was left for it."""
    after_body = after_body[:-CRC_PROPERTY_SIZE]
    crc = crc32(after_body, crc32(body, crc32(header))) & 0x7FFFFFFF
    return after_body + crc_property(crc)
