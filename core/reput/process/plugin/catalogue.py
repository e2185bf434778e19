"""Catalogue: the installed dispatchers, from the metadata of their distributions. No plugin is imported.

A plugin is code with the user's rights; an installed plugin must not run before it is enabled.
"""

from __future__ import annotations

import contextlib
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
# It names the view's folder; the intent to empty the view lies beside it. A shadow's name has one character more.
NAME = re.compile(r"(?!.*\.emptying$)[A-Za-z0-9_-][A-Za-z0-9_.-]{0,62}")


class DirectUrl(msgspec.Struct):
    """The fields of PEP 610's ``direct_url.json`` that are used here."""

    url: str
    dir_info: dict[str, bool] = {}


class CatalogueEntry(msgspec.Struct, frozen=True):
    """One installed dispatcher, or one of several that the configuration creates from it.

    Attributes:
        name: of the dispatcher: its section in the configuration, its view, its rows.
        plugin: name of the entry point; equal to *name* unless the configuration sets another.
        module: the module to import, in a separate process.
        distribution: name of the distribution that provides it.
        version: of that distribution.
        origin: where the distribution lies or came from: a folder or a URL.
        editable: its code may change while its version stays the same.
        rivals: other distributions that provide a dispatcher of the same name.
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
        """Refuse a dispatcher that cannot run; it must not affect others merely by being installed.

        Raises:
            ConfigError: another distribution provides a dispatcher of this name, or the name is invalid.
        """
        if self.rivals:
            raise ConfigError(
                f"two distributions bring a dispatcher of one name: dispatcher={self.plugin} "
                f"distributions={','.join(sorted((self.distribution, *self.rivals)))}",
                "Uninstall one of them.",
            )
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"a dispatcher's name has up to 63 letters, digits, -, _ and .: dispatcher={self.name!r} "
                f"distribution={self.distribution}",
                "Its author has to give the entry point another name."
                if self.name == self.plugin
                else "Give its section another name.",
            )

    def module_changed_ns(self) -> int | None:
        """Return when the module, or any file in its package, last changed, in ns since 1970.

        None: it cannot be found without an import.
        """
        package = self.module.partition(".")[0]
        spec = PathFinder.find_spec(package)
        if spec is None:
            return None
        locations = list(spec.submodule_search_locations or [])
        if not locations:
            return Path(spec.origin).stat().st_mtime_ns if spec.origin is not None else None
        return max(changed_ns(Path(location)) for location in locations)

    def module_file_changed_ns(self) -> int:
        """Return when the module's own file last changed, in ns since 1970; 0: it has no file of its own.

        One or two file calls, where `module_changed_ns` looks at every source. An installation writes every file.
        """
        package, *parts = self.module.split(".")
        spec = PathFinder.find_spec(package)
        if spec is None:
            return 0
        paths = [spec.origin] if spec.origin and not parts else []
        for location in spec.submodule_search_locations or () if parts else ():
            path = os.path.join(location, *parts)
            paths += [f"{path}.py", os.path.join(path, "__init__.py")]
        for path in paths:
            with contextlib.suppress(OSError):
                return os.stat(path).st_mtime_ns
        return 0


def changed_ns(folder: Path) -> int:
    """Return the latest modification time of the Python sources in *folder*."""
    newest = 0
    for directory, names, files in os.walk(folder):
        # The interpreter creates these on the first import.
        names[:] = [name for name in names if name != "__pycache__"]
        paths = [os.path.join(directory, name) for name in files if name.endswith(".py")]
        newest = max([newest, *(os.stat(path).st_mtime_ns for path in paths)])
    return newest


def installed_dispatchers() -> dict[str, CatalogueEntry]:
    """Return every dispatcher now installed on `sys.path`, by its name; see `CatalogueEntry.check`."""
    # Import here: the supervisor rarely needs it, and every dispatcher would inherit its modules.
    from importlib import metadata

    entries: dict[str, CatalogueEntry] = {}
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry = catalogue_entry(point)
        known = entries.setdefault(point.name, entry)
        if known.module != entry.module or known.distribution != entry.distribution:
            entries[point.name] = msgspec.structs.replace(known, rivals=(*known.rivals, entry.distribution))
    return entries


def catalogue_entry(point: EntryPoint) -> CatalogueEntry:
    """Return the entry for one entry point, from its metadata."""
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
        plugins: of each dispatcher whose name differs from its plugin's, as `Settings.dispatcher_plugins`.

    Raises:
        ConfigError: no installed distribution provides a dispatcher of that name, or two do, or the name is invalid.
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
                f"the name belongs to another installed dispatcher: dispatcher={name} plugin={plugin}",
                "Give the section another name.",
            )
        selected[name] = entries[plugin].named(name)
        selected[name].check()
    return list(selected.values())
