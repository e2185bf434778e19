"""LeaseMark: ``reput/lease``, the lease that decides whether this store is the master, and the last epoch it knew.

A store with this file does not trust an engine for agreement that knows less: it has lost what was agreed on. Backups
leave the file out: what they restore is an older store, so it is another member.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.errors import ConfigError
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import read_sealed, seal

__all__ = ["LEASE_MARK", "LeaseMark", "read_lease_mark", "refuse_node"]

LEASE_MARK = "lease"


class LeaseMark(msgspec.Struct, frozen=True):
    """What a store knows of its lease.

    Attributes:
        name: of the lease.
        member: which of its nodes this store is.
        epoch: of the master that the store was or followed last; 0: none yet.
    """

    name: str
    member: str
    epoch: int

    def write(self, store_directory: Path, files: Files) -> None:
        """Record it durably."""
        files.replace(store_directory / "reput" / LEASE_MARK, seal(self))


def read_lease_mark(store_directory: Path) -> LeaseMark | None:
    """Return what was recorded, None if the store never had a lease."""
    try:
        return read_sealed(store_directory / "reput" / LEASE_MARK, LeaseMark)
    except NotADirectoryError:
        return None


def refuse_node(store_directory: Path, advice: str) -> None:
    """Refuse a store that is a node of a lease, for what a person decides elsewhere.

    Raises:
        ConfigError: it is one.
    """
    mark = read_lease_mark(store_directory)
    if mark is not None:
        raise ConfigError(
            f"a lease decides whether this store is the master: lease={mark.name} store={store_directory}",
            f"{advice} If the lease was given up, remove reput/{LEASE_MARK} in the store.",
        )
