"""PendingFrames: frames read from the ring but not yet dispatched; the next batch is cut from them."""

from __future__ import annotations

from collections import deque

import msgspec

from reput.kernel import kernel
from reput.process.frames.frame import BATCH, DELETE_TOPIC, Frame, cut_columns
from reput.process.frames.joined_frames import decode_frames
from reput_hooks import Cursor, DispatchBatch, DispatchColumns
from reput_hooks.dispatch import ROW_SIZE

__all__ = ["PendingFrames", "TakenBatch", "lacks_properties"]

# Readers see a batch only when all of it is dispatched. A batch of this many rows takes some milliseconds, and a
# larger one is no cheaper per row.
BATCH_ROWS_MAX = 2048
# Frames that were read but lie beyond the bound. A dispatcher with more of them reads the log later instead.
PENDING_SIZE_MAX = 8 << 20
# ``properties_size`` of a row without them is -1, and nowhere else negative; its last byte is the row's.
NO_PROPERTIES_LAST_BYTE = 0xFF


class TakenBatch(msgspec.Struct, frozen=True):
    """Frames as one batch.

    Attributes:
        ordinal: number of records in the log below the end of the batch; None: not known.
        row_count: rows of the frames, also if the plugin gets only positions and its batch has none.
    """

    batch: DispatchBatch
    ordinal: int | None
    row_count: int


class PendingFrames:
    """The pending frames of one dispatcher, in commit-log order.

    Args:
        needs_properties: a row without properties is a hole; the log has them.
        positions_only: the plugin gets batches without rows.

    Attributes:
        hole: `take` found that frames are missing before the next one.
    """

    def __init__(self, *, needs_properties: bool, positions_only: bool) -> None:
        self.needs_properties = needs_properties
        self.positions_only = positions_only
        self.frames: deque[Frame] = deque()
        self.size = 0
        self.hole = False
        self.kernel = kernel()

    @property
    def has_room(self) -> bool:
        """Whether to read more frames."""
        return self.size < PENDING_SIZE_MAX

    def add(self, frames: list[bytes], bound: int) -> None:
        """Keep *frames*; those that end at or below the commit-log offset *bound* may be joined."""
        self.size += sum(map(len, frames))
        # A dispatcher that needs properties checks each frame for them, so frames must not be joined.
        self.frames.extend(decode_frames(frames, 0 if self.needs_properties else bound, self.kernel))

    def clear(self) -> None:
        """Forget all frames."""
        self.frames.clear()
        self.size = 0

    def take(
        self, cursor: Cursor, ordinal: int | None, bound: int, record_count_max: int, size_max: int
    ) -> TakenBatch | Frame | None:
        """Return the next item behind *cursor*: one batch, or a frame that changes the log's history.

        None: nothing lies below the commit-log offset *bound*; if `hole` is set, frames are missing.

        Args:
            ordinal: number of records in the log below *cursor*.
            size_max: maximum log bytes; one record is always allowed, whatever its size.
        """
        self.hole = False
        taken = self.take_next(cursor, ordinal, bound, record_count_max, size_max)
        if not self.frames:
            self.size = 0
        return taken

    def take_next(
        self, cursor: Cursor, ordinal: int | None, bound: int, record_count_max: int, size_max: int
    ) -> TakenBatch | Frame | None:
        frames = self.frames
        begin = end = cursor.commit_log_offset
        epoch, store_timestamp, row_count = cursor.epoch, cursor.store_timestamp, 0
        parts: list[DispatchColumns] = []
        count_max = BATCH_ROWS_MAX if self.positions_only else min(BATCH_ROWS_MAX, record_count_max)
        reach = min(bound, begin + size_max)
        while frames and row_count < count_max:
            frame = frames[0]
            if frame.kind != BATCH:
                if end > begin:
                    break
                if frame.kind == DELETE_TOPIC and frame.end > end:
                    self.hole = True
                    break
                return frames.popleft()
            columns = frame.columns
            if frame.begin > end or (self.needs_properties and lacks_properties(columns)):
                self.hole = True
                break
            if frame.end <= end:
                frames.popleft()
                continue
            taken_count = len(columns)
            if frame.begin == end and frame.end <= reach and row_count + taken_count <= count_max:
                frames.popleft()
                end, store_timestamp = frame.end, frame.end_store_timestamp
                ordinal = frame.ordinal + taken_count
            else:
                cut = cut_columns(columns, end, reach, count_max - row_count)
                if cut.end == begin and reach < bound:
                    # One record is always allowed, whatever its size.
                    cut = cut_columns(columns, end, bound, 1)
                if cut.row_count == taken_count and frame.end <= bound:
                    frames.popleft()
                    end, store_timestamp, ordinal = frame.end, frame.end_store_timestamp, frame.end_ordinal
                elif cut.end > end:
                    end, store_timestamp, ordinal = cut.end, cut.store_timestamp, frame.ordinal + cut.row_count
                else:
                    break
                columns = cut.columns
                taken_count = len(columns)
            epoch = frame.epoch
            row_count += taken_count
            if columns.rows and not self.positions_only:
                parts.append(columns)
        if end == begin:
            return None
        self.hole = False
        batch = DispatchBatch(begin, Cursor(cursor.store_id, epoch, end, store_timestamp), parts)
        return TakenBatch(batch, ordinal, row_count)


def lacks_properties(columns: DispatchColumns) -> bool:
    """Whether a row was made before the writer knew that a dispatcher wants the properties. The log has them.

    Checks all rows, not only the first: an earlier put may end behind puts that began later.
    """
    return NO_PROPERTIES_LAST_BYTE in columns.rows[ROW_SIZE - 1 :: ROW_SIZE]
