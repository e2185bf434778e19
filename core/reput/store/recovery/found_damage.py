"""FoundDamage: places of the log where readers found damage, in ``reput/met_damage.jsonl``.

Opening a cleanly closed store does not read its log again, so damage that came since is found by the reader of the
place. The writer's process records each place once, for `reput status`. A program that only reads a store changes
nothing in it and records nothing.

Each place is read again before it is shown: the disk may read it by now, or a copy of the segment may have been put
back. Places that an operator has accepted are shown as accepted, and those that were cut are not shown.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import msgspec

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.disk.json_lines import JsonLines
from reput.store.log.segments import Segments
from reput.store.record.layout import SIZE
from reput.store.record.record import body_crc, decode_record
from reput.store.recovery.damage_list import read_damage

__all__ = ["DamageRow", "FoundDamage", "FoundDamages", "is_whole", "known_damage"]

# More than a person looks at; `reput check` lists the rest.
NOTED_MAX = 1000

logger = logging.getLogger(__name__)


class FoundDamage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record at *commit_log_offset* was read at *timestamp* (ms since 1970 UTC), and is invalid for this *reason*.

    *record_size*: according to a view; None: unknown.
    """

    timestamp: int
    commit_log_offset: int
    record_size: int | None
    reason: str


class DamageRow(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "until"}):
    """Bytes [begin, end) of the log that are known to be damaged, as `reput status` shows them.

    Attributes:
        end: None where it is not known.
        accepted: an operator has accepted them, and reads pass them over.
        met: when a reader found them, ms since 1970 UTC; None: an opening or a repair found them.
    """

    begin: int
    end: int | None
    reason: str
    accepted: bool
    met: int | None


class FoundDamages:
    """The damage that readers of one process found. Any thread may add to it."""

    def __init__(self, store_directory: Path) -> None:
        self.lines = JsonLines(store_directory / "reput" / "met_damage.jsonl", FoundDamage)
        self.lock = threading.Lock()
        self.noted: set[int] | None = None

    def note(self, error: DamagedStore) -> None:
        """Record *error* if it names a place of the log that is not recorded yet."""
        place = error.place
        if place is None:
            return
        commit_log_offset, record_size = place
        with self.lock:
            try:
                if self.noted is None:
                    self.noted = {met.commit_log_offset for met in self.lines.read()}
                if commit_log_offset in self.noted or len(self.noted) >= NOTED_MAX:
                    return
                self.noted.add(commit_log_offset)
                logger.error("a reader found damage in the log: %s", error)
                self.lines.append(FoundDamage(time.time_ns() // 1_000_000, commit_log_offset, record_size, str(error)))
            except (OSError, DamagedStore) as failure:
                # The caller gets the damage of the log, which is the worse error.
                logger.error("damage of the log could not be recorded: %s", failure)


def known_damage(store_directory: Path, log_end: int | None) -> list[DamageRow]:
    """Return the known damage of a store's log up to *log_end*, in its order. Reads the found places again.

    Raises:
        DamagedStore: reput's own files that record the damage cannot be read.
    """
    known = read_damage(store_directory).ranges
    rows = [DamageRow(part.begin, part.end, part.reason, part.accepted, None) for part in known]
    met = {part.commit_log_offset: part for part in FoundDamages(store_directory).lines.read()}
    if met:
        segments = Segments(store_directory / "commitlog")
        for begin, part in met.items():
            behind = log_end is not None and begin >= log_end
            if behind or begin < segments.offset_min or any(row.begin <= begin < (row.end or 0) for row in rows):
                continue
            if not is_whole(segments, begin, part.record_size):
                end = None if part.record_size is None else begin + part.record_size
                rows.append(DamageRow(begin, end, part.reason, False, part.timestamp))
    return sorted(rows, key=lambda row: row.begin)


def is_whole(segments: Segments, commit_log_offset: int, record_size: int | None = None) -> bool:
    """Tell whether a record of this size, or of any, begins at this offset, and has the body that its CRC is of."""
    try:
        size = int.from_bytes(segments.read(commit_log_offset, SIZE.size), "big")
        record = decode_record(segments.read(commit_log_offset, size))
    except (DamagedStore, OffsetOutOfRange):
        return False
    if record.commit_log_offset != commit_log_offset or record_size not in (None, record.record_size):
        return False
    return not record.body or body_crc(record.body) == record.body_crc
