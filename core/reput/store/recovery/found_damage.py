"""FoundDamage: places of the log where readers came upon damage, in ``reput/met_damage.jsonl``.

A store that was closed is opened without another look at its log, so who meets damage that came since is who reads the
place. In the writer's process that is written down once, for `reput status` to tell; a program that only reads a store
changes nothing in it, and keeps the error to itself.

Each place is looked at again before it is told of: a disk may read it by now, and a copy of the segment may have been
put back. What an operator has accepted, or cut, is told as that, or no more.
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

# More than a person looks at; who has so much of it runs `reput check`.
NOTED_MAX = 1000

logger = logging.getLogger(__name__)


class FoundDamage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record at *commit_log_offset* was read at *timestamp* (ms since 1970 UTC), and is none for this *reason*.

    *record_size*: as a view knows it; None: nobody does.
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
        met: when a reader came upon them, ms since 1970 UTC; None: an opening or a repair found them.
    """

    begin: int
    end: int | None
    reason: str
    accepted: bool
    met: int | None


class FoundDamages:
    """What the readers of one process came upon. Any thread may tell."""

    def __init__(self, store_directory: Path) -> None:
        self.lines = JsonLines(store_directory / "reput" / "met_damage.jsonl", FoundDamage)
        self.lock = threading.Lock()
        self.noted: set[int] | None = None

    def note(self, error: DamagedStore) -> None:
        """Keep what *error* says, if it names a place of the log that was not met before."""
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
                logger.error("a reader came upon damage of the log: %s", error)
                self.lines.append(FoundDamage(time.time_ns() // 1_000_000, commit_log_offset, record_size, str(error)))
            except (OSError, DamagedStore) as failure:
                # Whoever reads is told of the damage of the log, which is the worse.
                logger.error("damage that was met cannot be written down: %s", failure)


def known_damage(store_directory: Path, log_end: int | None) -> list[DamageRow]:
    """Return what is known to be damaged of a store's log up to *log_end*, in its order. Reads of it what was met.

    Raises:
        DamagedStore: reput's own files that say so cannot be read.
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
