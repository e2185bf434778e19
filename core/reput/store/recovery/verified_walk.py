"""Verifying a log in parallel: `verify_range` reads, in any process; `VerifiedWalk` judges, in one.

    ranges ──▶ verify_range, anywhere ──▶ extents without bodies ──▶ VerifiedWalk ──▶ the extents of the log
                                                                          │
                                                   bytes that no range verified are read here

The walk takes an extent only at the very byte where it would have read next, so what it yields is what a `LogWalk` that
read everything would have yielded. Ranges yield plain records and blanks alone: judging the rest takes all history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from reput.errors import OffsetOutOfRange
from reput.store.log.log_scan import LogScan
from reput.store.log.segments import Segments
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.log_walk import Extent, LogWalk
from reput.store.state.recorded_settings import read_delay_history

__all__ = ["VerifiedWalk", "verify_range"]


def verify_range(store_directory: Path, message_delay_level: str, begin: int, until: int) -> Iterator[Extent]:
    """Verify the records that begin in [begin, until), each as a whole, and yield them up to the first invalid one.

    *begin* is where a record or a blank begins. Reads only, and needs only the store's files. The extents have no
    bodies, and can be pickled.
    """
    walk = LogWalk(Segments(store_directory / "commitlog"))
    scan = LogScan(store_directory, delay_history=read_delay_history(store_directory, message_delay_level))
    at = begin
    try:
        while at < until:
            try:
                found = walk.readable_extent(at)
            except OffsetOutOfRange:
                # Retention took it. The walk finds out what that means.
                return
            if isinstance(found, str):
                return
            if found.columns is not None:
                columns = below(found.columns, until)
                found = Extent(
                    "records",
                    at,
                    at + columns.end,
                    columns=columns.without_bodies(),
                    requests=scan.requests(columns),
                )
            yield found
            at = found.end
    finally:
        walk.close()


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
    ) -> None:
        super().__init__(segments, unclean=unclean, unforced_from=unforced_from, demand_crc=demand_crc)
        self.extents = iter(extents)
        self.ahead = next(self.extents, None)

    def pass_to(self, at: int) -> Extent | None:
        """Return the first extent from *at* on that others have verified, None behind the last of them."""
        while self.ahead is not None and self.ahead.begin < at:
            self.ahead = next(self.extents, None)
        return self.ahead

    def next_extent(self, at: int) -> Extent | None:
        """Return what lies at *at*, from what was verified where that is at hand."""
        known = self.pass_to(at)
        if known is not None and known.begin == at:
            self.log_end = at
            return known
        found = super().next_extent(at)
        if known is None or found is None or found.columns is None or found.end <= known.begin:
            return found
        # Others have verified what lies behind, from a place inside of this run on: the next step takes that.
        columns = below(found.columns, known.begin)
        return Extent("records", at, at + columns.end, columns=columns)
