"""Configuration: the settings of an open store, and how to detect changes in their sources."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from reput.settings import Settings

__all__ = ["Configuration", "ConfigurationChange"]

# Settings that a running group adopts.
TAKEN_UP = frozenset({"dispatchers", "dispatcher_options", "dispatcher_plugins"})


class ConfigurationChange(msgspec.Struct, frozen=True):
    """The changes since the configuration was last read.

    Attributes:
        added, removed: dispatchers that were enabled or disabled.
        options: of each dispatcher that is new or whose options changed.
        plugins: of each dispatcher whose name differs from its plugin's.
        waiting: other changed settings; they take effect when the store is next opened.
        refused: why no change was adopted; the configuration is as it was.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    options: dict[str, dict[str, object]] = {}
    plugins: dict[str, str] = {}
    waiting: tuple[str, ...] = ()
    refused: str | None = None


class Configuration:
    """The settings of an open store, and *read*, which reads them from their sources again."""

    def __init__(self, settings: Settings, read: Callable[[], Settings]) -> None:
        self.settings = settings
        self.read = read

    def reread(self) -> ConfigurationChange:
        """Return the changes since the last call, or since the store was opened.

        Raises:
            ConfigError: a setting is wrong, or the file cannot be read.
        """
        before, now = self.settings, self.read()
        options = {
            name: now.dispatcher_options.get(name, {})
            for name in now.dispatchers
            if name not in before.dispatchers
            or now.dispatcher_options.get(name, {}) != before.dispatcher_options.get(name, {})
        }
        names = [name for name in now.__struct_fields__ if getattr(before, name) != getattr(now, name)]
        # A different plugin cannot continue the previous plugin's view.
        changed = [
            f"dispatchers.{name}.plugin"
            for name in now.dispatchers
            if name in before.dispatchers and now.dispatcher_plugins.get(name) != before.dispatcher_plugins.get(name)
        ]
        self.settings = now
        return ConfigurationChange(
            added=tuple(name for name in now.dispatchers if name not in before.dispatchers),
            removed=tuple(name for name in before.dispatchers if name not in now.dispatchers),
            options=options,
            plugins=now.dispatcher_plugins,
            waiting=(*(name for name in names if name not in TAKEN_UP), *changed),
        )
