"""GroupContext: what every process of a group knows about its store."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.settings import Settings

__all__ = ["GroupContext"]


class GroupContext(msgspec.Struct, frozen=True):
    """The store, and the settings that say which dispatchers run with which options.

    Attributes:
        store_directory: the store's root, whose log is read.
        store_id: as in every cursor of this store.
        settings: `dispatchers` are enabled, in this order, with `dispatcher_options`.
        target: views are built from the log's beginning under this root, laid out as a store; the store itself is
            read-only then. None: the store's own views.
    """

    store_directory: Path
    store_id: str
    settings: Settings
    target: Path | None = None

    @property
    def view_directory(self) -> Path:
        """The root of the views."""
        return self.store_directory if self.target is None else self.target

    def options(self, name: str) -> dict[str, object]:
        """Return the options of one dispatcher, as configured."""
        return self.settings.dispatcher_options.get(name, {})
