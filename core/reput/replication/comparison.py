"""Comparison of a copy with its master's log: the overlap at each connection, and where two logs part.

RocketMQ's protocol has no marks of history, but any byte of the log can be asked for. Two logs that differ somewhere
differ from there on in the header of each record, which has its place and the time when it was stored. Bodies show
nothing: a producer that got no answer sends the same message again. So every comparison begins with a header.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from reput.errors import BrokerError
from reput.replication.master_stream import MasterStream
from reput.store.log.segments import Segments
from reput.store.record.layout import (
    MAGIC_CODE_AT,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODES,
    SIZE_MAGIC_AND_OFFSET,
    STORE_TIMESTAMP_END_MAX,
)
from reput.store.recovery.log_walk import LogWalk
from reput.store.recovery.repair import CutPlan

__all__ = [
    "OVERLAP_SIZE",
    "OpenStream",
    "find_parting",
    "log_end",
    "lost_records",
    "read_bytes",
    "record_begin",
    "request_offset",
]

# Compared at each connection, and what else the first record has. A master that lost its tail and grew again differs in
# the last headers before our end.
OVERLAP_SIZE = 64 << 10
# Steps back in search of a place where both logs are the same, each larger than the one before.
FIRST_STEP, STEP_FACTOR = 64 << 10, 8
PROBE_SIZE = 4096
assert PROBE_SIZE > STORE_TIMESTAMP_END_MAX
# Read at once in search of a record's begin.
SEARCH_SIZE = 256 << 10
# The first bytes of all magic codes of records.
MAGIC_BYTES = MESSAGE_MAGIC_CODE.to_bytes(4, "big")[:3]
assert all(code.to_bytes(4, "big").startswith(MAGIC_BYTES) for code in MESSAGE_MAGIC_CODES)
# A segment with a record is not zero here.
FIRST_SIZE = 8
READ_WAIT_S = 1.0
ANSWER_MAX_S = 10.0

ReadLog = Callable[[int, int], bytes]
# Opens a connection to the master from a commit-log offset on.
OpenStream = Callable[[int], MasterStream]


def request_offset(offset: int) -> int:
    """Return what to ask for to get the log from *offset* on.

    0 means "from your last segment" to RocketMQ. The log's first byte is the highest of a size, always 0, so it need
    not be asked for.
    """
    return max(offset, 1)


def record_begin(read_log: ReadLog, begin: int, at: int) -> int:
    """Return where the last record begins whose header ends at or before *at*; *begin* if there is none behind that.

    Args:
        read_log: returns our bytes in [begin, end).
    """
    until = at
    while until - begin > SIZE_MAGIC_AND_OFFSET.size:
        first = max(begin, until - SEARCH_SIZE)
        data = read_log(first, until)
        found = data.rfind(MAGIC_BYTES)
        while found >= 0:
            place = found - MAGIC_CODE_AT
            if place >= 0 and place + SIZE_MAGIC_AND_OFFSET.size <= len(data):
                _, magic, commit_log_offset = SIZE_MAGIC_AND_OFFSET.unpack_from(data, place)
                if magic in MESSAGE_MAGIC_CODES and commit_log_offset == first + place:
                    return first + place
            found = data.rfind(MAGIC_BYTES, 0, found + len(MAGIC_BYTES) - 1)
        # A header may lie across the two.
        until = first + SIZE_MAGIC_AND_OFFSET.size
    return begin


def find_parting(open_stream: OpenStream, read_log: ReadLog, begin: int, end: int) -> int:
    """Return the commit-log offset of the first byte at which a master's log differs from ours, *end* if none does.

    Args:
        read_log: returns our bytes in [begin, end).
        begin, end: what both logs have.

    Raises:
        BrokerError: the master does not send its bytes.
    """
    step, at = FIRST_STEP, end
    while at > begin:
        at = record_begin(read_log, begin, at - step)
        step *= STEP_FACTOR
        size = min(PROBE_SIZE, end - at)
        if first_difference(open_stream, read_log, at, at + size) is None:
            break
    different = first_difference(open_stream, read_log, at, end)
    return end if different is None else different


def first_difference(open_stream: OpenStream, read_log: ReadLog, begin: int, end: int) -> int | None:
    """Return the first offset in [begin, end) at which the logs differ, None if they are the same there."""
    at = begin = request_offset(begin)
    if begin >= end:
        return None
    with open_stream(begin) as stream:
        began = time.monotonic()

        def give_up() -> None:
            # Heartbeats alone keep a connection open: the master does not have these bytes any more.
            if time.monotonic() - began > ANSWER_MAX_S:
                raise BrokerError(
                    f"the master does not send its log: ha_address={stream.address} commit_log_offset={at}"
                )

        for piece in stream.pieces(READ_WAIT_S, give_up):
            began = time.monotonic()
            theirs = bytes(piece[: end - at])
            ours = read_log(at, at + len(theirs))
            if theirs != ours:
                return at + next(
                    number for number, pair in enumerate(zip(theirs, ours, strict=True)) if len(set(pair)) > 1
                )
            at += len(theirs)
            if at >= end:
                return None
    raise BrokerError(f"the master ended the connection: at={at}")


def read_bytes(segments: Segments, begin: int, end: int) -> bytes:
    """Return the bytes of our log in [begin, end).

    Raises:
        OffsetOutOfRange: the log does not hold them all.
    """
    pieces = []
    while begin < end:
        until = min(end, segments.holding(begin).end)
        pieces.append(segments.read(begin, until - begin))
        begin = until
    return b"".join(pieces)


def log_end(store_directory: Path) -> int:
    """Return where the log of a stopped store ends, by reading its last segment that has a record."""
    segments = Segments(store_directory / "commitlog")
    # A segment that was made ahead is empty, and the log has not got there.
    used = (segment for segment in reversed(segments.list) if any(segments.read(segment.begin, FIRST_SIZE)))
    walk = LogWalk(segments, unclean=True)
    for _ in walk.walk(next(used, segments.list[0]).begin):
        pass
    return walk.log_end


def lost_records(store_directory: Path, parting: int) -> CutPlan:
    """Return which records of ours lie behind *parting*, which may be inside of one; `cut_at` is where that begins.

    The log is read from the segment of *parting* on.
    """
    segments = Segments(store_directory / "commitlog")
    walk = LogWalk(segments, unclean=True)
    plan: CutPlan | None = None
    for extent in walk.walk(segments.holding(min(parting, segments.offset_end - 1)).begin):
        if extent.end <= parting or extent.kind in ("stale", "tail"):
            continue
        if plan is None:
            cut_at = extent.begin
            if extent.columns is not None:
                begins = extent.columns.header["commit_log_offset"].astype("int64")
                cut_at = int(begins[max(int(begins.searchsorted(parting, "right")) - 1, 0)])
            plan = CutPlan(cut_at, cut_at)
        plan.add(extent)
    return plan or CutPlan(walk.log_end, walk.log_end)
