"""Which backups of a target stay, and the removal of what none of them needs.

Manifests go first, then the objects that no manifest names; what a kill in between leaves, the next removal takes.
"""

from __future__ import annotations

import re

import msgspec

from reput.backup.layout import BACKUPS, FILES, LOG, BackupManifest, manifest_name
from reput.backup.stored import backup_numbers, pieces_of, read_manifest
from reput.backup.target import BackupTarget
from reput.errors import ConfigError

__all__ = ["Keep", "parse_keep", "remove_old", "remove_unused"]

UNIT_MS = {"h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
KEEP = re.compile(r"([1-9][0-9]*)([hdw]?)")


class Keep(msgspec.Struct, frozen=True):
    """Which backups stay: the last *count*, or those of the last *age_ms*; the newest always."""

    count: int | None = None
    age_ms: int | None = None


def parse_keep(text: str) -> Keep:
    """Return what ``30``, ``12h``, ``7d`` or ``4w`` keeps.

    Raises:
        ConfigError: *text* is none of these.
    """
    found = KEEP.fullmatch(text)
    if found is None:
        raise ConfigError(f"--keep takes a number of backups, or an age like 12h, 7d or 4w: keep={text}")
    number, unit = int(found[1]), found[2]
    return Keep(age_ms=number * UNIT_MS[unit]) if unit else Keep(count=number)


def remove_old(target: BackupTarget, keep: Keep | None, now_ms: int) -> int:
    """Remove the backups that *keep* does not keep, and all that no backup needs; return how many backups went.

    Without *keep* only the leftovers of killed backups go. The caller holds the target's lock.
    """
    numbers = backup_numbers(target)
    going: list[int] = []
    if keep is not None and keep.count is not None:
        going = numbers[: -keep.count]
    elif keep is not None and keep.age_ms is not None:
        going = [n for n in numbers[:-1] if read_manifest(target, n).timestamp < now_ms - keep.age_ms]
    for number in going:
        target.remove(manifest_name(number))
    remove_unused(target)
    return len(going)


def remove_unused(target: BackupTarget) -> None:
    """Remove the objects that no backup needs."""
    used: set[str] = set()
    for number in backup_numbers(target):
        used |= names_of(target, read_manifest(target, number))
    for folder in (BACKUPS, LOG, FILES):
        target.remove_unused(folder, used)


def names_of(target: BackupTarget, manifest: BackupManifest) -> set[str]:
    """Return the names of all objects that belong to a backup."""
    names = {manifest_name(manifest.number), *(stored.name for stored in manifest.files.values())}
    names |= {piece.name for piece in manifest.pieces}
    if manifest.full_segments is not None:
        names.add(manifest.full_segments.name)
        names |= {piece.name for piece in pieces_of(target, manifest.full_segments)}
    return names
