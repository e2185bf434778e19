"""Catalogue: which dispatchers are installed, by the metadata of their distributions. Nothing is imported.

A plugin is code with the user's rights; that it is installed runs none of it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["ENTRY_POINT_GROUP", "CatalogueEntry", "installed_dispatchers", "select_dispatchers"]

ENTRY_POINT_GROUP = "reput.dispatchers"
# The view's folder has it, with the intent to empty it beside; with one letter more it names a view that is built anew.
NAME = re.compile(r"(?!.*\.emptying$)[A-Za-z0-9_-][A-Za-z0-9_.-]{0,62}")


class DirectUrl(msgspec.Struct):
    """What is of use here of PEP 610's ``direct_url.json``."""

    url: str
    dir_info: dict[str, bool] = {}


class CatalogueEntry(msgspec.Struct, frozen=True):
    """One installed dispatcher, or one of several that the configuration makes of it.

    Attributes:
        name: of the dispatcher: its section in the configuration, its view, its rows.
        plugin: of the entry point, which is the name, too, unless the configuration gives another.
        module: what is imported, in a process of its own.
        distribution: name of the distribution that brought it.
        version: of that distribution.
        origin: where the distribution lies or came from: a folder or a URL.
        editable: its code may change without its version changing.
        rivals: other distributions that bring a dispatcher of this name, too.
    """

    name: str
    plugin: str
    module: str
    distribution: str
    version: str
    origin: str
    editable: bool
    rivals: tuple[str, ...] = ()

    def named(self, name: str) -> CatalogueEntry:
        """Return the dispatcher *name* of this plugin."""
        return msgspec.structs.replace(self, name=name)

    def check(self) -> None:
        """Refuse what cannot run; that it is installed is nobody else's trouble.

        Raises:
            ConfigError: another distribution brings a dispatcher of this name, or the name is none.
        """
        if self.rivals:
            raise ConfigError(
                f"two distributions bring a dispatcher of one name: dispatcher={self.plugin} "
                f"distributions={','.join(sorted((self.distribution, *self.rivals)))}",
                "Uninstall one of them.",
            )
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"a dispatcher is named by up to 63 letters, digits, -, _ and .: dispatcher={self.name!r} "
                f"distribution={self.distribution}",
                "Its author has to give the entry point another name."
                if self.name == self.plugin
                else "Give its section another name.",
            )

    def module_changed_ns(self) -> int | None:
        """Return when the module, or anything in its package, was changed, in ns since 1970.

        None: it is not found without an import.
        """
        package = self.module.partition(".")[0]
        spec = PathFinder.find_spec(package)
        if spec is None:
            return None
        locations = list(spec.submodule_search_locations or [])
        if not locations:
            return Path(spec.origin).stat().st_mtime_ns if spec.origin is not None else None
        return max(changed_ns(Path(location)) for location in locations)


def changed_ns(folder: Path) -> int:
    """Return when Python's source in *folder*, or which files there are, was changed last."""
    newest = 0
    for directory, names, files in os.walk(folder):
        # The interpreter's own, which come with the first import.
        names[:] = [name for name in names if name != "__pycache__"]
        paths = [os.path.join(directory, name) for name in files if name.endswith(".py")]
        newest = max([newest, *(os.stat(path).st_mtime_ns for path in paths)])
    return newest


def installed_dispatchers() -> dict[str, CatalogueEntry]:
    """Return every installed dispatcher by its name, as `sys.path` shows them now; see `CatalogueEntry.check`."""
    # Here, because the supervisor has mostly no use for it, and every dispatcher would carry its modules along.
    from importlib import metadata

    entries: dict[str, CatalogueEntry] = {}
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry = catalogue_entry(point)
        known = entries.setdefault(point.name, entry)
        if known.module != entry.module or known.distribution != entry.distribution:
            entries[point.name] = msgspec.structs.replace(known, rivals=(*known.rivals, entry.distribution))
    return entries


def catalogue_entry(point: EntryPoint) -> CatalogueEntry:
    """Return what the metadata says of one entry point."""
    distribution = point.dist
    if distribution is None:
        return CatalogueEntry(point.name, point.name, point.module, "", "", "", editable=True)
    text = distribution.read_text("direct_url.json")
    url = msgspec.json.decode(text, type=DirectUrl) if text else None
    return CatalogueEntry(
        point.name,
        point.name,
        point.module,
        distribution.name,
        distribution.version,
        url.url if url else str(distribution.locate_file("")),
        bool(url and url.dir_info.get("editable")),
    )


def select_dispatchers(names: Iterable[str], plugins: Mapping[str, str]) -> list[CatalogueEntry]:
    """Return the entries of *names*, in their order, each once.

    Args:
        plugins: of each dispatcher that is not named as its plugin is, as `Settings.dispatcher_plugins`.

    Raises:
        ConfigError: no installed distribution brings a dispatcher of that name, or two do, or it is no name.
    """
    entries = installed_dispatchers()
    selected: dict[str, CatalogueEntry] = {}
    for name in names:
        plugin = plugins.get(name, name)
        if plugin not in entries:
            nearest = difflib.get_close_matches(plugin, entries, n=1)
            of_plugin = "" if plugin == name else f"plugin={plugin} "
            raise ConfigError(
                f"no such dispatcher is installed: dispatcher={name} {of_plugin}installed={','.join(sorted(entries))}",
                f"Did you mean {nearest[0]}?" if nearest else "See `reput plugin list`, or install the plugin.",
            )
        if plugin != name and name in entries:
            raise ConfigError(
                f"the name is that of another installed dispatcher: dispatcher={name} plugin={plugin}",
                "Give the section another name.",
            )
        selected[name] = entries[plugin].named(name)
        selected[name].check()
    return list(selected.values())
