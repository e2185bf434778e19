"""DiskSpace: how full a store's disks are, and which level that means.

    used percent   what it means
    > 90           warning level: puts are refused, and segments go whatever their age
    > 85           segments go whatever their age
    > 75           expired segments go at any hour
    otherwise      they go at the hours of ``delete_when``

The numbers are settings, kept within RocketMQ's bounds. "Used" counts all users' bytes, as a share of
what users without privileges use or may use, in whole percent, rounded up.

Source: RocketMQ store, DefaultMessageStore.CleanCommitLogService; common, UtilAll.getDiskPartitionSpaceUsedPercent.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path

import msgspec

from reput.settings import Settings

__all__ = ["DiskLevel", "DiskLevels", "DiskSpace"]


class DiskLevel(enum.IntEnum):
    """How urgently the store needs room."""

    FINE = 0
    SHORT = 1  # expired segments go at any hour
    FORCIBLE = 2  # segments go whatever their age
    WARNING = 3  # and puts are refused


class DiskSpace:
    """Measures how full the disks are."""

    def used_percent(self, paths: list[Path]) -> int:
        """Return the used percentage of the fullest disk that holds one of *paths*; absent paths do not count.

        Raises:
            OSError: the system does not say.
        """
        used = 0
        for path in paths:
            try:
                status = os.statvfs(path)
            except FileNotFoundError:
                continue
            in_use = status.f_blocks - status.f_bfree
            whole = in_use + status.f_bavail
            if whole:
                used = max(used, -(-in_use * 100 // whole))
        return used


class DiskLevels(msgspec.Struct, frozen=True):
    """The levels in percent; each holds above its number."""

    short: int
    forcible: int
    warning: int

    @classmethod
    def of(cls, settings: Settings) -> DiskLevels:
        """Return the levels that *settings* name, within RocketMQ's bounds."""
        return cls(
            short=min(max(settings.disk_max_used_space_ratio, 10), 95),
            forcible=min(max(settings.disk_space_clean_forcibly_ratio, 30), 85),
            warning=min(max(settings.disk_space_warning_level_ratio, 35), 90),
        )

    def level(self, used_percent: int) -> DiskLevel:
        """Return the level of a disk that is so full."""
        if used_percent > self.warning:
            return DiskLevel.WARNING
        if used_percent > self.forcible:
            return DiskLevel.FORCIBLE
        return DiskLevel.SHORT if used_percent > self.short else DiskLevel.FINE
