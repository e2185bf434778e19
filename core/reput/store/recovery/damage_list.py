"""DamageList: which ranges of the log are known to be damaged, in ``reput/damage``.

An opening or a repair writes it. Readers pass over the ranges that an operator has accepted, and stop at all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from reput.store.disk.sealed_file import read_sealed

__all__ = ["DamageList", "DamagedRange", "accepted_damage", "accepted_end", "read_damage"]


class DamagedRange(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of the log that hold no records. *accepted*: an operator lets readers pass them over."""

    begin: int
    end: int
    reason: str
    accepted: bool = False


class DamageList(msgspec.Struct, frozen=True):
    """``reput/damage``: the damaged ranges that are known, ascending."""

    ranges: list[DamagedRange] = []


def read_damage(store_directory: Path) -> DamageList:
    """Return the damaged ranges that are known of a store."""
    return read_sealed(store_directory / "reput" / "damage", DamageList) or DamageList()


def accepted_damage(store_directory: Path) -> list[tuple[int, int]]:
    """Return the accepted ranges of a store as (begin, end), ascending."""
    return [(damaged.begin, damaged.end) for damaged in read_damage(store_directory).ranges if damaged.accepted]


def accepted_end(accepted: Iterable[tuple[int, int]], commit_log_offset: int) -> int | None:
    """Return where the accepted range ends that holds this byte, None if none holds it."""
    return next((end for begin, end in accepted if begin <= commit_log_offset < end), None)
