"""Segments: the files of a commit log as a reader finds them, by listing the directory, never by their lengths."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Self

import msgspec

from reput.errors import DamagedStore, NotAStore, OffsetOutOfRange, StoreError
from reput.store.disk.file_name import parse_file_name
from reput.store.disk.shortages import store_error

__all__ = ["Segment", "SegmentFile", "Segments"]


class Segment(msgspec.Struct, frozen=True):
    """One file: *begin* is its name, *end* where the next one begins, *size* how many bytes it really has."""

    path: Path
    begin: int
    end: int
    size: int


class SegmentFile:
    """The file of one segment, open to read, whatever it holds. `Segments.open` makes it; `close` it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, commit_log_offset: int, size: int) -> bytes:
        """Return up to *size* bytes from *commit_log_offset* on; fewer at the end of the file.

        Raises:
            DamagedStore: the disk cannot read them.
        """
        try:
            return os.pread(self.descriptor, size, commit_log_offset - self.segment.begin)
        except OSError as error:
            raise self.unreadable(commit_log_offset, size, error) from error

    def read_into(self, commit_log_offset: int, buffer: memoryview) -> int:
        """Fill *buffer* from *commit_log_offset* on and return how many bytes it got; fewer at the end of the file.

        Raises:
            DamagedStore: the disk cannot read them.
        """
        try:
            return os.preadv(self.descriptor, [buffer], commit_log_offset - self.segment.begin)
        except OSError as error:
            raise self.unreadable(commit_log_offset, len(buffer), error) from error

    def seek_data(self, commit_log_offset: int) -> int:
        """Return the next offset from *commit_log_offset* on that is not in a hole of the file, else the file's end."""
        try:
            begin = self.segment.begin
            return begin + os.lseek(self.descriptor, commit_log_offset - begin, os.SEEK_DATA)
        except OSError:
            # ENXIO: only a hole up to the end.
            return self.segment.begin + self.segment.size

    def unreadable(self, commit_log_offset: int, size: int, error: OSError) -> DamagedStore:
        """Return the error that says where the log cannot be read."""
        return DamagedStore(
            f"the disk cannot read the log: commit_log_offset={commit_log_offset} size={size} "
            f"path={self.segment.path} error={error.strerror}"
        )

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Segments:
    """The segments of one commit-log directory, ascending. Reading only; `refresh` looks again."""

    def __init__(self, directory: Path, segment_size: int | None = None) -> None:
        """*segment_size*: of a full segment in bytes; None: the size that the files themselves show.

        Raises:
            NotAStore: the directory is absent or holds no segment.
            StoreError: this user may not read it, or the system cannot.
        """
        self.directory = directory
        self.configured_size = segment_size
        self.refresh()

    def refresh(self) -> None:
        """List the directory again: segments appear at the end and go at the beginning."""
        try:
            entries = list(os.scandir(self.directory))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAStore(f"no commit log here: directory={self.directory} error={error.strerror}") from None
        except PermissionError as error:
            raise StoreError(
                f"no permission to read the log: directory={self.directory} error={error.strerror}",
                "Check its owner and mode; run as a user with read permission.",
            ) from None
        except OSError as error:
            raise store_error("the log cannot be read", error) from None
        found = []
        for entry in entries:
            begin = parse_file_name(entry.name)
            # Retention may remove a segment while it is being listed.
            with contextlib.suppress(FileNotFoundError):
                if begin is not None and entry.is_file():
                    found.append((begin, entry.name, entry.stat().st_size))
        found.sort()
        # A first creation that was interrupted leaves an empty last file, which holds nothing yet.
        while found and found[-1][2] == 0:
            found.pop()
        if not found:
            raise NotAStore(f"no commit log here: directory={self.directory} segments=0")
        self.segment_size = self.configured_size or shown_segment_size(found)
        self.list = [
            Segment(self.directory / name, begin, begin + self.segment_size, size) for begin, name, size in found
        ]
        self.begins = [segment.begin for segment in self.list]

    @property
    def offset_min(self) -> int:
        """Commit-log offset of the first byte."""
        return self.begins[0]

    @property
    def offset_end(self) -> int:
        """Commit-log offset where the last segment's bytes end, used or not."""
        return self.list[-1].begin + self.list[-1].size

    def leave_out_below(self, commit_log_offset: int) -> None:
        """Leave out all segments before the one that holds this byte, but never the last one."""
        count = min(bisect_right(self.begins, commit_log_offset) - 1, len(self.begins) - 1)
        if count > 0:
            del self.list[:count], self.begins[:count]

    def missing(self) -> list[tuple[int, int]]:
        """Return the ranges (begin, end) between the first segment and the last that no file covers."""
        return [
            (segment.begin + segment.size, following.begin)
            for segment, following in pairwise(self.list)
            if segment.begin + segment.size < following.begin
        ]

    def find(self, commit_log_offset: int) -> Segment | None:
        """Return the segment that holds this byte, looking again at the directory if need be; None in a gap."""
        for attempt in range(2):
            number = bisect_right(self.begins, commit_log_offset) - 1
            if number >= 0:
                segment = self.list[number]
                if commit_log_offset < segment.begin + segment.size:
                    return segment
            if attempt == 0:
                self.refresh()
        return None

    def holding(self, commit_log_offset: int) -> Segment:
        """Return the segment that holds this byte, as `find` does.

        Raises:
            OffsetOutOfRange: there is none.
        """
        segment = self.find(commit_log_offset)
        if segment is None:
            raise OffsetOutOfRange(
                f"no segment holds this offset: commit_log_offset={commit_log_offset} offset_min={self.offset_min} "
                f"offset_end={self.offset_end}"
            )
        return segment

    def following(self, commit_log_offset: int) -> Segment | None:
        """Return the first segment that begins at or after this byte; None: there is none."""
        number = bisect_right(self.begins, commit_log_offset - 1)
        return self.list[number] if number < len(self.list) else None

    def read(self, commit_log_offset: int, size: int) -> bytes:
        """Return *size* bytes of one segment.

        Raises:
            OffsetOutOfRange: no segment holds them all, or retention has removed it.
            DamagedStore: the disk cannot read them.
        """
        segment = self.find(commit_log_offset)
        if segment is None or commit_log_offset + size > segment.begin + segment.size:
            raise OffsetOutOfRange(
                f"the log does not hold these bytes: commit_log_offset={commit_log_offset} size={size} "
                f"offset_min={self.offset_min} offset_end={self.offset_end}"
            )
        with self.open(segment) as file:
            return file.read(commit_log_offset, size)

    def open(self, segment: Segment) -> SegmentFile:
        """Open the file of *segment*. If it is gone, the directory is listed again.

        Raises:
            OffsetOutOfRange: it was removed since the segments were listed.
        """
        try:
            return SegmentFile(segment)
        except FileNotFoundError:
            self.refresh()
            raise OffsetOutOfRange(
                f"the log was trimmed while it was read: segment={segment.path} offset_min={self.offset_min}",
                "Ask again.",
            ) from None


def shown_segment_size(found: list[tuple[int, str, int]]) -> int:
    """Return the size of a full segment, derived from the names and lengths of the files.

    The distance between two names is a multiple of it, because a segment may be missing, and a file may have been cut
    short. The most frequent of all distances and lengths therefore decides.
    """
    sizes = [size for _, _, size in found]
    distances = [found[i + 1][0] - found[i][0] for i in range(len(found) - 1)]
    candidates = sizes + distances
    return max(set(candidates), key=lambda size: (candidates.count(size), size))
