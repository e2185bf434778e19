"""Configuration: what a store was opened with, and how to find out what has been changed in it since."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from reput.settings import Settings

__all__ = ["Configuration", "ConfigurationChange"]

# What a running group takes up.
TAKEN_UP = frozenset({"dispatchers", "dispatcher_options", "dispatcher_plugins"})


class ConfigurationChange(msgspec.Struct, frozen=True):
    """What was changed since the configuration was read last.

    Attributes:
        added, removed: dispatchers that are enabled now, or no longer.
        options: those of dispatchers that have others now, or are new.
        plugins: of each dispatcher that is not named as its plugin is.
        waiting: other settings that were changed; they hold when the store is opened next.
        refused: why nothing was taken up; the configuration is as it was.
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
        """Return what was changed; the next time what is changed from here on.

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
        # Another plugin cannot go on in the view of the one before.
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
