"""Splits: a range of the commit log in parts that can be read in parallel.

Each record contains its own offset, so a cut can be made anywhere: the next record begins where a magic code and the
matching offset are found. Splits depend only on the range and the size.
"""

from __future__ import annotations

import msgspec

from reput.store.log.segments import Segments
from reput.store.record.layout import BLANK_MAGIC_CODE, SIZE_AND_MAGIC
from reput.store.recovery.log_walk import LogWalk

__all__ = ["Split", "begins_blank", "next_record", "plan_splits"]


class Split(msgspec.Struct, frozen=True, array_like=True):
    """The records that begin in [begin, until), as commit-log offsets; a record begins at *begin*."""

    begin: int
    until: int


def next_record(segments: Segments, commit_log_offset: int, until: int) -> int:
    """Return where the first record at or after *commit_log_offset* begins; at most *until*."""
    if commit_log_offset >= until:
        return until
    walk = LogWalk(segments)
    try:
        found = walk.find_record(commit_log_offset)
    finally:
        walk.close()
    return until if found is None else min(found, until)


def begins_blank(segments: Segments, commit_log_offset: int) -> bool:
    """Return whether the unused rest of a segment begins at *commit_log_offset*."""
    segment = segments.find(commit_log_offset)
    if segment is None or commit_log_offset + SIZE_AND_MAGIC.size > segment.begin + segment.size:
        return False
    size, magic_code = SIZE_AND_MAGIC.unpack(segments.read(commit_log_offset, SIZE_AND_MAGIC.size))
    return bool(magic_code == BLANK_MAGIC_CODE and size == segment.end - commit_log_offset)


def plan_splits(segments: Segments, begin: int, until: int, split_bytes: int, split_count_min: int = 1) -> list[Split]:
    """Cut [begin, until) into splits of about *split_bytes* bytes, ascending and without gaps.

    Records begin at *begin* and *until*, or the log ends there. An empty range gives no splits.
    """
    if begin >= until:
        return []
    size = max(min(split_bytes, -(-(until - begin) // split_count_min)), 1)
    walk = LogWalk(segments)
    cuts = [begin]
    try:
        for at in range(begin + size, until, size):
            # A cut may lie in a blank, in damage, or in a record as long as several splits.
            if at <= cuts[-1]:
                continue
            found = walk.find_record(at)
            if found is None or found >= until:
                break
            cuts.append(found)
    finally:
        walk.close()
    return [Split(first, last) for first, last in zip(cuts, [*cuts[1:], until], strict=True)]
