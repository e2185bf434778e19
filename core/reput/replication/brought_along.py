"""BroughtAlong: ``reput/brought_along``, which topics, groups and offsets of a copy are its master's.

What the master no longer has is removed here, also if that happened while the copy was stopped. What only this store
has, such as a group that consumes the copy, stays.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from reput.errors import DamagedStore
from reput.store.config.versioned_table import VersionedTable
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.state.followed_master import BROUGHT_ALONG

__all__ = ["BroughtAlong"]

logger = logging.getLogger(__name__)


class MasterNames(msgspec.Struct, frozen=True):
    """The names that came from the master.

    Attributes:
        topics, groups: None: not known, so all count as the master's.
        offsets: keys ``topic@group``.
    """

    topics: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    offsets: frozenset[str] = frozenset()


class BroughtAlong:
    """The file of one store. One thread uses it."""

    def __init__(self, store_directory: Path, files: Files) -> None:
        """Read the file, if there is one. A damaged one is as none: the next round writes it."""
        self.path = store_directory / "reput" / BROUGHT_ALONG
        self.files = files
        try:
            found = read_sealed(self.path, MasterNames)
        except DamagedStore as error:
            logger.warning("which configuration is the master's is not known, and is asked for: reason=%s", error)
            found = None
        self.names = found or MasterNames()

    def note(self, **names: frozenset[str]) -> None:
        """Write which names are the master's, if that has changed."""
        changed = msgspec.structs.replace(self.names, **names)
        if changed != self.names:
            self.files.replace(self.path, seal(changed))
            self.names = changed

    def replace_table(self, which: str, manager: VersionedTable[Any], fields: dict[str, Any]) -> list[str]:
        """Give the master's entries to the table of *which*, topics or groups, if its version is another.

        Return the names whose entry has changed, come or gone.
        """
        version = msgspec.convert(fields.get("dataVersion") or {}, dict[str, Any])
        with manager.lock:
            if type(manager.data_version).from_fields(version) == manager.data_version:
                return []
            before = dict(manager.entries)
            theirs = frozenset(msgspec.convert(fields.get(manager.table_name) or {}, dict[str, Any]))
            known = getattr(self.names, which)
            known = frozenset(before) if known is None else known
            # A kill in between must not turn an entry of the master into one of this store.
            self.note(**{which: known | theirs})
            manager.replace_fields(fields, before.keys() - known)
            manager.persist()
            self.note(**{which: theirs})
            names = before.keys() | manager.entries.keys()
            return [name for name in sorted(names) if before.get(name) != manager.entries.get(name)]
