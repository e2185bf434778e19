"""An operator's two repairs of a damaged log: to end it before the damage, or to continue behind it.

`plan_cut` and `plan_accept` tell what would be lost; `cut` and `accept` do it. Nothing is deleted: cut bytes are kept
below ``reput/cut/``; accepted damage stays in the log, is recorded in ``reput/damage``, and every later check lists
it. Views learn of a cut by its epoch, and forget what was behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from reput.errors import ConfigError
from reput.store.disk.files import Clock, Files
from reput.store.disk.sealed_file import seal
from reput.store.log.force_log import force_log
from reput.store.log.segments import Segments
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.cut_log import cut_behind
from reput.store.recovery.damage_list import DamagedRange, DamageList, read_damage
from reput.store.recovery.log_tail import find_unforced, judge_tail
from reput.store.recovery.log_walk import Extent, LogWalk
from reput.store.state.epochs import make_mark, read_epochs
from reput.store.state.identity import read_identity, read_store_id, require_store
from reput.store.state.store_lock import StoreLock

__all__ = ["AcceptPlan", "CutPlan", "LostQueue", "accept", "cut", "plan_accept", "plan_cut"]

Progress = Callable[[int], None]


class LostQueue(msgspec.Struct):
    """The records of one queue that would go: *records* of them, in [queue_offset, queue_offset_end)."""

    topic: str
    queue_id: int
    records: int
    queue_offset: int
    queue_offset_end: int


class CutPlan(msgspec.Struct):
    """The effect of a cut.

    Attributes:
        cut_at: where the log ends then; the next record goes there.
        until: where the removed bytes end.
        records: whole, readable records among them.
        damage: unreadable ranges among them.
        store_timestamp_min, store_timestamp_max: of these records, ms; None without any.
        queues: names of the queues that the records belong to.
        kept: files that hold the bytes cut off; empty until the cut is made.
    """

    cut_at: int
    until: int
    records: int = 0
    damage: list[DamagedRange] = []
    store_timestamp_min: int | None = None
    store_timestamp_max: int | None = None
    queues: list[LostQueue] = []
    kept: list[Path] = []

    def add(self, extent: Extent) -> None:
        """Add what *extent* has from `cut_at` on."""
        self.until = max(self.until, extent.end)
        if extent.kind == "damage":
            self.damage.append(DamagedRange(extent.begin, extent.end, extent.reason))
        columns = extent.columns
        if columns is None:
            return
        first = int(np.searchsorted(columns.header["commit_log_offset"], self.cut_at))
        times = columns.store_timestamp[first:]
        self.records += len(times)
        self.store_timestamp_min = min(self.store_timestamp_min or int(times.min()), int(times.min()))
        self.store_timestamp_max = max(self.store_timestamp_max or 0, int(times.max()))
        self.add_queues(columns, first)

    def add_queues(self, columns: RecordColumns, first: int) -> None:
        """Add the queues of the records from number *first* on."""
        known = {(queue.topic, queue.queue_id): queue for queue in self.queues}
        names = zip(columns.topics(), columns.header["queue_id"].tolist(), strict=True)
        for (topic, queue_id), queue_offset in list(zip(names, columns.header["queue_offset"].tolist(), strict=True))[
            first:
        ]:
            name = (topic.decode("utf-8", "replace"), queue_id)
            queue = known.get(name)
            if queue is None:
                queue = known[name] = LostQueue(*name, 0, queue_offset, queue_offset)
            queue.records += 1
            queue.queue_offset_end = max(queue.queue_offset_end, queue_offset + 1)
        self.queues = [known[name] for name in sorted(known)]


class AcceptPlan(msgspec.Struct, frozen=True):
    """The effect of accepting a damaged range: its bytes are given up, *records_behind* it stay readable."""

    begin: int
    end: int
    reason: str
    records_behind: int


def plan_cut(
    store_directory: Path, cut_at: int, progress: Progress | None = None, *, demand_crc: bool = False
) -> CutPlan:
    """Return what a cut at *cut_at* would remove. Changes nothing.

    Args:
        cut_at: commit-log offset at which a record, a blank or a damaged range begins, or the log ends.
        progress: called now and then with how many bytes of the log were read.
        demand_crc: a record that does not carry a CRC of the whole record is invalid.

    Raises:
        NotAStore: the directory holds no commit log.
        ConfigError: *cut_at* is inside a record, blank or damaged range, or outside the log.
    """
    require_store(store_directory)
    segments = Segments(store_directory / "commitlog")
    if read_identity(store_directory) is None and cut_at == segments.offset_min:
        raise ConfigError(
            f"the cut would remove the whole log: cut_at={cut_at} offset_min={segments.offset_min}",
            "Move the directory away instead.",
        )
    plan = CutPlan(cut_at, cut_at)
    reached = segments.offset_min
    for extent in extents(store_directory, segments, progress, demand_crc):
        reached = extent.end
        if extent.begin < cut_at < extent.end:
            refuse_inside(extent, cut_at)
        if extent.end > cut_at:
            plan.add(extent)
    if not segments.offset_min <= cut_at <= reached:
        raise ConfigError(
            f"the log does not contain that offset: cut_at={cut_at} offset_min={segments.offset_min} log_end={reached}"
        )
    return plan


def refuse_inside(extent: Extent, cut_at: int) -> None:
    """Refuse to cut a record, a blank or a damaged range in two."""
    begin, end = extent.begin, extent.end
    if extent.columns is not None:
        begins = extent.columns.header["commit_log_offset"].astype(np.int64)
        number = int(np.searchsorted(begins, cut_at, "right")) - 1
        begin = int(begins[number])
        end = begin + int(extent.columns.header["record_size"][number])
    if begin != cut_at:
        kind = "record" if extent.columns is not None else f"{extent.kind} range"
        raise ConfigError(
            f"a {kind} goes on there: cut_at={cut_at} from={begin} until={end}", f"Cut at {begin}, or at {end}."
        )


def cut(
    store_directory: Path,
    cut_at: int,
    progress: Progress | None = None,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    demand_crc: bool = False,
) -> CutPlan:
    """End the log at *cut_at*, keep a copy of every byte behind it, and return what was cut.

    A kill at any point leaves a store that can be cut again.

    Raises:
        StoreLocked: another process writes the store.
        NotAStore, ConfigError: as `plan_cut`.
    """
    require_store(store_directory)
    files, clock = files or Files(), clock or Clock()
    lock = StoreLock(store_directory)
    try:
        plan = plan_cut(store_directory, cut_at, progress, demand_crc=demand_crc)
        own = store_directory / "reput"
        files.make_directory(own)
        # First the epoch: whatever of the cut is done, no view keeps what was behind it.
        segments = Segments(store_directory / "commitlog")
        # What a killed writer did not force lies in the system's pages only, and the mark says that it is on disk.
        force_log(files, segments, segments.offset_min, cut_at)
        epochs = read_epochs(store_directory, read_store_id(store_directory)).begin(cut_at, clock.now_ms())
        # The mark lets the next opening see that the log is the same up to the cut, whatever else retention took.
        epochs = epochs.with_mark(make_mark(segments, cut_at), clean=False)
        files.replace(own / "epochs", epochs.seal())
        known = read_damage(store_directory)
        left = [damaged for damaged in known.ranges if damaged.end <= cut_at]
        if left != known.ranges:
            files.replace(own / "damage", seal(DamageList(left)))
        plan.kept = cut_behind(store_directory, segments, cut_at, files)
        return plan
    finally:
        lock.close()


def plan_accept(
    store_directory: Path, begin: int, end: int, progress: Progress | None = None, *, demand_crc: bool = False
) -> AcceptPlan:
    """Return what it means to accept the damaged range [begin, end). Changes nothing.

    Raises:
        NotAStore: the directory holds no commit log.
        ConfigError: it is not a damaged range, or the log does not continue behind it.
    """
    require_store(store_directory)
    found: list[Extent] = []
    reason: str | None = None
    records_behind = 0
    for extent in extents(store_directory, Segments(store_directory / "commitlog"), progress, demand_crc):
        if extent.kind == "damage":
            found.append(extent)
            if (extent.begin, extent.end) == (begin, end):
                reason = extent.reason
        elif extent.columns is not None and reason is not None:
            records_behind += len(extent.columns)
    if reason is None:
        ranges = ", ".join(f"{extent.begin}..{extent.end}" for extent in found) or "none"
        raise ConfigError(f"that is not a damaged range: from={begin} until={end} damaged={ranges}")
    if not records_behind:
        raise ConfigError(
            f"the log does not continue after that range: from={begin} until={end}", f"Use --cut-at {begin}."
        )
    return AcceptPlan(begin, end, reason, records_behind)


def accept(
    store_directory: Path,
    begin: int,
    end: int,
    progress: Progress | None = None,
    *,
    files: Files | None = None,
    demand_crc: bool = False,
) -> AcceptPlan:
    """Record that the damaged range [begin, end) is known: the store may be written again, behind the log's end.

    Raises:
        StoreLocked: another process writes the store.
        NotAStore, ConfigError: as `plan_accept`.
    """
    require_store(store_directory)
    files = files or Files()
    lock = StoreLock(store_directory)
    try:
        plan = plan_accept(store_directory, begin, end, progress, demand_crc=demand_crc)
        files.make_directory(store_directory / "reput")
        others = [known for known in read_damage(store_directory).ranges if (known.begin, known.end) != (begin, end)]
        ranges = sorted([*others, DamagedRange(begin, end, plan.reason, True)], key=lambda damaged: damaged.begin)
        files.replace(store_directory / "reput" / "damage", seal(DamageList(ranges)))
        return plan
    finally:
        lock.close()


def extents(store_directory: Path, segments: Segments, progress: Progress | None, demand_crc: bool) -> Iterator[Extent]:
    """Yield what the whole log consists of, its end judged."""
    unforced_from = find_unforced(store_directory, Clock().boot_id())
    unclean = (store_directory / "abort").exists()
    walk = LogWalk(segments, unclean=unclean, unforced_from=unforced_from, demand_crc=demand_crc)
    tail: Extent | None = None
    for extent in walk.walk():
        if progress is not None:
            progress(extent.end - segments.offset_min)
        if extent.kind in ("stale", "tail"):
            tail = extent
        else:
            yield extent
    judged = judge_tail(store_directory, walk, tail)
    if judged is not None:
        yield judged
