"""Which backups of a target stay, and the removal of what none of them needs.

Manifests go first, then the objects that no manifest names; what a kill in between leaves, the next removal takes.
Nothing goes while a restore could read it: the next removal takes that, too.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from itertools import takewhile

import msgspec

from reput.backup.layout import BACKUPS, FILES, LOG, BackupManifest, manifest_name
from reput.backup.stored import backup_numbers, find_manifest, newest_manifest, pieces_of, read_manifest
from reput.backup.target import BackupTarget
from reput.errors import ConfigError, StoreError

__all__ = ["Keep", "Removals", "parse_keep"]

UNIT_MS = {"h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
KEEP = re.compile(r"([1-9][0-9]{0,8})([hdw]?)")


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


class Removals:
    """The removals from one target, one after another; the caller holds the target's lock.

    A manifest never changes, so each is read once, and a backup that follows a store for months removes what it made in
    the last minute without reading all backups again. Only the last one is read each time: it may be gone by then.
    """

    def __init__(self, target: BackupTarget, keep: Keep | None) -> None:
        """*keep*: None: only the leftovers of killed backups go."""
        self.target = target
        self.keep = keep
        # When the backups were made that are counted in the uses of their objects.
        self.timestamps: dict[int, int] = {}
        self.uses: Counter[str] = Counter()

    def remove_old(self, now_ms: int) -> int:
        """Remove the backups that are not kept, and all that no backup needs; return how many backups went."""
        with self.target.removing() as may_remove:
            if not may_remove:
                return 0
            numbers = self.numbers()
            going = self.old(numbers, now_ms)
            for number in going:
                self.forget(number)
                self.target.remove(manifest_name(number))
            self.remove_unused(numbers[len(going) :])
            return len(going)

    def remove_leftovers(self) -> None:
        """Remove what no backup needs before another one is made, which may need the room of what a killed one left."""
        # A backup that cannot be read keeps all that is there, but not the next one from being made.
        with self.target.removing() as may_remove, contextlib.suppress(StoreError):
            if may_remove:
                self.remove_unused(self.numbers())

    def numbers(self) -> list[int]:
        """Return the numbers of the backups, ascending."""
        numbers = backup_numbers(self.target)
        if not self.timestamps.keys() <= {*numbers[:-1]}:
            # Another program has removed backups.
            self.timestamps.clear()
            self.uses.clear()
        return numbers

    def old(self, numbers: list[int], now_ms: int) -> list[int]:
        """Return the first of *numbers*, those of the backups that are not kept."""
        if self.keep is None:
            return []
        if self.keep.count is not None:
            return numbers[: -self.keep.count]
        assert self.keep.age_ms is not None
        oldest = now_ms - self.keep.age_ms
        return list(takewhile(lambda number: self.timestamp(number) < oldest, numbers[:-1]))

    def timestamp(self, number: int) -> int:
        """Return when a backup was made; 0: it is gone."""
        self.count(number)
        return self.timestamps.get(number, 0)

    def count(self, number: int) -> None:
        """Count what a backup needs."""
        if number in self.timestamps:
            return
        manifest = find_manifest(self.target, number)
        if manifest is not None:
            self.uses.update(names_of(self.target, manifest))
            self.timestamps[number] = manifest.timestamp

    def forget(self, number: int) -> None:
        """Count no longer what a backup needs."""
        if self.timestamps.pop(number, None) is None:
            return
        self.uses.subtract(names_of(self.target, read_manifest(self.target, number)))
        self.uses = +self.uses

    def remove_unused(self, numbers: list[int]) -> None:
        """Remove the objects that none of the backups *numbers* needs, which are all."""
        for number in numbers[:-1]:
            self.count(number)
        used = {*self.uses}
        last = newest_manifest(self.target)
        if last is not None:
            used |= names_of(self.target, last)
        for folder in (BACKUPS, LOG, FILES):
            self.target.remove_unused(folder, used)


def names_of(target: BackupTarget, manifest: BackupManifest) -> set[str]:
    """Return the names of all objects that belong to a backup."""
    names = {manifest_name(manifest.number), *(stored.name for stored in manifest.files.values())}
    names |= {piece.name for piece in manifest.pieces}
    if manifest.full_segments is not None:
        names.add(manifest.full_segments.name)
        names |= {piece.name for piece in pieces_of(target, manifest.full_segments)}
    return names
