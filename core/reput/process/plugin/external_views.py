"""Views that lie elsewhere, on a server or in another program: a rebuild sends the whole log there again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reput.errors import ConfigError
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.describe import describe
from reput.process.plugin.description import PluginDescription
from reput.settings import Settings

__all__ = ["described", "refuse_elsewhere"]


def described(entries: Iterable[CatalogueEntry], settings: Settings) -> dict[str, PluginDescription | None]:
    """Return each plugin's declarations with its options in *settings*; None: it cannot be asked."""
    return {
        entry.name: describe(entry, settings.dispatcher_options.get(entry.name, {})).description for entry in entries
    }


def refuse_elsewhere(descriptions: Mapping[str, PluginDescription | None], *, force: bool) -> None:
    """Refuse to rebuild, or to try out, views that lie elsewhere.

    Raises:
        ConfigError: a view lies elsewhere, and *force* is not set.
    """
    elsewhere = [name for name, found in descriptions.items() if found is not None and found.view_elsewhere]
    if elsewhere and not force:
        raise ConfigError(
            f"the view lies elsewhere, and the records of the log would be sent there again: "
            f"dispatcher={','.join(elsewhere)}",
            "Name the other views alone, or confirm with --force (in a program force=True).",
        )
