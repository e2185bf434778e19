"""BackupTarget: where backups go: a directory or an object store.

A name is a path in the target, such as ``log/…``. An object appears whole or not at all, and survives a power cut when
the call that makes it returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

__all__ = ["CHUNK_SIZE", "BackupTarget", "Bytes", "ObjectWriter"]

CHUNK_SIZE = 4 << 20
Bytes = bytes | bytearray | memoryview


class ObjectWriter(Protocol):
    """An object in the making."""

    def write(self, data: Bytes) -> None:
        """Add *data*."""

    def commit(self) -> None:
        """Let the object appear, with all that was written."""

    def abort(self) -> None:
        """Give it up; nothing appears."""


class BackupTarget(Protocol):
    """The objects of one target."""

    address: str

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other backups out of the target, where it can.

        Raises:
            StoreError: another backup works on it.
        """

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Keep a backup that works on the target from removing what is read meanwhile."""

    def removing(self) -> contextlib.AbstractContextManager[bool]:
        """Return whether something may be removed: False while it could be read."""

    def lies_in(self, directory: Path) -> bool:
        """Return whether it is a folder of *directory*."""

    def is_empty(self) -> bool:
        """Return whether there is nothing at all."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in *folder*, ascending."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small object, None if there is none."""

    def chunks(self, name: str) -> Iterator[Bytes] | None:
        """Return the content of an object in chunks, None if there is none."""

    def begin(self, name: str) -> ObjectWriter:
        """Begin to write an object."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small object; return False, and change nothing, if there is one of that name."""

    def remove_unused(self, folder: str, used: Collection[str]) -> int:
        """Remove the objects in *folder* that no backup has *used*, finished or at work; return how many."""

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
