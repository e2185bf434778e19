"""HeldRecords: single puts that are published together.

The kernel has the same class, into which its puts go without a call of Python.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from reput.kernel import kernel
from reput.store.writer.publisher import AppendedRecords, merge_appended

if TYPE_CHECKING:
    from reput.kernel import KernelHeldRecords
    from reput.ring import RingWriter

__all__ = ["HeldRecords", "held_records"]

# From so many held records on, those of the next milliseconds are held as well, until the first one is so many of them
# old. A dispatcher rests longer than that, so it finds them when it goes on, and need not ask.
HOLD_ON_MIN = 16
HOLD_ON_MS = 3


class HeldRecords:
    """Records of consecutive single puts, in the order of the log.

    Attributes:
        end: where the record ends that another one may be held behind; -1: none may.
        store_timestamp: of that record, ms.
        is_open: whether records are held at all.
        is_watched: the `ReleaseService` checks by itself for held records.
    """

    __slots__ = ("_records", "_segment_size", "_since", "end", "is_open", "is_watched", "store_timestamp")

    def __init__(self, segment_size: int) -> None:
        self._segment_size = segment_size
        self._records: list[AppendedRecords] = []
        self.end = self.store_timestamp = -1
        # Store time of the first record.
        self._since = -1
        self.is_open = True
        self.is_watched = False

    def __len__(self) -> int:
        return len(self._records)

    def may_follow(self, store_timestamp: int) -> bool:
        """Tell whether a record that is stored at this time follows soon enough to be held."""
        return store_timestamp == self.store_timestamp or (
            len(self._records) >= HOLD_ON_MIN and store_timestamp - self._since < HOLD_ON_MS
        )

    def add(self, records: AppendedRecords) -> int:
        """Hold *records*, which have one row, and return how many are held."""
        held = self._records
        if not held:
            self._since = records.store_timestamp
        self.store_timestamp = records.store_timestamp
        held.append(records)
        return len(held)

    def pieces(self) -> list[AppendedRecords]:
        """Return what is held, merged for each segment: in one piece a blank may lie only before the first record."""
        held, segment_size = self._records, self._segment_size
        # One check for all: segments end rarely.
        if held[0].begin // segment_size == (held[-1].end - 1) // segment_size:
            return [merge_appended(held)]
        of_segments = groupby(held, lambda records: (records.end - 1) // segment_size)
        return [merge_appended(list(in_one_segment)) for _, in_one_segment in of_segments]

    def clear(self) -> None:
        """Hold nothing any more."""
        self._records = []


def held_records(
    ring: RingWriter, segment_size: int, count_max: int, look_every: int
) -> HeldRecords | KernelHeldRecords:
    """Return the kernel's object, or without a kernel this module's.

    Args:
        ring: its parked readers want the records at once.
        count_max: at so many records the kernel's puts ask for their publication.
        look_every: after so many puts of the kernel it looks for parked readers.
    """
    found = kernel()
    if found is None:
        return HeldRecords(segment_size)
    return ring.kernel_held(found, AppendedRecords, segment_size, count_max, look_every, HOLD_ON_MIN, HOLD_ON_MS)
