"""Catalogue: which dispatchers are installed, by the metadata of their distributions. Nothing is imported.

A plugin is code with the user's rights; that it is installed runs none of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["ENTRY_POINT_GROUP", "CatalogueEntry", "installed_dispatchers", "select_dispatchers"]

ENTRY_POINT_GROUP = "reput.dispatchers"


class DirectUrl(msgspec.Struct):
    """What is of use here of PEP 610's ``direct_url.json``."""

    url: str
    dir_info: dict[str, bool] = {}


class CatalogueEntry(msgspec.Struct, frozen=True):
    """One installed dispatcher.

    Attributes:
        name: of the entry point, and of the dispatcher in the configuration.
        module: what is imported, in a process of its own.
        distribution: name of the distribution that brought it.
        version: of that distribution.
        origin: where the distribution lies or came from: a folder or a URL.
        editable: its code may change without its version changing.
    """

    name: str
    module: str
    distribution: str
    version: str
    origin: str
    editable: bool

    def module_changed_ns(self) -> int | None:
        """Return when the module's file was changed, in ns since 1970; None: it is not found without an import."""
        locations: list[str] | None = None
        origin: str | None = None
        parts = self.module.split(".")
        for count in range(1, len(parts) + 1):
            spec = PathFinder.find_spec(".".join(parts[:count]), locations)
            if spec is None:
                return None
            origin = spec.origin
            locations = list(spec.submodule_search_locations or [])
        return Path(origin).stat().st_mtime_ns if origin is not None and Path(origin).is_file() else None


def installed_dispatchers() -> dict[str, CatalogueEntry]:
    """Return every installed dispatcher by its name, as `sys.path` shows them now.

    Raises:
        ConfigError: two distributions bring a dispatcher of the same name.
    """
    # Here, because the supervisor has mostly no use for it, and every dispatcher would carry its modules along.
    from importlib import metadata

    entries: dict[str, CatalogueEntry] = {}
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry = catalogue_entry(point)
        known = entries.setdefault(point.name, entry)
        if known.module != entry.module or known.distribution != entry.distribution:
            raise ConfigError(
                f"two distributions bring a dispatcher of one name: dispatcher={point.name} "
                f"distributions={known.distribution},{entry.distribution}",
                "Uninstall one of them.",
            )
    return entries


def catalogue_entry(point: EntryPoint) -> CatalogueEntry:
    """Return what the metadata says of one entry point."""
    distribution = point.dist
    if distribution is None:
        return CatalogueEntry(point.name, point.module, "", "", "", editable=True)
    text = distribution.read_text("direct_url.json")
    url = msgspec.json.decode(text, type=DirectUrl) if text else None
    return CatalogueEntry(
        point.name,
        point.module,
        distribution.name,
        distribution.version,
        url.url if url else str(distribution.locate_file("")),
        bool(url and url.dir_info.get("editable")),
    )


def select_dispatchers(names: Iterable[str]) -> list[CatalogueEntry]:
    """Return the entries of *names*, in their order, each once.

    Raises:
        ConfigError: no installed distribution brings a dispatcher of that name.
    """
    entries = installed_dispatchers()
    selected: dict[str, CatalogueEntry] = {}
    for name in names:
        if name not in entries:
            nearest = difflib.get_close_matches(name, entries, n=1)
            raise ConfigError(
                f"no such dispatcher is installed: dispatcher={name} installed={','.join(sorted(entries))}",
                f"Did you mean {nearest[0]}?" if nearest else "See `reput plugin list`, or install the plugin.",
            )
        selected[name] = entries[name]
    return list(selected.values())
