"""The messages of an inner batch, which RocketMQ 5 keeps in one record of a topic with ``queue.type=BatchCQ``.

The record's body is what the client sent, one message behind the other:

    size  field
       4  message_size
       4  magic_code       0
       4  body_crc         0
       4  flag
       4  body_size
     ...  body
       2  properties_size
     ...  properties

The first message has the record's queue offset, each further one the next; all else they share.

Source: RocketMQ common, MessageDecoder.decodeMessage of a Message and of a MessageExt.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError

from reput.errors import DamagedStore
from reput.store.record.layout import INNER_BATCH_FLAG, NEED_UNWRAP_FLAG, PROPERTIES_SIZE
from reput.store.record.record import encode_address, encode_record
from reput_hooks import Record

__all__ = ["is_inner_batch", "messages_of"]

MESSAGE_HEAD = Struct(">iiiii")
UNWRAPPED = ~(INNER_BATCH_FLAG | NEED_UNWRAP_FLAG)


def is_inner_batch(record: Record) -> bool:
    """Tell whether *record* holds several messages."""
    return record.sys_flag & INNER_BATCH_FLAG != 0 and record.sys_flag & NEED_UNWRAP_FLAG != 0


def messages_of(record: Record) -> list[bytes]:
    """Return each message of an inner batch as its own record, at the place of the record that holds the batch.

    Raises:
        DamagedStore: the body does not fall into messages.
    """
    topic = record.topic.encode()
    born_host, store_host = encode_address(record.born_host), encode_address(record.store_host)
    return [
        encode_record(
            topic=topic,
            queue_id=record.queue_id,
            body=body,
            properties=properties,
            flag=flag,
            queue_offset=record.queue_offset + number,
            commit_log_offset=record.commit_log_offset,
            sys_flag=record.sys_flag & UNWRAPPED,
            born_timestamp=record.born_timestamp,
            born_host=born_host,
            store_timestamp=record.store_timestamp,
            store_host=store_host,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )
        for number, (flag, body, properties) in enumerate(split(record))
    ]


def split(record: Record) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield flag, body and properties of each message.

    Raises:
        DamagedStore: as `messages_of`.
    """
    data = record.body
    at = 0
    while at < len(data):
        try:
            size, _, _, flag, body_size = MESSAGE_HEAD.unpack_from(data, at)
            body_at = at + MESSAGE_HEAD.size
            (properties_size,) = PROPERTIES_SIZE.unpack_from(data, body_at + body_size)
        except StructError:
            raise torn(record, at) from None
        properties_at = body_at + body_size + PROPERTIES_SIZE.size
        end = properties_at + properties_size
        if min(body_size, properties_size) < 0 or end != at + size or end > len(data):
            raise torn(record, at)
        yield flag, data[body_at : body_at + body_size], data[properties_at:end]
        at = end


def torn(record: Record, at: int) -> DamagedStore:
    """Return the error that says that there is no message at this byte of the body."""
    return DamagedStore.at(
        record.commit_log_offset,
        record.record_size,
        f"a batch cannot be split into messages: topic={record.topic} queue_id={record.queue_id} "
        f"queue_offset={record.queue_offset} commit_log_offset={record.commit_log_offset} at={at} "
        f"body_size={len(record.body)}",
        "See `reput check STORE`; other messages can be read.",
    )
