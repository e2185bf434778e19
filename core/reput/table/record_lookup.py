"""RecordLookup: the records that begin at given offsets of the log, thousands at a time, wherever they lie.

Offsets that lie close together are read at once, the others one by one. The bytes are copied out of the file, so they
cannot change while they are compared. The copies reuse one buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reput.errors import OffsetOutOfRange
from reput.store.log.segment_reader import SegmentReader
from reput.store.log.segments import Segments
from reput.store.record.layout import RECORD_SIZE_MIN, SIZE
from reput.store.record.record_columns import RecordColumns, locate_records_at, take

__all__ = ["RecordLookup"]

Array = np.ndarray[Any, Any]

# Reading this many unneeded bytes costs about as much as another call of the system.
GAP_MAX = 4096


class RecordLookup:
    """Looks up records of *segments*. Use it from one thread at a time, and `close` it."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.reader = SegmentReader(segments)
        self.buffer = bytearray(1 << 20)

    def find(self, commit_log_offset: Array, record_size: Array) -> tuple[RecordColumns, Array]:
        """Return the records at *commit_log_offset*, distinct and ascending, and a flag for each: there is a record.

        The records are in the same order, and valid until the next call.

        Args:
            record_size: how large each record probably is. A record of another size is found as well.

        Raises:
            DamagedStore: the disk cannot read the log.
        """
        wanted = np.clip(record_size, RECORD_SIZE_MIN, self.segments.segment_size)
        while True:
            position, filled = self.read(commit_log_offset, wanted)
            view = memoryview(self.buffer)[:filled]
            true_size = self.sizes(view, position, wanted)
            if (true_size <= wanted).all():
                return locate_records_at(view, position, commit_log_offset)
            wanted = np.maximum(wanted, true_size)

    def sizes(self, view: memoryview, position: Array, wanted: Array) -> Array:
        """Return the sizes that the records themselves have, or *wanted* where that is impossible."""
        readable = (position >= 0) & (position + SIZE.size <= len(view))
        if not readable.any():
            return wanted
        buffer = np.frombuffer(view, np.uint8)
        size = take(buffer, np.where(readable, position, 0), SIZE.size).view(SIZE.format).reshape(-1).astype(np.int64)
        possible = readable & (size >= RECORD_SIZE_MIN) & (size <= self.segments.segment_size)
        return np.where(possible, size, wanted)

    def read(self, commit_log_offset: Array, size: Array) -> tuple[Array, int]:
        """Read the ranges into the buffer; return where each begins there, -1 if not at all, and how many bytes it has."""
        begin, segment = commit_log_offset, commit_log_offset // self.segments.segment_size
        end = np.minimum(begin + size, (segment + 1) * self.segments.segment_size)
        # A run ends where the next range begins far behind everything before it, or in another segment.
        reached = np.maximum.accumulate(end)
        cuts = np.flatnonzero((begin[1:] > reached[:-1] + GAP_MAX) | (segment[1:] != segment[:-1])) + 1
        firsts, lasts = [0, *cuts.tolist()], [*cuts.tolist(), len(begin)]
        total = sum(int(reached[last - 1] - begin[first]) for first, last in zip(firsts, lasts, strict=True))
        if total > len(self.buffer):
            self.buffer = bytearray(total)
        view = memoryview(self.buffer)
        place = np.full(len(begin), -1, np.int64)
        filled = 0
        for first, last in zip(firsts, lasts, strict=True):
            at = int(begin[first])
            got = self.read_run(at, view[filled : filled + int(reached[last - 1]) - at])
            if got:
                place[first:last] = begin[first:last] - at + filled
                filled += got
                place[first:last][begin[first:last] - at + RECORD_SIZE_MIN > got] = -1
        return place, filled

    def read_run(self, commit_log_offset: int, view: memoryview) -> int:
        """Fill *view* from this offset on, and return how many bytes it got; 0 where no segment is."""
        segment = self.segments.find(commit_log_offset)
        if segment is None:
            return 0
        view = view[: max(segment.begin + segment.size - commit_log_offset, 0)]
        try:
            return self.reader.open(segment).read_into(commit_log_offset, view) if len(view) else 0
        except OffsetOutOfRange:
            # Retention has removed it.
            return 0

    def close(self) -> None:
        """Close the open segment."""
        self.reader.close()
