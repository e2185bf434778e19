"""Dump of a store's log, row by row, in its order: every record, and every range that holds none.

A record whose fields its neighbours contradict is damage here, as in a check: its row would show fields that no program
wrote. If later records prove a record wrong, a separate row at the end says so.

Reading only, streaming, also beside a writer: then the dump ends where the log ended when the dump began, and leaves
out the bytes behind, because a writer stores the size word of a record last. Segments that retention removes meanwhile
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from reput.errors import OffsetOutOfRange
from reput.store.disk.files import Clock
from reput.store.log.bad_range import BadRange
from reput.store.log.segments import Segments
from reput.store.record.record import decode_record
from reput.store.recovery.check_fields import FieldsCheck
from reput.store.recovery.log_end import find_log_end
from reput.store.recovery.log_tail import find_unforced, judge_tail
from reput.store.recovery.log_walk import Extent, LogWalk
from reput.store.state.identity import require_store
from reput.store.state.store_lock import StoreLock
from reput_hooks import Record

__all__ = ["dump_log"]


def dump_log(
    store_directory: Path,
    *,
    begin: int | None = None,
    until: int | None = None,
    topic: str | None = None,
    count: int | None = None,
    demand_crc: bool = False,
) -> Iterator[Record | Extent]:
    """Yield the records of a store, and extents of the kinds "blank", "damage" and "stale" where there are none.

    Args:
        begin: any commit-log offset; rows that begin before it are left out, unless it lies in their damage.
        until: commit-log offset; rows that begin there or behind are left out.
        topic: leave out records of other topics, and blanks.
        count: at most this many records.
        demand_crc: a record that does not carry a CRC of the whole record is invalid.

    Raises:
        NotAStore: the directory holds no commit log.
        DamagedStore: the disk cannot read the log.
    """
    require_store(store_directory)
    segments = Segments(store_directory / "commitlog")
    live_end = find_log_end(store_directory, segments) if StoreLock.may_be_held(store_directory) else None
    first = segments.offset_min if begin is None else begin
    last = min(until if until is not None else 1 << 63, live_end if live_end is not None else 1 << 63)
    left = count
    for row in rows(store_directory, segments, first, live_end, demand_crc):
        if isinstance(row, Record):
            if row.commit_log_offset >= last:
                return
            if row.commit_log_offset >= first and topic in (None, row.topic):
                yield row
                left = left - 1 if left is not None else None
                if left == 0:
                    return
        elif row.begin >= last:
            return
        elif row.end > first if row.kind != "blank" else row.begin >= first and topic is None:
            yield row


def rows(
    store_directory: Path, segments: Segments, first: int, live_end: int | None, demand_crc: bool
) -> Iterator[Record | Extent]:
    """Yield everything from the segment on that *first* lies in; up to *live_end*, if the store is being written."""
    if live_end is None:
        unforced_from = find_unforced(store_directory, Clock().boot_id())
        unclean = (store_directory / "abort").exists()
        walk = LogWalk(segments, unclean=unclean, unforced_from=unforced_from, demand_crc=demand_crc)
    else:
        walk = LogWalk(segments, demand_crc=demand_crc)
    tail: Extent | None = None
    begin = good_begin(walk, first)
    if live_end is not None and live_end <= begin:
        return
    fields = GarbledFields(begin)
    # One extent waits for the next: what garbles a record's fields is known from those behind it.
    held: Extent | None = None
    for extent in walk.walk_what_is_left(begin, live_end, lambda _, end: fields.check.pass_damage(end)):
        if extent.kind in ("stale", "tail"):
            tail = extent
            break
        fields.take(extent)
        if held is not None:
            yield from fields.rows(held)
        held = extent
        if live_end is not None and extent.end >= live_end:
            break
    fields.finish()
    if held is not None:
        yield from fields.rows(held)
    yield from fields.left_over()
    if live_end is None:
        judged = judge_tail(store_directory, walk, tail)
        if judged is not None:
            yield judged


class GarbledFields:
    """Puts damage in the place of records that their neighbours contradict, as a check of the log names them."""

    def __init__(self, log_begin: int) -> None:
        """*log_begin*: where the walk begins."""
        self.check = FieldsCheck(log_begin, Clock().now_ms())
        self.seen = 0
        # The faults by the begin of their record, and which of them were reported.
        self.damage: dict[int, BadRange] = {}
        self.named: set[int] = set()

    def take(self, extent: Extent) -> None:
        """Take in what the walk found next."""
        if extent.columns is not None:
            self.check.take(extent.columns)
        elif extent.kind == "damage":
            self.check.pass_damage(extent.end)
        self.learn(self.check.damage[self.seen :])
        self.seen = len(self.check.damage)

    def finish(self) -> None:
        """Have judged what nothing followed."""
        self.learn(self.check.finish())

    def learn(self, damage: Iterable[BadRange]) -> None:
        """Remember the faults, by record."""
        for found in damage:
            self.damage[found.begin] = found

    def rows(self, extent: Extent) -> Iterator[Record | Extent]:
        """Yield the records of an extent, or the extent itself if it has none."""
        if extent.columns is None:
            yield extent
            return
        data = memoryview(extent.columns.data)
        begins = extent.columns.header["commit_log_offset"].tolist()
        for begin, at in zip(begins, extent.columns.position.tolist(), strict=True):
            garbled = self.damage.get(begin)
            if garbled is None:
                yield decode_record(data, at)
            else:
                self.named.add(begin)
                yield damage_of(garbled)

    def left_over(self) -> Iterator[Extent]:
        """Yield what was found out about records after they had been shown."""
        for begin in sorted(self.damage.keys() - self.named):
            yield damage_of(self.damage[begin])


def damage_of(garbled: BadRange) -> Extent:
    """Return a garbled record as an extent."""
    return Extent("damage", garbled.begin, garbled.end, garbled.reason)


def good_begin(walk: LogWalk, commit_log_offset: int) -> int:
    """Return the begin of the last segment at or before this byte that begins with a record; else that of the log."""
    for segment in reversed(walk.segments.list):
        try:
            if segment.begin <= commit_log_offset and walk.one_record(segment.begin) is not None:
                return segment.begin
        except OffsetOutOfRange:
            # Retention took it, and all before it.
            walk.segments.refresh()
            break
    return walk.segments.offset_min
