"""Frame: one entry of the ring - a batch of requests, or a change of the log's history, in commit-log order.

A frame is a MessagePack array of seven::

    kind                 0 batch, 1 truncate, 2 expire, 3 delete_topic
    epoch                number of the log's history
    begin                commit-log offset
    end                  commit-log offset
    end_store_timestamp  of the last record below `end`, ms since 1970 UTC; 0: there is none
    ordinal              records in the log since its birth, below `begin`
    columns              [queues, rows, texts] as in `reput_hooks.dispatch`

A *batch* covers the bytes [begin, end), including blanks at the end of a segment; it begins where the previous batch
ended. In the other kinds `begin` equals `end`: the offset at which the log was cut (`epoch` is then the new one), below
which it was trimmed, or at which it ended when the topic, the only entry of `queues`, was deleted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from reput_hooks import DispatchColumns
from reput_hooks.dispatch import ROW, ROW_SIZE

__all__ = [
    "BATCH",
    "DELETE_TOPIC",
    "EXPIRE",
    "NO_COLUMNS",
    "TRUNCATE",
    "Frame",
    "FramePart",
    "batch_frame",
    "cut_columns",
    "decode_frame",
    "delete_topic_frame",
    "encode_frame_into",
    "expire_frame",
    "truncate_frame",
]

BATCH: Final = 0
TRUNCATE: Final = 1
EXPIRE: Final = 2
DELETE_TOPIC: Final = 3

NO_COLUMNS = DispatchColumns([], b"", b"")


class Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One entry of the ring; the module docstring draws it."""

    kind: int
    epoch: int
    begin: int
    end: int
    end_store_timestamp: int
    ordinal: int
    columns: DispatchColumns

    @property
    def end_ordinal(self) -> int:
        """Number of records in the log since its birth, below `end`."""
        return self.ordinal + len(self.columns)


# Both are bound methods of stateless C objects: a one-record frame takes 0.2 µs to encode and 0.3 µs to decode. Without
# memory `encode_into` raises MemoryError, while msgspec's `encode` crashes.
encode_frame_into = msgspec.msgpack.Encoder().encode_into
decode_frame = msgspec.msgpack.Decoder(Frame).decode


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of *frame*."""
    encoded = bytearray()
    encode_frame_into(frame, encoded)
    return bytes(encoded)


def batch_frame(
    epoch: int, begin: int, end: int, end_store_timestamp: int, ordinal: int, columns: DispatchColumns
) -> bytes:
    """Return the frame of the records in [begin, end)."""
    return encode_frame(Frame(BATCH, epoch, begin, end, end_store_timestamp, ordinal, columns))


def truncate_frame(epoch: int, commit_log_offset: int, store_timestamp: int, ordinal: int) -> bytes:
    """Return the frame for a cut: the log's history ended at the offset, and *epoch* has begun."""
    return encode_frame(
        Frame(TRUNCATE, epoch, commit_log_offset, commit_log_offset, store_timestamp, ordinal, NO_COLUMNS)
    )


def expire_frame(epoch: int, commit_log_offset_min: int) -> bytes:
    """Return the frame for a log that was trimmed below *commit_log_offset_min*."""
    return encode_frame(Frame(EXPIRE, epoch, commit_log_offset_min, commit_log_offset_min, 0, 0, NO_COLUMNS))


def delete_topic_frame(epoch: int, commit_log_offset: int, ordinal: int, topic: str) -> bytes:
    """Return the frame for the deletion of *topic* when the log ended at *commit_log_offset*."""
    columns = DispatchColumns([(topic, 0)], b"", b"")
    return encode_frame(Frame(DELETE_TOPIC, epoch, commit_log_offset, commit_log_offset, 0, ordinal, columns))


class FramePart(NamedTuple):
    """Part of a frame.

    Attributes:
        columns: the rows of the part.
        end: commit-log offset at which its last record ends.
        store_timestamp: of that record, 0 without one.
        row_count: rows of the frame up to `end`, including those before the part.
    """

    columns: DispatchColumns
    end: int
    store_timestamp: int
    row_count: int


def cut_columns(columns: DispatchColumns, begin: int, end: int, count_max: int) -> FramePart:
    """Return the first *count_max* rows whose records lie in [begin, end); without any, the part ends at *begin*.

    One unpack per row; only frames that cross a cursor or a bound need it.
    """
    rows, texts = columns.rows, columns.texts
    first = last = text_begin = text_end = text_at = 0
    record_end, store_timestamp = begin, 0
    for number, row in enumerate(ROW.iter_unpack(rows)):
        commit_log_offset, record_size, texts_size = row[0], row[5], row[8]
        if commit_log_offset < begin:
            first = last = number + 1
            text_begin = text_end = text_at + texts_size
        elif commit_log_offset + record_size <= end and number - first < count_max:
            last = number + 1
            text_end = text_at + texts_size
            record_end, store_timestamp = commit_log_offset + record_size, row[3]
        else:
            break
        text_at += texts_size
    kept = DispatchColumns(columns.queues, rows[first * ROW_SIZE : last * ROW_SIZE], texts[text_begin:text_end])
    return FramePart(kept, record_end, store_timestamp, last)
