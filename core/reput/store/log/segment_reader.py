"""SegmentReader: reads the bytes of a log's segments from their files, whatever they hold. Loads no numpy."""

from __future__ import annotations

import os

from reput.store.log.segments import Segment, Segments, disk_cannot_read, open_segment

__all__ = ["CHUNK_SIZE", "SegmentReader"]

CHUNK_SIZE = 4 << 20


class SegmentReader:
    """Reads *segments*, of which one file is open at a time. `close` it."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.path = ""
        self.descriptor = -1

    def last_data(self, at: int) -> int:
        """Return where the bytes from *at* on that are not zero end; *at* if there are none."""
        last = at
        segment = self.segments.find(at) or self.segments.following(at)
        while segment is not None:
            position = max(at - segment.begin, 0)
            while (position := self.seek_data(segment, position)) < segment.size:
                data = self.pread(segment, segment.begin + position, CHUNK_SIZE)
                used = len(data.rstrip(b"\0"))
                if used:
                    last = segment.begin + position + used
                position += len(data)
            segment = self.segments.following(segment.begin + 1)
        return last

    def seek_data(self, segment: Segment, at: int) -> int:
        """Return the next place in *segment* from *at* on that the file system does not know to be zero."""
        self.open(segment)
        try:
            return os.lseek(self.descriptor, at, os.SEEK_DATA)
        except OSError:
            # ENXIO: nothing but a hole up to the end.
            return segment.size

    def pread(self, segment: Segment, commit_log_offset: int, size: int) -> bytes:
        """Read from *segment*.

        Raises:
            DamagedStore: the disk cannot read these bytes.
        """
        self.open(segment)
        try:
            return os.pread(self.descriptor, size, commit_log_offset - segment.begin)
        except OSError as error:
            raise disk_cannot_read(segment.path, commit_log_offset, size, error) from None

    def open(self, segment: Segment) -> None:
        """Have *segment* open; one file is open at a time.

        Raises:
            OffsetOutOfRange: it was removed since the segments were listed.
        """
        if str(segment.path) != self.path:
            self.close()
            self.descriptor = open_segment(segment.path)
            self.path = str(segment.path)

    def close(self) -> None:
        """Close the open file."""
        if self.path:
            os.close(self.descriptor)
            self.path = ""
