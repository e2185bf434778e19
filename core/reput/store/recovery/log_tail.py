"""The bytes behind the end of a log: stale leftovers, or records that were lost.

Three places outside the log tell how far a cleanly closed log went:

    reput/epochs   where reput closed it, up to where it was known to be on disk, or where an operator cut it
    checkpoint     RocketMQ: the store time of the last record that reached its queue; since 5.1 also where the last
                   record began that its recovery found
    consumequeue/  units that point behind the end; a recovery leaves old ones there, so they count only where nothing
                   else decides

If one of them knows of records behind the last readable one, the bytes there are *damage*. Otherwise it is *stale*:
RocketMQ cuts without zeroing. After a crash only readable records count, so torn ones are stale.

A log that was not closed may be unreadable in the middle for two reasons that look the same: damage, and a power cut
that lost some of the pages which were not yet forced. Two facts tell them apart:

    where     the log was forced up to the last mark in ``reput/epochs``. An unreadable range before it is damage
    whether   ``reput/writer.json`` names the boot of the machine that the writer ran in. During that boot no power was
              cut, and the kernel has every byte that was written: an unreadable range is damage

A range is therefore a torn tail only behind the last mark and after another boot; the records that follow it were never
confirmed as durable. It is saved, not deleted. If RocketMQ wrote the store last, neither fact is known and the range
counts as damage.

Source: RocketMQ store, CommitLog.recoverNormally and StoreCheckpoint.
"""

from __future__ import annotations

from pathlib import Path

from reput.errors import OffsetOutOfRange
from reput.store.disk.sealed_file import read_sealed
from reput.store.log.segments import Segments
from reput.store.record.layout import STORE_TIMESTAMP_END_MAX
from reput.store.record.record import store_timestamp_of
from reput.store.recovery.log_walk import Extent, LogWalk
from reput.store.recovery.queue_file_ends import furthest_unit_end
from reput.store.state.epochs import Epochs, durable_end
from reput.store.state.store_checkpoint import read_checkpoint
from reput.store.state.store_lock import is_claimed, read_writer

__all__ = ["find_unforced", "judge_tail", "known_durable"]


def find_unforced(store_directory: Path, boot_id: str | None) -> int | None:
    """Return from which offset on a power cut may have lost bytes of the log; None: from none, or unknown.

    Args:
        boot_id: of the machine's present boot.
    """
    if not (store_directory / "abort").exists() or not is_claimed(store_directory):
        return None
    writer = read_writer(store_directory)
    if boot_id is None or writer is None or writer.boot_id in (None, boot_id):
        return None
    epochs = read_sealed(store_directory / "reput" / "epochs", Epochs)
    return known_durable(epochs) if epochs is not None else None


def known_durable(epochs: Epochs) -> int:
    """Return up to where the log is known to have been on disk."""
    return max(durable_end(epochs), epochs.history[-1].start_offset)


def judge_tail(store_directory: Path, walk: LogWalk, tail: Extent | None) -> Extent | None:
    """Return the bytes behind the end of the log as an extent of the kind "damage" or "stale", None if there are none.

    Args:
        walk: over that log, at its end.
        tail: the extent it found there; None if there are only zeros.
    """
    log_end = walk.log_end
    lost_until = end_of_what_was_lost(store_directory, walk, tail)
    if lost_until is not None:
        reason = tail.reason if tail is not None else "the log ends before where it was durable"
        return Extent("damage", log_end, max(lost_until, tail.end if tail is not None else log_end), reason)
    return Extent("stale", log_end, tail.end, tail.reason) if tail is not None else None


def end_of_what_was_lost(store_directory: Path, walk: LogWalk, tail: Extent | None) -> int | None:
    """Return up to where the log went when it was closed cleanly, None if that was not behind its end now."""
    log_end = walk.log_end
    epochs = read_sealed(store_directory / "reput" / "epochs", Epochs)
    if epochs is not None:
        durable = durable_end(epochs)
        if durable > log_end:
            return durable
        cut_here = epochs.epoch > 1 and epochs.history[-1].start_offset == log_end
        if cut_here or epochs.clean_end == log_end:
            return None
    if (store_directory / "abort").exists():
        return None
    checkpoint = read_checkpoint(store_directory)
    dispatched = checkpoint.logics_msg_timestamp
    if dispatched > walk.store_timestamp:
        return furthest_unit_end(store_directory, log_end)
    recovered_here = checkpoint.confirm_phy_offset and checkpoint.confirm_phy_offset == walk.last_record_offset
    if tail is None or recovered_here:
        return None
    if dispatched and torn_timestamp(walk.segments, log_end) != dispatched:
        return None
    # Nothing is known, or the torn record and the one before it have the store time of the last dispatched record.
    furthest = furthest_unit_end(store_directory, log_end)
    return furthest if furthest > log_end else None


def torn_timestamp(segments: Segments, log_end: int) -> int | None:
    """Return the store time of the torn record that begins at *log_end*; None if its head is missing."""
    try:
        return store_timestamp_of(segments.read(log_end, STORE_TIMESTAMP_END_MAX))
    except OffsetOutOfRange:
        return None
