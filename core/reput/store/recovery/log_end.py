"""The end of a commit log, as a reader finds it that is not its writer.

A log does not say where it ends: segments have their full size from the start, and old bytes may follow the last
record. The end is the last record that passes the whole-record check - magic, sizes, own offset, CRCs - on a chain of
such records from a place that is known to be good:

    the position of reput's last snapshot, if the log still has the bytes that it was made of
    else, after a clean shutdown, the begin of the last segment that has a record
    else the begin of the last segment that began before the checkpoint's time of the log

If reput knows that the log once went further and was on disk, and no process writes it, the log ends there: what lacks
is damage, and a reader that comes to it says so.
"""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path
from struct import Struct

from reput.errors import OffsetOutOfRange, StoreError
from reput.store.disk.files import Clock
from reput.store.log.segment_reader import CHUNK_SIZE
from reput.store.log.segments import Segments
from reput.store.queue.queue_offsets import QueueOffsets, read_queue_offsets
from reput.store.record.layout import SIZE_AND_MAGIC
from reput.store.recovery.recovery import as_it_was_closed
from reput.store.recovery.recreated_queues import RecreatedQueue, read_recreated_queues
from reput.store.state.epochs import durable_end, mark_holds, read_epochs
from reput.store.state.identity import read_store_id
from reput.store.state.store_lock import StoreLock
from reput.store.state.topic_deletions import TopicDeletion, TopicDeletions

__all__ = ["begun_anew", "find_log_end", "force_log"]

PHYSIC_MSG_TIMESTAMP = Struct(">q")


def find_log_end(store_directory: Path, segments: Segments, begin: int | None = None) -> int:
    """Return the commit-log offset where the log ends now.

    Args:
        begin: an earlier end of the same log; nothing below it is looked at. Asking again is then cheap.
    """
    while True:
        known = segments.begins
        try:
            return look_for_log_end(store_directory, segments, begin)
        except OffsetOutOfRange:
            # Retention has taken what was to be looked at, and only takes what the log has gone on behind.
            segments.refresh()
            if segments.begins == known:
                raise
            if begin is not None and begin < segments.offset_min:
                begin = None


def look_for_log_end(store_directory: Path, segments: Segments, begin: int | None) -> int:
    """Return where the log ends now, as `find_log_end` does.

    Raises:
        OffsetOutOfRange: a segment was removed meanwhile.
    """
    if begin is not None and nothing_was_appended(segments, begin):
        return begin
    if begin is None:
        epochs = read_epochs(store_directory, read_store_id(store_directory))
        left = as_it_was_closed(store_directory, segments, epochs, read_queue_offsets(store_directory))
        if left is not None:
            return left.end
    # Loads numpy, which takes longer than a log that has no records to be looked at.
    from reput.store.recovery.log_tail import find_unforced
    from reput.store.recovery.log_walk import LogWalk

    unclean = (store_directory / "abort").exists()
    unforced_from = find_unforced(store_directory, Clock().boot_id())
    walk = LogWalk(segments, unclean=unclean, unforced_from=unforced_from)
    if begin is None:
        snapshot = trusted_snapshot(store_directory, segments)
        if snapshot is not None:
            begin, walk.queue_offsets, walk.store_timestamp = snapshot
        else:
            begin = good_segment(store_directory, segments, unclean)
    if not unclean:
        begin = skim(segments, begin)
    # Without them, what follows damage behind a deletion looks like leftovers of an older log.
    walk.deletions.extend(begun_anew(store_directory, begin))
    while True:
        damaged_at = [extent.begin for extent in walk.walk(begin) if extent.kind == "damage"][:1]
        # Beside a writer, a record may be half written when it is read, and followed by whole ones when those are
        # looked for. Then the first is whole by now.
        if not StoreLock.may_be_held(store_directory):
            return max(walk.log_end, durable_end(read_epochs(store_directory, read_store_id(store_directory))))
        if damaged_at in ([], [begin]):
            return walk.log_end
        (begin,) = damaged_at
        walk = LogWalk(
            segments, unclean=unclean, deletions=begun_anew(store_directory, begin), unforced_from=unforced_from
        )


def begun_anew(store_directory: Path, begin: int) -> list[TopicDeletion | RecreatedQueue]:
    """Return the topics that were deleted and the queues that began anew from *begin* on, in the order of the log."""
    deletions = TopicDeletions(store_directory).following(begin)
    recreated = [part for part in read_recreated_queues(store_directory) if part.commit_log_offset >= begin]
    parts: list[TopicDeletion | RecreatedQueue] = [*deletions, *recreated]
    return sorted(parts, key=attrgetter("commit_log_offset"))


def nothing_was_appended(segments: Segments, log_end: int) -> bool:
    """Tell whether there is still no record where the log ended before: new records overwrite zeros."""
    segment = segments.find(log_end)
    if segment is None:
        return True
    with segments.open(segment) as file:
        return not file.read(log_end, SIZE_AND_MAGIC.size).strip(b"\0")


def trusted_snapshot(store_directory: Path, segments: Segments) -> tuple[int, QueueOffsets, int] | None:
    """Return position, queue offsets and store time of reput's last snapshot, None if the log is not as it was then."""
    snapshot = read_queue_offsets(store_directory)
    if snapshot is None:
        return None
    epochs = read_epochs(store_directory, read_store_id(store_directory))
    if snapshot.epoch != epochs.epoch:
        return None
    for mark in epochs.marks:
        if mark.offset == snapshot.commit_log_offset and mark_holds(segments, mark):
            return mark.offset, QueueOffsets(snapshot.queues), snapshot.store_timestamp
    return None


def good_segment(store_directory: Path, segments: Segments, unclean: bool) -> int:
    """Return the begin of the last segment that may be trusted to begin with a record of the present log."""
    durable_timestamp = checkpoint_timestamp(store_directory) if unclean else None
    from reput.store.recovery.log_walk import LogWalk

    probe = LogWalk(segments)
    try:
        for segment in reversed(segments.list):
            first = probe.one_record(segment.begin)
            if first is None:
                continue
            if durable_timestamp is None or int(first.store_timestamp[0]) <= durable_timestamp:
                return segment.begin
        return segments.offset_min
    finally:
        probe.close()


def checkpoint_timestamp(store_directory: Path) -> int:
    """Return the store time of the last record that is known to be on disk, 0 if none is.

    Source: RocketMQ store, StoreCheckpoint: ``physicMsgTimestamp`` is the long at 0.
    """
    try:
        with (store_directory / "checkpoint").open("rb") as file:
            data = file.read(PHYSIC_MSG_TIMESTAMP.size)
    except FileNotFoundError:
        return 0
    return int(PHYSIC_MSG_TIMESTAMP.unpack(data)[0]) if len(data) == PHYSIC_MSG_TIMESTAMP.size else 0


def skim(segments: Segments, begin: int) -> int:
    """Return a place of the chain of records from *begin* on that lies a few MiB before the chain ends.

    Only sizes, magic and own offsets are looked at: after a clean shutdown nothing before the last records can be torn.
    """
    from reput.store.record.record_columns import locate_records

    at = good = begin
    buffer = memoryview(bytearray(CHUNK_SIZE))
    while (segment := segments.find(at)) is not None:
        with segments.open(segment) as file:
            while True:
                size = file.read_into(at, buffer)
                columns, stop = locate_records(buffer[:size], at, segment.end - at)
                if not len(columns):
                    break
                good = at
                at += columns.end
        if stop is None or stop.kind != "blank":
            return good
        at = segment.end
    return good


def force_log(segments: Segments, begin: int, until: int) -> None:
    """Force the bytes from *begin* to *until* to disk, so that no power cut takes back what a reader then shows.

    A reader may do this, because it changes nothing.

    Raises:
        StoreError: the disk refuses; do not rely on bytes beyond *begin*.
    """
    for segment in segments.list:
        if segment.begin >= until or segment.end <= begin:
            continue
        try:
            with segments.open(segment) as file:
                os.fdatasync(file.descriptor)
        except OffsetOutOfRange:
            # Retention removed it, and removes only segments that are on disk.
            continue
        except OSError as error:
            raise StoreError(
                f"the log could not be forced to disk: path={segment.path} error={error.strerror}"
            ) from None
