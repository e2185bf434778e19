"""RecordLookup: the records that begin at given offsets of the log, thousands at a time, wherever they lie.

Offsets that lie close together are read at once, the others one by one. The bytes are copied out of the file, so they
cannot change while they are compared. The copies reuse one buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reput.errors import OffsetOutOfRange
from reput.store.log.segment_reader import SegmentReader
from reput.store.log.segments import Segment, Segments
from reput.store.record.layout import RECORD_SIZE_MIN, SIZE
from reput.store.record.record_columns import RecordColumns, locate_records_at, take

__all__ = ["RecordLookup"]

Array = np.ndarray[Any, Any]

# Reading this many unneeded bytes costs about as much as another call of the system.
GAP_MAX = 16 << 10


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
        """Read the ranges into the buffer; return where each begins there, -1 if not at all, and the bytes in use."""
        begin, segment = commit_log_offset, commit_log_offset // self.segments.segment_size
        end = np.minimum(begin + size, (segment + 1) * self.segments.segment_size)
        # A run ends where the next range begins far behind everything before it, or in another segment.
        reached = np.maximum.accumulate(end)
        begins_run = np.append(True, (begin[1:] > reached[:-1] + GAP_MAX) | (segment[1:] != segment[:-1]))
        first = np.flatnonzero(begins_run)
        run_begin, run_end = begin[first], reached[np.append(first[1:], len(begin)) - 1]
        run_place = np.cumsum(run_end - run_begin) - (run_end - run_begin)
        total = int(run_place[-1] + run_end[-1] - run_begin[-1])
        if total > len(self.buffer):
            self.buffer = bytearray(total)
        got = self.read_runs(run_begin.tolist(), run_end.tolist(), run_place.tolist())
        run_of = np.cumsum(begins_run) - 1
        within = begin - run_begin[run_of]
        # What a run lacks at the end of its file must not show older bytes of the buffer.
        return np.where(within + RECORD_SIZE_MIN <= got[run_of], within + run_place[run_of], -1), total

    def read_runs(self, begins: list[int], ends: list[int], places: list[int]) -> Array:
        """Read runs of bytes to their places in the buffer; return how many bytes each got, 0 if no segment has it."""
        view = memoryview(self.buffer)
        got = np.zeros(len(begins), np.int64)
        segment: Segment | None = None
        # A call of the system for each run; where records lie close together, there are few.
        for number, (begin, end, place) in enumerate(zip(begins, ends, places, strict=True)):
            if segment is None or not segment.begin <= begin < segment.begin + segment.size:
                segment = self.segments.find(begin)
            if segment is None:
                continue
            target = view[place : place + end - begin]
            try:
                got[number] = self.reader.open(segment).read_into(begin, target)
            except OffsetOutOfRange:
                # Retention has removed it.
                segment = None
            # Nothing of an earlier call may look like a record.
            target[got[number] :] = bytes(len(target) - int(got[number]))
        return got

    def close(self) -> None:
        """Close the open segment."""
        self.reader.close()
