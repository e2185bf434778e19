"""FramePublisher: encodes the store writer's notifications as frames for the dispatchers.

Called under the writer's put lock, except `durable`, which the flusher calls.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.process.frames.frame import (
    BATCH,
    NO_COLUMNS,
    batch_frame,
    delete_topic_frame,
    encode_frame_into,
    expire_frame,
    truncate_frame,
)
from reput.process.frames.protocols import FrameWriter
from reput.store.writer.publisher import AppendedRecords, Publisher
from reput_hooks import DispatchColumns
from reput_hooks.dispatch import ROW, ROW_SIZE

__all__ = ["FramePublisher"]

TEXTS_SIZE = 8


class FramePublisher(Publisher):
    """Publishes on *writer*, a `RingWriter` or an `InlineRing`.

    Args:
        epoch: number of the log's history.
        on_read_only: called with the reason when the store refuses messages, with None once it accepts them again.
    """

    def __init__(
        self, writer: FrameWriter, epoch: int, on_read_only: Callable[[str | None], None] | None = None
    ) -> None:
        self.writer = writer
        self.epoch = epoch
        self.on_read_only = on_read_only
        # The last frame: making a new object for each would cost a third of its encoding.
        self.frame = bytearray()

    def publish(self, records: AppendedRecords) -> None:
        """Publish *records*: one encoding and one copy. A frame too large for the ring is published in parts."""
        end, ordinal, rows = records.end, records.ordinal, records.rows
        first_ordinal = ordinal - len(rows) // ROW_SIZE
        columns = records.queues, rows, records.texts
        frame = self.frame
        encode_frame_into(
            (BATCH, self.epoch, records.begin, end, records.store_timestamp, first_ordinal, columns), frame
        )
        if len(frame) <= self.writer.frame_size_max:
            self.writer.publish(frame, end, ordinal)
        else:
            self.publish_in_parts(records.begin, end, records.store_timestamp, first_ordinal, DispatchColumns(*columns))

    def publish_in_parts(
        self, begin: int, end: int, store_timestamp: int, ordinal: int, columns: DispatchColumns
    ) -> None:
        """Halve the frame recursively until the parts fit, and publish them."""
        frame = batch_frame(self.epoch, begin, end, store_timestamp, ordinal, columns)
        row_count = len(columns)
        if len(frame) <= self.writer.frame_size_max:
            self.writer.publish(frame, end, ordinal + row_count)
            return
        if row_count <= 1:
            # One record's texts exceed a frame. An empty batch behind it leaves a hole, which makes all readers of
            # the ring turn to the commit log.
            frame = batch_frame(self.epoch, end, end, store_timestamp, ordinal + row_count, NO_COLUMNS)
            self.writer.publish(frame, end, ordinal + row_count)
            return
        half = row_count // 2
        rows, at = columns.rows, half * ROW_SIZE
        text_at = sum(row[TEXTS_SIZE] for row in ROW.iter_unpack(rows[:at]))
        last = ROW.unpack_from(rows, at - ROW_SIZE)
        middle, middle_timestamp = last[0] + last[5], last[3]
        former = DispatchColumns(columns.queues, rows[:at], columns.texts[:text_at])
        latter = DispatchColumns(columns.queues, rows[at:], columns.texts[text_at:])
        self.publish_in_parts(begin, middle, middle_timestamp, ordinal, former)
        self.publish_in_parts(middle, end, store_timestamp, ordinal + half, latter)

    def durable(self, offset: int) -> None:
        """Publish that the log is durable up to *offset*."""
        self.writer.set_durable(offset)

    def read_only(self, reason: str | None) -> None:
        """Report why the store refuses messages; None: it accepts them again."""
        if self.on_read_only is not None:
            self.on_read_only(reason)

    def truncate(self, epoch: int, commit_log_offset: int, store_timestamp: int, ordinal: int) -> None:
        """Publish that the log was cut at *commit_log_offset* and *epoch* has begun."""
        self.epoch = epoch
        self.writer.set_epoch(epoch)
        self.writer.publish(
            truncate_frame(epoch, commit_log_offset, store_timestamp, ordinal), commit_log_offset, ordinal
        )

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """Publish that the log was trimmed below *commit_log_offset_min*; it still ends at *appended*."""
        self.writer.set_commit_log_offset_min(commit_log_offset_min)
        self.writer.publish(expire_frame(self.epoch, commit_log_offset_min), appended, ordinal)

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """Publish that *topic* was deleted when the log ended at *appended*; `TopicDeletions` already has it."""
        self.writer.publish(delete_topic_frame(self.epoch, appended, ordinal, topic), appended, ordinal)
