"""Retention of a store that no process has open: which segments would go, and their removal under the store's lock.

The views follow when the store is opened: each dispatcher then learns where the log begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reput.settings import Settings
from reput.store.disk.disk_space import DiskLevels, DiskSpace
from reput.store.disk.files import Clock, Files
from reput.store.log.segments import Segments
from reput.store.recovery.log_end import find_log_end
from reput.store.retention.retention_plan import SegmentFate, Situation, kept_segments, plan_retention
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors
from reput.store.state.store_lock import StoreLock

__all__ = ["clean_store", "plan_cleaning"]


def plan_cleaning(
    store_directory: Path,
    settings: Settings,
    *,
    cursors: Mapping[str, int | None] | None = None,
    clock: Clock | None = None,
    disk_space: DiskSpace | None = None,
) -> list[SegmentFate]:
    """Return what a request would do with each segment now. Reads only, also beside a writer.

    Args:
        cursors: up to where the view of each enabled dispatcher is durable; None: as noted when the store was open.

    Raises:
        NotAStore: the directory holds no commit log.
        DamagedStore: reput's notes there are not readable.
    """
    segments = Segments(store_directory / "commitlog")
    clock = clock or Clock()
    folders = [store_directory / "commitlog", store_directory / "consumequeue"]
    used = (disk_space or DiskSpace()).used_percent(folders)
    situation = Situation(
        clock.now_ms(),
        find_log_end(store_directory, segments),
        DiskLevels.of(settings).level(used),
        used,
        read_dispatcher_cursors(store_directory) if cursors is None else cursors,
        asked=True,
    )
    return list(plan_retention(kept_segments(segments.list), settings, situation))


def clean_store(
    store_directory: Path,
    settings: Settings,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    disk_space: DiskSpace | None = None,
) -> list[SegmentFate]:
    """Remove the segments that may go, oldest first; return what became of each segment.

    Raises:
        StoreLocked: another process writes the store; the text names it.
        OSError: a segment cannot be removed; those before it are gone.
    """
    files = files or Files()
    lock = StoreLock(store_directory)
    try:
        fates = plan_cleaning(store_directory, settings, clock=clock, disk_space=disk_space)
        for fate in fates:
            if fate.goes:
                files.remove(fate.segment.path)
                # One by one: a log has no holes, whatever happens in between.
                files.force_directory(fate.segment.path.parent)
        return fates
    finally:
        lock.close()
