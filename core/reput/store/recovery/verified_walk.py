"""VerifiedWalk: the walk over a log of which other processes have verified ranges.

    extents of ranges ──▶ VerifiedWalk ──▶ the extents of the log
                               │
        bytes that no range verified are read here

The walk takes an extent only at the very byte where it would have read next, so what it yields stands for what a
`LogWalk` that read everything would have yielded. Ranges yield proved records and blanks alone: judging the rest takes
all history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reput.store.log.segments import Segments
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.log_walk import Extent, LogWalk, ProvedRecords, texts_of_last

__all__ = ["VerifiedWalk"]


def below(columns: RecordColumns, until: int) -> RecordColumns:
    """Return the records of *columns* that begin below the commit-log offset *until*."""
    count = int(columns.header["commit_log_offset"].astype("i8").searchsorted(until))
    return columns.until(count) if count < len(columns) else columns


class VerifiedWalk(LogWalk):
    """A walk over a log of which others have verified parts, which come in the order of the log."""

    def __init__(
        self,
        segments: Segments,
        extents: Iterable[Extent],
        *,
        unclean: bool,
        unforced_from: int | None = None,
        demand_crc: bool = False,
        accepts: Callable[[ProvedRecords], bool] = lambda proved: True,
    ) -> None:
        """*accepts* tells whether the caller can continue with proved records; others are read here."""
        super().__init__(segments, unclean=unclean, unforced_from=unforced_from, demand_crc=demand_crc)
        self.accepts = accepts
        self.extents = iter(extents)
        self.ahead = next(self.extents, None)

    def pass_to(self, at: int) -> Extent | None:
        """Return the first extent from *at* on that others have verified, None behind the last of them."""
        while self.ahead is not None and self.ahead.begin < at:
            self.ahead = next(self.extents, None)
        return self.ahead

    def takes(self, known: Extent) -> bool:
        """Tell whether an extent stands for what would be read here."""
        if known.columns is None or known.proved is None:
            return True
        # Not all of their texts are at hand, which tell whether a record is torn.
        if self.unforced_from is not None and known.end > self.unforced_from:
            return False
        return not (self.unclean and b"\0" in texts_of_last(known.columns)) and self.accepts(known.proved)

    def next_extent(self, at: int) -> Extent | None:
        """Return what lies at *at*, from what was verified where that is at hand."""
        known = self.pass_to(at)
        if known is not None and known.begin == at and self.takes(known):
            self.log_end = at
            return known
        found = super().next_extent(at)
        if known is None or found is None or found.columns is None or not at < known.begin < found.end:
            return found
        # Others have verified what lies behind, from a place inside of this run on: the next step takes that.
        columns = below(found.columns, known.begin)
        return Extent("records", at, at + columns.end, columns=columns)
