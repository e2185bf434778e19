"""RangeReader: the records of a range of the commit log, a window of bytes at a time.

One reader, its own descriptor and buffer, read-only. Bytes are copied out of the file before they are checked, so they
cannot change in between. The copies reuse one buffer, so its pages are faulted in only once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.log.bad_range import BadRange
from reput.store.log.segment_reader import SegmentReader
from reput.store.log.segments import Segment, Segments
from reput.store.record.record_columns import RecordColumns, locate_records
from reput.store.recovery.damage_list import accepted_end
from reput.store.recovery.log_walk import LogWalk

__all__ = ["RangeReader", "pass_trimmed"]

WINDOW_SIZE_FIRST = 1 << 20
WINDOW_SIZE_MIN = 64 << 10
# If messages are alike, windows differ by less than this fraction (one n-th).
WINDOW_MARGIN_PART = 32

logger = logging.getLogger(__name__)


class RangeReader:
    """Reads one range after the other. Use it from one thread at a time."""

    def __init__(
        self,
        segments: Segments,
        *,
        rows_wanted: int,
        window_size_max: int,
        verify: bool = False,
        fail_on_data_loss: bool = True,
        passed_over: Sequence[tuple[int, int]] = (),
        on_damage: Callable[[BadRange], None] | None = None,
    ) -> None:
        """
        Args:
            rows_wanted: windows are sized so that about this many records lie in each.
            verify: compare every record with its CRC.
            fail_on_data_loss: raise if the log was trimmed above the beginning of a range; else warn and continue
                where it begins now.
            passed_over: damaged ranges (begin, until) that the operator has accepted. A record that begins in one is
                never read.
            on_damage: called with each other damaged range, which is then skipped; None: damage raises.
        """
        self.segments = segments
        self.rows_wanted = rows_wanted
        self.window_size_max = window_size_max
        self.window_size = min(WINDOW_SIZE_FIRST, window_size_max)
        self.verify = verify
        self.fail_on_data_loss = fail_on_data_loss
        self.passed_over = passed_over
        self.on_damage = on_damage
        self.buffer = bytearray(self.window_size)
        self.reader = SegmentReader(segments)

    def read(self, begin: int, until: int) -> Iterator[RecordColumns]:
        """Yield the records that begin in [begin, until), in log order; each run is valid until the next one.

        Records begin at *begin* and *until*, or the log ends there.

        Raises:
            DamagedStore: some bytes of the range are not records; neither `passed_over` nor `on_damage` covers them.
            OffsetOutOfRange: the log was trimmed above *begin*.
        """
        at = begin
        try:
            while at < until:
                segment = self.open_segment(at)
                if segment is None:
                    at = self.pass_missing(at, until)
                    continue
                columns, at = self.window(segment, at, until)
                if columns is not None:
                    yield columns
        finally:
            self.close()

    def window(self, segment: Segment, at: int, until: int) -> tuple[RecordColumns | None, int]:
        """Return the records of one window from *at* on, None if there are none, and where to continue."""
        accepted = accepted_end(self.passed_over, at)
        if accepted is not None:
            return None, min(accepted, until)
        readable = min(until, segment.end, segment.begin + segment.size) - at
        view = self.fill(segment, at, min(self.window_size, readable))
        columns, stop = locate_records(view, at, segment.end - at)
        bad = columns.first_bad_record() if self.verify else None
        if bad is not None:
            columns = columns.until(bad)
        columns = self.until_passed_over(columns)
        if len(columns):
            # Slightly fewer than wanted, because the surplus of a window would become an extra batch.
            wanted = columns.end // len(columns) * (self.rows_wanted - self.rows_wanted // WINDOW_MARGIN_PART)
            self.window_size = min(max(wanted, WINDOW_SIZE_MIN), self.window_size_max)
            return columns, at + columns.end
        if bad is not None:
            return None, self.pass_damage(at, until, "a CRC does not match")
        if stop is None:
            return None, self.pass_damage(at, until, "the segment was cut short")
        if stop.kind == "blank":
            return None, segment.end
        if stop.kind == "more" and stop.size <= readable:
            self.window_size = stop.size
            return None, at
        return None, self.pass_damage(at, until, stop.reason or f"the record is cut short: record_size={stop.size}")

    def until_passed_over(self, columns: RecordColumns) -> RecordColumns:
        """Return the records before the first that begins in an accepted range."""
        for begin, end in self.passed_over:
            offsets = columns.header["commit_log_offset"]
            inside = (offsets >= begin) & (offsets < end)
            if inside.any():
                columns = columns.until(int(inside.argmax()))
        return columns

    def pass_missing(self, at: int, until: int) -> int:
        """Return where to continue after bytes that no segment holds."""
        offset_min = self.segments.offset_min
        if at >= offset_min:
            return self.pass_damage(at, until, "a segment is missing or cut short")
        return min(pass_trimmed(at, offset_min, self.fail_on_data_loss), until)

    def pass_damage(self, at: int, until: int, reason: str) -> int:
        """Report the damaged range that begins at *at* and return its end.

        Raises:
            DamagedStore: there is no `on_damage`.
        """
        found = LogWalk(self.segments).find_record(at + 1)
        end = until if found is None else min(found, until)
        if self.on_damage is None:
            raise DamagedStore(
                f"the log is damaged: from={at} until={end} reason={reason!r}",
                f"See `reput check STORE`. To read beyond it, accept the range with `reput repair STORE --accept "
                f"{at}..{end}`, or set on_corruption (in Spark onCorruption) to report.",
            )
        self.on_damage(BadRange(at, end, reason))
        return end

    def fill(self, segment: Segment, commit_log_offset: int, size: int) -> memoryview:
        """Return *size* bytes of *segment* from this offset on, fewer at its end, in the reader's buffer.

        Raises:
            DamagedStore: the disk cannot read them.
        """
        if size > len(self.buffer):
            self.buffer = bytearray(min(size + size // WINDOW_MARGIN_PART, max(size, self.window_size_max)))
        view = memoryview(self.buffer)[:size]
        return view[: self.reader.open(segment).read_into(commit_log_offset, view)]

    def open_segment(self, commit_log_offset: int) -> Segment | None:
        """Open the segment that holds this byte, None if there is none."""
        segment = self.segments.find(commit_log_offset)
        if segment is not None:
            try:
                self.reader.open(segment)
            except OffsetOutOfRange:
                # Retention has removed it.
                return None
        return segment

    def close(self) -> None:
        """Close the open segment."""
        self.reader.close()


def pass_trimmed(commit_log_offset: int, offset_min: int, fail_on_data_loss: bool) -> int:
    """Return *commit_log_offset*, or *offset_min* with a warning if the log was trimmed above it.

    Raises:
        OffsetOutOfRange: it was trimmed, and *fail_on_data_loss* is set.
    """
    if commit_log_offset >= offset_min:
        return commit_log_offset
    if fail_on_data_loss:
        raise OffsetOutOfRange(
            f"the log was trimmed above this offset: commit_log_offset={commit_log_offset} offset_min={offset_min}",
            "Retention has deleted these records. Begin later, or continue after them: --accept-data-loss of an "
            "export, "
            "failOnDataLoss=false of a read.",
        )
    logger.warning("records were deleted by retention: from=%d until=%d", commit_log_offset, offset_min)
    return offset_min
