"""The log of a restored store: pieces laid out as segments, cut at one place, and verified record by record."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from reput.backup.layout import BackupManifest, Piece
from reput.backup.stored import piece_chunks
from reput.backup.target import BackupTarget
from reput.errors import ConfigError, DamagedStore
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Clock, Files
from reput.store.log.segments import Segments
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.check_fields import FieldsCheck
from reput.store.recovery.damage_list import DamagedRange
from reput.store.recovery.log_walk import LogWalk
from reput.store.recovery.recreated_queues import RecreatedQueue
from reput.store.state.topic_deletions import TopicDeletion

__all__ = ["VerifiedLog", "cut_log_at", "find_cut", "lay_out", "pieces_until", "verify_log"]


class VerifiedLog(msgspec.Struct):
    """What the verification of a restored log found.

    Attributes:
        queues: topic → queue id → next queue offset.
        store_timestamp: of the last record, ms; 0 without one.
        unreadable: ranges that are no records.
        damage: the same, and the records that contradict their neighbours.
    """

    records: int
    store_timestamp: int
    queues: dict[str, dict[int, int]]
    unreadable: list[DamagedRange]
    damage: list[DamagedRange]


def pieces_until(pieces: Sequence[Piece], at: int | None, offset: int | None) -> list[Piece]:
    """Return the pieces with the records stored until *at*, or below *offset*; the last one may have more."""
    if offset is not None:
        return [piece for piece in pieces if piece.begin < offset]
    if at is None:
        return list(pieces)
    behind = next((number for number, piece in enumerate(pieces) if piece.store_timestamp > at), len(pieces))
    return list(pieces[: behind + 1])


def lay_out(
    target: BackupTarget,
    manifest: BackupManifest,
    pieces: Sequence[Piece],
    directory: Path,
    on_bytes: Callable[[int], None],
) -> None:
    """Write *pieces* as the segments of a log in *directory*, durably.

    Raises:
        DamagedStore: a piece is absent, or not what was written.
    """
    files = Files()
    files.make_directory(directory)
    size = manifest.segment_size
    # Without a record there is still the segment that the next one goes to.
    begins = {piece.begin - piece.begin % size for piece in pieces} or {manifest.log_begin - manifest.log_begin % size}
    for segment_begin in sorted(begins):
        path = directory / file_name(segment_begin)
        files.create(path, size)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for piece in pieces:
                if piece.begin - piece.begin % size != segment_begin:
                    continue
                at = piece.begin - segment_begin
                for chunk in piece_chunks(target, piece):
                    view = memoryview(chunk)
                    on_bytes(len(view))
                    while view:
                        written = os.pwrite(descriptor, view, at)
                        view, at = view[written:], at + written
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    files.force_directory(directory)


def find_cut(segments: Segments, last: Piece, log_end: int, at: int | None, offset: int | None) -> int:
    """Return where the log ends if it has the records stored until *at*, or ends at *offset*.

    Args:
        last: the piece in which that is, or behind which.

    Raises:
        ConfigError: *offset* is inside of a record.
    """
    if at is None and offset is None:
        return log_end
    walk = LogWalk(segments, verify=False, finds_restarts=False)
    end = last.begin
    for extent in walk.walk(last.begin):
        if extent.begin >= last.end or extent.kind in ("stale", "tail"):
            break
        end = extent.end
        if extent.columns is not None:
            begins = extent.columns.header["commit_log_offset"].astype(np.int64)
            if at is not None:
                later = np.flatnonzero(extent.columns.store_timestamp > at)
                if len(later):
                    return int(begins[later[0]])
            elif offset is not None and offset < extent.end:
                refuse_inside(extent.columns, begins, offset)
                return offset
        elif offset is not None and extent.begin <= offset < extent.end:
            # Between two segments, or in damage: the log ends before it.
            return extent.begin
    return min(end, log_end)


def refuse_inside(columns: RecordColumns, begins: np.ndarray, offset: int) -> None:
    """Refuse an *offset* inside of a record.

    Raises:
        ConfigError: it is.
    """
    number = int(np.searchsorted(begins, offset, "right")) - 1
    if int(begins[number]) != offset:
        end = int(begins[number]) + int(columns.header["record_size"][number])
        raise ConfigError(
            f"a record goes on there: offset={offset} from={begins[number]} until={end}",
            f"Restore until {begins[number]}, or until {end}.",
        )


def cut_log_at(segments: Segments, end: int) -> None:
    """Leave only zeros behind *end*: what was laid out there is not restored."""
    files = Files()
    if end % segments.segment_size == 0 and end not in segments.begins:
        # A log ends behind a blank only if there is a segment for the next record.
        files.create(segments.directory / file_name(end), segments.segment_size)
    for segment in segments.list:
        if segment.begin > end:
            files.remove(segment.path)
        elif segment.end > end:
            with open(segment.path, "r+b") as file:
                file.truncate(max(end - segment.begin, 0))
                file.truncate(segments.segment_size)
                os.fsync(file.fileno())
    files.force_directory(segments.directory)


def verify_log(
    segments: Segments,
    log_end: int,
    manifest: BackupManifest,
    parts: Sequence[TopicDeletion | RecreatedQueue],
    demand_crc: bool,
    on_progress: Callable[[int], None],
    *,
    finds_restarts: bool = False,
) -> VerifiedLog:
    """Verify every record of a restored log, as `reput check` does.

    Args:
        parts: topics that were deleted and queues that began anew, in the order of the log.
        finds_restarts: queues may have begun anew without being among them.

    Raises:
        DamagedStore: the log is damaged where the backup's was not.
    """
    walk = LogWalk(segments, deletions=parts, demand_crc=demand_crc, finds_restarts=finds_restarts)
    fields = FieldsCheck(segments.offset_min, Clock().now_ms())
    unreadable: list[DamagedRange] = []
    for extent in walk.walk():
        if extent.columns is not None:
            fields.take(extent.columns)
        elif extent.kind != "blank":
            unreadable.append(DamagedRange(extent.begin, extent.end, extent.reason))
            fields.pass_damage(extent.end)
        on_progress(extent.end - segments.offset_min)
    walk.delete_the_rest()
    damage = unreadable + [DamagedRange(found.begin, found.end, found.reason) for found in fields.finish()]
    damage.sort(key=lambda found: found.begin)
    known = joined_ranges(manifest.damage)

    def is_known(begin: int, end: int) -> bool:
        return any(known_begin <= begin and end <= known_end for known_begin, known_end in known)

    for found in damage:
        if not is_known(found.begin, found.end):
            raise DamagedStore(
                f"the restored log is damaged where the backup's was not: from={found.begin} until={found.end} "
                f"reason={found.reason!r} backup={manifest.number}",
                "Restore an earlier backup with --backup, and report this.",
            )
    # A log that was cut behind damage ends for the walk where that begins.
    if walk.log_end > log_end or (walk.log_end < log_end and not is_known(walk.log_end, log_end)):
        raise DamagedStore(
            f"the restored log does not end where it should: log_end={walk.log_end} expected={log_end} "
            f"backup={manifest.number}",
            "Restore an earlier backup with --backup, and report this.",
        )
    return VerifiedLog(walk.record_count, walk.store_timestamp, walk.queue_offsets.snapshot(), unreadable, damage)


def joined_ranges(damage: Sequence[DamagedRange]) -> list[tuple[int, int]]:
    """Return the ranges of *damage*, those as one that touch: two backups may each have found a part of it."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted((found.begin, found.end) for found in damage):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
