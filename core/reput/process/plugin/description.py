"""PluginDescription: what a dispatcher declares, in a form that travels between processes and is kept on disk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from reput_hooks import DispatcherDescription

__all__ = ["OptionField", "PluginDescription", "lies_elsewhere", "portable_description"]


class OptionField(msgspec.Struct, frozen=True):
    """One option: its name, its type as one would write it, and its default; *required*: it has none."""

    name: str
    type: str
    required: bool
    default: Any = None


class PluginDescription(msgspec.Struct, frozen=True):
    """As `reput_hooks.DispatcherDescription`, but for two fields.

    Attributes:
        options: the fields of the plugin's struct.
        schema: the JSON schema of that struct; None: there is no struct, or none of JSON's.
        view_elsewhere: with the options that were given.
    """

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
    view_version: Annotated[int, Meta(ge=0)]
    view_elsewhere: bool
    options: tuple[OptionField, ...]
    schema: dict[str, Any] | None = None


def lies_elsewhere(description: DispatcherDescription, options: object) -> bool:
    """Tell whether the view leaves the store, with these options, which are an instance of the plugin's struct."""
    declared = description.view_elsewhere
    return bool(declared(options) if callable(declared) else declared)


def portable_description(description: DispatcherDescription, *, view_elsewhere: bool = False) -> PluginDescription:
    """Return *description* without the plugin's types; *view_elsewhere* as `lies_elsewhere` has it."""
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
        view_version=description.view_version,
        view_elsewhere=view_elsewhere,
        options=tuple(option_field(field) for field in fields),
        schema=None if description.options is None else options_schema(description.options),
    )


def options_schema(options: type[msgspec.Struct]) -> dict[str, Any] | None:
    """Return the JSON schema of an options struct; of a type that JSON does not know, what Python calls it.

    None: it has a default that JSON does not know, as a path. The fields say what there is.
    """
    try:
        return msgspec.json.schema(options, schema_hook=lambda kind: {"description": str(kind)})
    except TypeError:
        return None


def option_field(field: msgspec.structs.FieldInfo) -> OptionField:
    """Return what is to be known of one field of an options struct."""
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT:
        default = None
    name = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return OptionField(field.encode_name, name, field.required, msgspec.to_builtins(default, enc_hook=repr))
