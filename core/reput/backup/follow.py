"""follow_store: ships the end of a log every second, as long as it is told to.

Each time the log has grown, a backup is made of it. Of the backups of one run only the first of each hour and the last
stay: any offset in between can be restored from a later one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from reput.backup.backup import BackupReport, Backups, require_outside
from reput.backup.layout import manifest_name
from reput.backup.retention import Keep, Removals
from reput.backup.target import BackupTarget
from reput.settings import Settings
from reput.store.disk.files import Clock

__all__ = ["follow_store"]

HOUR_MS = 3_600_000
# How often the objects go that no backup needs any more.
CLEAN_INTERVAL_S = 60.0


def follow_store(
    store_directory: Path,
    target: BackupTarget,
    settings: Settings,
    wait: Callable[[], bool],
    *,
    keep: Keep | None = None,
) -> Iterator[BackupReport]:
    """Make a backup now, and another whenever the store has changed; yield the report on each.

    Args:
        wait: called between two looks at the store; False ends the following.

    Raises:
        NotAStore, ConfigError, StoreError: as of `backup_store`.
    """
    require_outside(target, store_directory)
    with target.lock():
        backups = Backups(store_directory, target, settings)
        # The last backup of this run, if it is not the first of its hour.
        passing: int | None = None
        # Those before it that have not gone yet, because a restore reads.
        going: list[int] = []
        removals = Removals(target, keep)
        removals.remove_leftovers()
        hour: int | None = None
        cleaned_at = time.monotonic()
        report: BackupReport | None = backups.make()
        while True:
            if report is not None:
                if passing is not None:
                    going.append(passing)
                    remove_backups(target, going)
                now = Clock().now_ms() // HOUR_MS
                passing, hour = (report.backup if now == hour else None), now
                yield report
            if time.monotonic() - cleaned_at >= CLEAN_INTERVAL_S:
                removals.remove_old(Clock().now_ms())
                cleaned_at = time.monotonic()
            if not wait():
                break
            report = backups.make_if_changed()
        remove_backups(target, going)
        removals.remove_old(Clock().now_ms())


def remove_backups(target: BackupTarget, going: list[int]) -> None:
    """Remove the backups *going* from the target and from the list, unless a restore may read them."""
    with target.removing() as may_remove:
        while may_remove and going:
            target.remove(manifest_name(going.pop()))
