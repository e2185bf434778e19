"""PluginDescription: what a dispatcher declares, in a form that travels between processes and is kept on disk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from reput_hooks import DispatcherDescription

__all__ = ["OptionField", "PluginDescription", "portable_description"]


class OptionField(msgspec.Struct, frozen=True):
    """One option: its name, its type as one would write it, and its default; *required*: it has none."""

    name: str
    type: str
    required: bool
    default: Any = None


class PluginDescription(msgspec.Struct, frozen=True):
    """As `reput_hooks.DispatcherDescription`, but for *options*, which are the fields of the plugin's struct."""

    api_version: int
    after: tuple[str, ...]
    after_failed: Literal["wait", "proceed"]
    reads: Literal["durable", "appended"]
    feeds: Literal["requests", "positions"]
    needs_properties: bool
    store_folders: tuple[str, ...]
    rebuilt_with: tuple[str, ...]
    batch_record_count_max: Annotated[int, Meta(ge=1)] | None
    batch_size_max: Annotated[int, Meta(ge=1)] | None
    options: tuple[OptionField, ...]


def portable_description(description: DispatcherDescription) -> PluginDescription:
    """Return *description* without the plugin's types."""
    fields = msgspec.structs.fields(description.options) if description.options else ()
    return PluginDescription(
        api_version=description.api_version,
        after=description.after,
        after_failed=description.after_failed,
        reads=description.reads,
        feeds=description.feeds,
        needs_properties=description.needs_properties,
        store_folders=description.store_folders,
        rebuilt_with=description.rebuilt_with,
        batch_record_count_max=description.batch_record_count_max,
        batch_size_max=description.batch_size_max,
        options=tuple(option_field(field) for field in fields),
    )


def option_field(field: msgspec.structs.FieldInfo) -> OptionField:
    """Return what is to be known of one field of an options struct."""
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT:
        default = None
    name = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return OptionField(field.encode_name, name, field.required, msgspec.to_builtins(default, enc_hook=repr))
