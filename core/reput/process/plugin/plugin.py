"""Plugin: one dispatcher's imported module. Only processes that run or describe this plugin use it.

pluggy carries the hooks: their names and arguments are checked against `reput_hooks`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pluggy

import reput_hooks.dispatcher
from reput.errors import ConfigError, DispatcherError
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.description import PluginDescription, portable_description
from reput_hooks import API_VERSION, CommitLogDispatcher, DispatcherContext, DispatcherDescription

__all__ = ["Plugin", "check_instance", "convert_options", "load_plugin"]

PROJECT = "reput"
MISSING = re.compile(r"Object missing required field `(.+)`")
# Names in a store's root that do not belong to a dispatcher's view.
OTHERS_FOLDERS = frozenset({"", "..", "abort", "checkpoint", "commitlog", "config", "lock", "reput"})


class Plugin:
    """The hooks of one dispatcher."""

    def __init__(self, name: str, manager: pluggy.PluginManager) -> None:
        self.name = name
        self.manager = manager

    def describe(self) -> DispatcherDescription:
        """Return what the plugin declares.

        Raises:
            DispatcherError: it creates no dispatcher, its declarations are invalid, or it was written for another
                version of the hooks.
        """
        description = self.manager.hook.reput_describe_dispatcher()
        if description is None:
            description = DispatcherDescription()
        if not isinstance(description, DispatcherDescription):
            raise DispatcherError(
                f"reput_describe_dispatcher returned no DispatcherDescription: dispatcher={self.name} "
                f"type={type(description).__name__}"
            )
        if description.api_version != API_VERSION:
            raise DispatcherError(
                f"the plugin was written for another version of reput_hooks: dispatcher={self.name} "
                f"api_version={description.api_version} expected={API_VERSION}",
                "Install a version of the plugin that fits this reput.",
            )
        self.check_fields(description)
        if not self.manager.hook.reput_create_dispatcher.get_hookimpls():
            raise DispatcherError(
                f"the plugin has no hook that creates its dispatcher: dispatcher={self.name} "
                "hook=reput_create_dispatcher",
                "A function of that name in the module is marked with reput_hooks.hookimpl.",
            )
        return description

    def check_fields(self, description: DispatcherDescription) -> None:
        """Refuse invalid declarations; a struct's constructor accepts any value.

        Raises:
            DispatcherError: a field has a wrong type or value; the text names it.
        """
        options = description.options
        if options is not None and not (isinstance(options, type) and issubclass(options, msgspec.Struct)):
            raise self.wrong_field("options", "Expected a subclass of `msgspec.Struct`", options)
        if not (isinstance(description.view_elsewhere, bool) or callable(description.view_elsewhere)):
            raise self.wrong_field("view_elsewhere", "Expected a `bool` or a function", description.view_elsewhere)
        fields = msgspec.to_builtins(portable_description(description), enc_hook=repr)
        try:
            msgspec.convert(fields, PluginDescription)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$.")
            field = path.rstrip("`").partition("[")[0]
            raise self.wrong_field(field, reason, getattr(description, field, None)) from None
        for folder in description.store_folders:
            # A rebuild first removes the view with everything in its folders.
            if Path(folder).name != folder or folder in OTHERS_FOLDERS:
                raise self.wrong_field("store_folders", "Expected names of folders that are this view alone", folder)

    def wrong_field(self, field: str, reason: str, value: object) -> DispatcherError:
        """Return the error for an invalid declaration."""
        return DispatcherError(
            f"the plugin's declaration is invalid: dispatcher={self.name} field={field} reason={reason} "
            f"value={value!r:.100}",
            "See `reput_hooks.DispatcherDescription`.",
        )

    def create(self, context: DispatcherContext) -> CommitLogDispatcher:
        """Return the plugin's dispatcher.

        Raises:
            DispatcherError: the plugin has no such hook, or returned something else.
        """
        dispatcher = self.manager.hook.reput_create_dispatcher(context=context)
        if not isinstance(dispatcher, CommitLogDispatcher):
            raise DispatcherError(
                f"reput_create_dispatcher returned no CommitLogDispatcher: dispatcher={self.name} "
                f"type={type(dispatcher).__name__}"
            )
        return dispatcher

    def read_view(self, folders: Sequence[Path]) -> object:
        """Return the plugin's account of a view's content, None if the view's files show it."""
        return self.manager.hook.reput_read_view(folders=folders)


def check_instance(entry: CatalogueEntry, store_folders: Sequence[str]) -> None:
    """Refuse a second dispatcher of a plugin whose view lies in the store's root.

    Raises:
        ConfigError: *entry* is such a second dispatcher; both would write to the same files.
    """
    if store_folders and entry.name != entry.plugin:
        raise ConfigError(
            "a store can have only one dispatcher of this plugin, whose view lies in the store's root: "
            f"dispatcher={entry.name} "
            f"plugin={entry.plugin} store_folders={','.join(store_folders)}",
            f"Enable {entry.plugin} itself.",
        )


def load_plugin(name: str, module: str) -> Plugin:
    """Import *module* and register its hooks.

    Raises:
        Exception: whatever the import raised.
        pluggy.PluginValidationError: a hook has a wrong name or argument.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(reput_hooks.dispatcher)
    manager.register(import_module(module), name)
    manager.check_pending()
    return Plugin(name, manager)


def convert_options(name: str, options: Mapping[str, object], option_type: type[msgspec.Struct] | None) -> Any:
    """Return *options* as the plugin's own struct, or None if it has no struct and no options are given.

    Texts are converted to declared numbers and booleans, since some sources provide only text.

    Raises:
        ConfigError: an option is unknown, missing or of a wrong type; the text names it.
    """
    known = [field.encode_name for field in msgspec.structs.fields(option_type)] if option_type else []
    for option in options:
        if option not in known:
            nearest = difflib.get_close_matches(option, known, n=1)
            raise ConfigError(
                f"the dispatcher has no such option: dispatchers.{name}.{option} known={','.join(known) or 'none'}",
                f"Did you mean {nearest[0]}?" if nearest else "",
            )
    if option_type is None:
        return None
    try:
        return msgspec.convert(dict(options), option_type, strict=False)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:
            # The struct's own check raised it; msgspec wraps only ValueError and TypeError.
            raise checked_by_plugin(name, str(error), known) from None
        # msgspec gives the place as a path: "Expected `int`, got `str` - at `$.limit`".
        reason, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`")
        missing = MISSING.fullmatch(reason)
        if missing is not None:
            raise ConfigError(
                f"option of a dispatcher: dispatchers.{name}{field}.{missing[1]} reason={reason}",
                f"Give it a value; `reput plugin show {name}` says which.",
            ) from None
        value: Any = options
        for step in field.lstrip(".").split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        # Show this value only, never its neighbours, which may be secret.
        shown = f" value={value!r}" if isinstance(value, str | int | float) else ""
        raise ConfigError(f"option of a dispatcher: dispatchers.{name}{field} reason={reason}{shown}") from None
    except Exception as error:
        raise checked_by_plugin(name, f"{type(error).__name__}: {error}", known) from error


def checked_by_plugin(name: str, reason: str, known: Sequence[str]) -> ConfigError:
    """Return the error for options that the plugin's own check refused, with the option that *reason* mentions.

    The value is not shown: the check's text is enough, and the value may be secret.
    """
    reason, _, path = reason.partition(" - at `$")
    field = path.rstrip("`")
    spoken_of = [option for option in known if re.search(rf"(?<![\w.-]){re.escape(option)}(?![\w-])", reason)]
    if not field and spoken_of:
        field = f".{spoken_of[0]}"
    return ConfigError(f"option of a dispatcher: dispatchers.{name}{field} reason={reason}")
