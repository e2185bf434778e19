"""Cutting the end off a log without losing a byte.

Everything behind the new end goes to ``reput/cut/``: the rest of the segment is copied there as ``OFFSET-SIZE``, later
segments with any content are moved there under their own names. Empty segments were made ahead and are removed. Zeros,
which are no record, then follow the end.

The order survives a kill at any step: the bytes furthest back go first, so that the rest is always the log followed by
the beginning of the bytes to cut. A second run finishes the cut.
"""

from __future__ import annotations

from pathlib import Path

from reput.store.disk.file_name import file_name
from reput.store.disk.files import Files, WrittenFile
from reput.store.log.segment_reader import used_size
from reput.store.log.segments import Segments

__all__ = ["CUT", "cut_behind"]

CUT = "cut"
CHUNK_SIZE = 1 << 20


def cut_behind(store_directory: Path, segments: Segments, end: int, files: Files) -> list[Path]:
    """Cut the log at *end*; return the files that keep the bytes cut off.

    The caller must hold the writer's lock. The segment that *end* lies in gets its full size, if it was cut short.

    Raises:
        OSError: something was not cut; nothing is lost.
    """
    target = store_directory / "reput" / CUT
    kept: list[Path] = []
    for segment in reversed(segments.list):
        if segment.begin > end - end % segments.segment_size:
            file = files.open(segment.path)
            used = last_data(file, 0)
            file.close()
            if used:
                files.make_directory(target)
                kept.append(unused(target / segment.path.name))
                files.move(segment.path, kept[-1])
            else:
                files.remove(segment.path)
    for segment in segments.list:
        if segment.begin <= end < segment.end:
            file = files.open(segment.path)
            try:
                kept += cut_segment(file, end, end - segment.begin, target, files)
            finally:
                file.close()
            if segment.size < segments.segment_size:
                # Cut short, or its making was interrupted: the mapping needs the full size.
                files.resize(segment.path, segments.segment_size)
    return kept


def cut_segment(file: WrittenFile, end: int, at: int, target: Path, files: Files) -> list[Path]:
    """Copy and zero what *file* has from *at* on, which is *end* in the log."""
    size = last_data(file, at) - at
    if not size:
        return []
    files.make_directory(target)
    copy = unused(target / f"{file_name(end)}-{size}")
    draft = copy.with_name(f"{copy.name}.draft")
    if draft.exists():
        files.remove(draft)
    files.create(draft, size)
    written = files.open(draft)
    try:
        for position in range(0, size, CHUNK_SIZE):
            written.write(file.read(min(CHUNK_SIZE, size - position), at + position), position)
        written.force()
    finally:
        written.close()
    files.move(draft, copy)
    for position in reversed(range(0, size, CHUNK_SIZE)):
        file.write(bytes(min(CHUNK_SIZE, size - position)), at + position)
    file.force()
    return [copy]


def last_data(file: WrittenFile, at: int) -> int:
    """Return where the bytes of *file* that are not zero end; *at* if there are none from there on."""
    last = at
    for begin, end in file.used_ranges(at):
        for position in range(begin, end, CHUNK_SIZE):
            used = used_size(file.read(min(CHUNK_SIZE, end - position), position))
            if used:
                last = position + used
    return last


def unused(path: Path) -> Path:
    """Return *path*, or the first of its numbered siblings that is not there: an earlier cut is never replaced."""
    number = 1
    free = path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
