"""Recovery: what a store's log holds, before its writer goes on.

closed by us and untouched since   → it ends where we left it; nothing is scanned
closed by us, then written by RocketMQ → a new epoch begins where its bytes differ from ours; all behind is scanned
not closed                         → every record behind the last snapshot is checked as a whole; the log ends at
                                     the first that fails, unless it goes on behind (see `log_walk`), and a new
                                     epoch begins there, because views may have seen what is gone
never written by us                → scanned whole; the queues' files say where queues without records go on
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np

from reput.errors import DamagedStore
from reput.store.epochs import Epochs, mark_holds, read_epochs
from reput.store.file_name import file_name, parse_file_name
from reput.store.files import Files
from reput.store.log_walk import LogWalk
from reput.store.queue_offsets import QueueOffsets, read_queue_offsets
from reput.store.sealed_file import read_sealed
from reput.store.segments import Segments
from reput.store.store_lock import Writer

__all__ = ["DamageList", "DamagedRange", "RecoveredLog", "read_damage", "recover", "set_aside_behind"]

UNIT_SIZE = 20
UNIT = np.dtype([("commit_log_offset", ">i8"), ("record_size", ">i4"), ("tags_code", ">i8")])
PRE_BLANK_SIZE = 0x7FFFFFFF


class DamagedRange(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of the log that are no records. *accepted*: the operator knows, and the log goes on behind."""

    begin: int
    end: int
    reason: str
    accepted: bool = False


class DamageList(msgspec.Struct, frozen=True):
    """``reput/damage``: what is known to be damaged, ascending."""

    ranges: list[DamagedRange] = []

    def accepted(self) -> list[tuple[int, int]]:
        """Return the accepted ranges as (begin, end)."""
        return [(damaged.begin, damaged.end) for damaged in self.ranges if damaged.accepted]


class RecoveredLog(msgspec.Struct):
    """What `recover` found. *tail_end*: where the torn bytes behind *end* end, *end* if there are none."""

    end: int
    tail_end: int
    tail_reason: str
    queue_offsets: QueueOffsets
    store_timestamp: int
    ordinal: int
    epochs: Epochs
    damage: DamageList


def read_damage(store_directory: Path) -> DamageList:
    """Return the damaged ranges that are known of a store."""
    return read_sealed(store_directory / "reput" / "damage", DamageList) or DamageList()


def recover(store_directory: Path, segments: Segments, store_id: str, now_ms: int) -> RecoveredLog:
    """Find where the log of a store ends and what its next queue offsets are. Reads only.

    Raises:
        DamagedStore: bytes before the end are no records, and no operator has accepted that.
    """
    epochs = read_epochs(store_directory, store_id)
    snapshot = read_queue_offsets(store_directory)
    ours_before = (store_directory / "reput" / "epochs").exists()
    aborted = (store_directory / "abort").exists()
    by_us = aborted and abort_is_ours(store_directory)
    begin: int | None = None
    walk = LogWalk(segments, unclean=aborted)
    if snapshot is not None and snapshot.epoch == epochs.epoch:
        mark = next((mark for mark in epochs.marks if mark.offset == snapshot.commit_log_offset), None)
        if mark is not None and mark_holds(segments, mark):
            begin = snapshot.commit_log_offset
            walk = LogWalk(
                segments,
                queue_offsets=QueueOffsets(snapshot.queues),
                store_timestamp=snapshot.store_timestamp,
                record_count=snapshot.ordinal,
                unclean=aborted,
            )
    known = {(damaged.begin, damaged.end): damaged for damaged in read_damage(store_directory).ranges}
    damage = [damaged for damaged in known.values() if begin is not None and damaged.end <= begin]
    tail_end, tail_reason = 0, ""
    for extent in walk.walk(begin):
        if extent.kind == "damage":
            damage.append(
                known.get((extent.begin, extent.end)) or DamagedRange(extent.begin, extent.end, extent.reason)
            )
        elif extent.kind == "tail":
            tail_end, tail_reason = extent.end, extent.reason
    end = walk.log_end
    refuse_unaccepted(damage, store_directory)
    if begin is None:
        raise_from_queue_files(store_directory, walk.queue_offsets, end)
    if ours_before:
        if aborted and by_us:
            epochs = epochs.begin(end, now_ms)
        elif begin is None or end != epochs.clean_end or aborted:
            held = [mark.offset for mark in epochs.marks if mark_holds(segments, mark)]
            epochs = epochs.begin(max(held, default=0), now_ms)
    return RecoveredLog(
        end,
        max(tail_end, end),
        tail_reason,
        walk.queue_offsets,
        walk.store_timestamp,
        walk.record_count,
        epochs,
        DamageList(damage),
    )


def abort_is_ours(store_directory: Path) -> bool:
    """Tell whether ``abort`` was left by the reput that wrote last, and not by a RocketMQ since."""
    try:
        writer = msgspec.json.decode((store_directory / "reput" / "writer.json").read_bytes(), type=Writer)
        return (store_directory / "abort").read_text() == str(writer.pid)
    except (OSError, msgspec.MsgspecError):
        return False


def refuse_unaccepted(damage: list[DamagedRange], store_directory: Path) -> None:
    """Leave the decision about damage to the operator."""
    for damaged in damage:
        if not damaged.accepted:
            raise DamagedStore(
                f"the log is damaged before its end: from={damaged.begin} until={damaged.end} "
                f"reason={damaged.reason!r} store={store_directory}",
                f"See `reput check`; then `reput repair --accept {damaged.begin}..{damaged.end}` to go on behind it, "
                f"or `--cut-at {damaged.begin}`.",
            )


def raise_from_queue_files(store_directory: Path, queue_offsets: QueueOffsets, log_end: int) -> None:
    """Let queues of which the log has no record go on where their files end; the log may have been trimmed."""
    root = store_directory / "consumequeue"
    if not root.is_dir():
        return
    for topic_directory in os.scandir(root):
        if not topic_directory.is_dir():
            continue
        for queue_directory in os.scandir(topic_directory.path):
            if not queue_directory.name.isascii() or not queue_directory.name.isdigit():
                continue
            queue_id = int(queue_directory.name)
            if queue_offsets.next_offset(topic_directory.name, queue_id) == 0:
                next_offset = end_of_queue_files(Path(queue_directory.path), log_end)
                if next_offset:
                    queue_offsets.raise_to(topic_directory.name, queue_id, next_offset)


def end_of_queue_files(directory: Path, log_end: int) -> int:
    """Return the queue offset behind the last unit of a queue that points below *log_end*."""
    names = sorted(name for name in os.listdir(directory) if parse_file_name(name) is not None)
    for name in reversed(names):
        data = (directory / name).read_bytes()
        units = np.frombuffer(data, UNIT, len(data) // UNIT_SIZE)
        good = (units["record_size"] > 0) & (units["commit_log_offset"] + units["record_size"] <= log_end)
        good &= units["record_size"] != PRE_BLANK_SIZE
        if good.any():
            return int(name) // UNIT_SIZE + int(np.flatnonzero(good)[-1]) + 1
    return 0


def set_aside_behind(store_directory: Path, segments: Segments, recovered: RecoveredLog, files: Files) -> None:
    """Make room behind the end of the log, and lose no byte of what lies there.

    A torn tail is copied to ``reput/cut/`` and zeroed; a later segment without a byte in it is removed, as one that was
    made ahead; one with bytes is moved to ``reput/cut/``.
    """
    cut = store_directory / "reput" / "cut"
    end = recovered.end
    if recovered.tail_end > end:
        segment = segments.find(end)
        if segment is not None:
            size = min(recovered.tail_end, segment.begin + segment.size) - end
            files.make_directory(cut)
            files.replace(cut / f"{file_name(end)}-{size}", segments.read(end, size))
            descriptor = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, bytes(size), end - segment.begin)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    last = segments.list[-1]
    if last.begin + last.size < last.end and end >= last.begin:
        # Cut short, or its making was interrupted: the mapping needs the full size.
        os.truncate(last.path, segments.segment_size)
    for entry in sorted(os.scandir(store_directory / "commitlog"), key=lambda entry: entry.name, reverse=True):
        begin = parse_file_name(entry.name)
        if begin is None or begin <= end - end % segments.segment_size:
            continue
        if is_zero(Path(entry.path)):
            files.remove(Path(entry.path))
        else:
            files.make_directory(cut)
            os.rename(entry.path, cut / entry.name)


def is_zero(path: Path) -> bool:
    """Tell whether a file has no byte that is not zero."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, size = 0, os.fstat(descriptor).st_size
        while at < size:
            try:
                at = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:
                return True
            data = os.pread(descriptor, 1 << 20, at)
            if data.strip(b"\0"):
                return False
            at += len(data)
        return True
    finally:
        os.close(descriptor)
