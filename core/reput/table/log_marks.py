"""LogMark: lets a lake or a stream's checkpoint recognise the log that it was read from.

A store that reput never wrote has no id that survives its broker's retention. So a follower of the log keeps marks of
what it has read: the last record of each segment, by offset, size, store time and body CRC. Compared with a log, each
mark is

    held          the same record lies there
    refuted       another record lies on its bytes, or the unused rest of a segment
    ahead         the log ends before it
    damaged       the log continues after it, but its bytes hold nothing readable
    gone          retention has deleted it

Damaged and gone marks prove nothing. It is the same log if at least one mark is held and no later one is refuted. A
refuted mark before a held one counts as damage, not as another history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Literal

import msgspec
import numpy as np

from reput.errors import OffsetOutOfRange
from reput.store.log.bad_range import BadRange
from reput.store.log.segments import Segments
from reput.store.record.layout import (
    BORN_HOST_V6_FLAG,
    IDENTITY,
    MESSAGE_MAGIC_CODES,
    STORE_TIMESTAMP,
    STORE_TIMESTAMP_AT,
    STORE_TIMESTAMP_END_MAX,
)
from reput.store.record.record_columns import RecordColumns
from reput.store.state.epochs import Epochs
from reput.table.range_reader import RangeReader
from reput.table.splits import begins_blank, next_record
from reput_hooks import Cursor

__all__ = [
    "MARK_COUNT_MAX",
    "LogMark",
    "MarkComparison",
    "compare_marks",
    "find_parting",
    "joined_marks",
    "last_marks",
]

# Retention takes the oldest segments first, so the newest marks last longest.
MARK_COUNT_MAX = 32
# The search for the last record before an end starts this far back.
LOOK_BACK = 64 << 10
ROWS_WANTED = 1024
WINDOW_SIZE = 1 << 20
# The header holds the body CRC unsigned, a mark holds it signed.
SIGNED, UNSIGNED = Struct(">i"), Struct(">I")

Verdict = Literal["held", "refuted", "ahead", "damaged", "gone"]


class LogMark(msgspec.Struct, frozen=True, array_like=True):
    """One record: *body_crc* as stored, signed."""

    commit_log_offset: int
    record_size: int
    store_timestamp: int
    body_crc: int

    @property
    def end(self) -> int:
        """Commit-log offset of the record's end."""
        return self.commit_log_offset + self.record_size


class MarkComparison(msgspec.Struct, frozen=True):
    """Marks compared with a log.

    Attributes:
        held: the last mark that the log holds.
        refuted: the first mark after *held* that the log refutes.
        ahead: the first mark that lies beyond the log's end.
        held_count, refuted_count, ahead_count, damaged_count, gone_count: counts over all marks.
    """

    held: LogMark | None = None
    refuted: LogMark | None = None
    ahead: LogMark | None = None
    held_count: int = 0
    refuted_count: int = 0
    ahead_count: int = 0
    damaged_count: int = 0
    gone_count: int = 0

    @property
    def agrees(self) -> bool:
        """Whether it is the same log, as far as the marks show."""
        return self.held is not None and self.refuted is None

    @property
    def held_end(self) -> int:
        """The offset up to which the log is known to be the same; 0 without a held mark."""
        return 0 if self.held is None else self.held.end

    def __str__(self) -> str:
        return (
            f"marks_held={self.held_count} marks_refuted={self.refuted_count} marks_ahead={self.ahead_count} "
            f"marks_damaged={self.damaged_count} marks_gone={self.gone_count}"
        )


def compare_marks(segments: Segments, log_end: int, marks: Iterable[LogMark]) -> MarkComparison:
    """Compare *marks*, in any order, with a log that ends at *log_end*."""
    verdicts = [
        (mark, verdict_of(segments, log_end, mark)) for mark in sorted(marks, key=lambda mark: mark.commit_log_offset)
    ]

    def of(verdict: Verdict) -> list[LogMark]:
        return [mark for mark, found in verdicts if found == verdict]

    held, refuted, ahead = of("held"), of("refuted"), of("ahead")
    last_held = held[-1] if held else None
    behind = [mark for mark in refuted if last_held is None or mark.commit_log_offset > last_held.commit_log_offset]
    return MarkComparison(
        last_held,
        behind[0] if behind else None,
        ahead[0] if ahead else None,
        len(held),
        len(refuted),
        len(ahead),
        len(of("damaged")),
        len(of("gone")),
    )


def verdict_of(segments: Segments, log_end: int, mark: LogMark) -> Verdict:
    """Compare one mark with the log."""
    at = mark.commit_log_offset
    if at >= log_end:
        return "ahead"
    if segments.find(at) is None:
        return "gone"
    if record_at(segments, at) == mark:
        return "held"
    if segments.find(at) is None:
        # The segment was removed in the meantime.
        return "gone"
    return "refuted" if is_occupied(segments, log_end, at, mark.end) else "damaged"


def record_at(segments: Segments, at: int) -> LogMark | None:
    """Return the mark of the record that begins at *at*, None if none does."""
    try:
        data = segments.read(at, STORE_TIMESTAMP_END_MAX)
    except OffsetOutOfRange:
        # The segment was removed in the meantime, or ends too soon after *at* for a record.
        return None
    size, magic_code, crc, place, sys_flag = IDENTITY.unpack_from(data)
    if magic_code not in MESSAGE_MAGIC_CODES or place != at:
        return None
    (store_timestamp,) = STORE_TIMESTAMP.unpack_from(data, STORE_TIMESTAMP_AT[bool(sys_flag & BORN_HOST_V6_FLAG)])
    return LogMark(at, size, store_timestamp, crc)


def is_occupied(segments: Segments, log_end: int, begin: int, until: int) -> bool:
    """Return whether a valid record (CRC included) or a segment's unused rest overlaps [begin, until)."""
    behind = record_before(segments, begin, until)
    reader = RangeReader(
        segments,
        rows_wanted=ROWS_WANTED,
        window_size_max=WINDOW_SIZE,
        verify=True,
        fail_on_data_loss=False,
        on_damage=pass_over,
    )
    for columns in reader.read(behind, log_end):
        begins = columns.header["commit_log_offset"].astype(np.int64)
        ends = begins + columns.header["record_size"]
        if ((begins < until) & (ends > begin)).any():
            return True
        if ends[-1] > begin:
            break
        behind = int(ends[-1])
    return begins_blank(segments, behind)


def record_before(segments: Segments, begin: int, until: int) -> int:
    """Return the begin of a record or a segment from which the records that overlap [begin, until) can be read."""
    segment = segments.find(begin)
    distance = LOOK_BACK
    while segment is not None and distance < begin - segment.begin:
        found = next_record(segments, begin - distance, until)
        if found < until:
            return found
        # A record may be longer than what was looked at.
        distance *= 16
    return begin if segment is None else segment.begin


def last_marks(segments: Segments, begin: int, until: int) -> list[LogMark]:
    """Return the mark of each segment's last record in [begin, until), for the newest segments, ascending.

    *begin* is where a record or a blank begins, *until* where a record begins or ends.
    """
    found: list[LogMark] = []
    for segment in reversed(segments.list):
        low, high = max(begin, segment.begin), min(until, segment.end)
        mark = last_record(segments, low, high) if low < high else None
        if mark is not None:
            found.append(mark)
        if len(found) == MARK_COUNT_MAX or segment.begin <= begin:
            break
    return found[::-1]


def last_record(segments: Segments, low: int, high: int) -> LogMark | None:
    """Return the mark of the last record that begins in [low, high), a part of one segment; None if none does."""
    distance = LOOK_BACK
    reader = RangeReader(
        segments, rows_wanted=ROWS_WANTED, window_size_max=WINDOW_SIZE, fail_on_data_loss=False, on_damage=pass_over
    )
    while True:
        at = max(low, high - distance)
        last: LogMark | None = None
        for columns in reader.read(at if at == low else next_record(segments, at, high), high):
            last = mark_of_last(columns)
        if last is not None or at == low:
            return last
        # A record may be longer than what was looked at.
        distance *= 16


def mark_of_last(columns: RecordColumns) -> LogMark:
    """Return the mark of the last record in *columns*."""
    header = columns.header[-1]
    return LogMark(
        int(header["commit_log_offset"]),
        int(header["record_size"]),
        int(columns.store_timestamp[-1]),
        SIGNED.unpack(UNSIGNED.pack(int(header["body_crc"])))[0],
    )


def joined_marks(known: Sequence[LogMark], new: Sequence[LogMark], segment_size: int) -> list[LogMark]:
    """Merge *known* and *new* marks: the last one of each segment, for the newest segments, ascending."""
    of_segment: dict[int, LogMark] = {}
    for mark in sorted((*known, *new), key=lambda mark: mark.commit_log_offset):
        of_segment[mark.commit_log_offset // segment_size] = mark
    return list(of_segment.values())[-MARK_COUNT_MAX:]


def find_parting(epochs: Epochs, cursor: Cursor, compared: MarkComparison, commit_log_offset_min: int) -> int | None:
    """Return where the log's history departs from what was read up to *cursor*, None if the log continues it.

    The offset never lies below *commit_log_offset_min*, where the log contradicts nothing, nor below a held mark.
    """
    difference = epochs.first_difference(cursor, commit_log_offset_min)
    parting = None if difference is None else difference.commit_log_offset
    since = epochs.since(cursor)
    located = cursor.epoch <= epochs.epoch and all(epoch.located for epoch in since)
    if parting is not None and compared.held is not None and (not located or compared.held_end > parting):
        # The epochs give only the lowest offset at which the histories may part: an epoch also begins where another
        # program continued the log, and its records may have been read before.
        if compared.refuted is not None or compared.ahead is not None:
            parting = max(parting, compared.held_end)
        else:
            starts = [epoch.start_offset for epoch in since if epoch.located]
            parting = min((start for start in starts if start >= compared.held_end), default=None)
    if compared.refuted is not None and (parting is None or parting > compared.refuted.commit_log_offset):
        parting = max(compared.held_end, commit_log_offset_min)
    return None if parting is None or parting >= cursor.commit_log_offset else parting


def pass_over(damaged: BadRange) -> None:
    """Skip a damaged range: only readable records become marks."""
