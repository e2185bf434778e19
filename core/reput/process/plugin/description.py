"""PluginDescription: a dispatcher's declarations, in a form that can be sent between processes and cached on disk."""

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
    """Like `reput_hooks.DispatcherDescription`, apart from these fields.

    Attributes:
        options: the fields of the plugin's struct.
        schema: the JSON schema of that struct; None: there is no struct, or JSON cannot express it.
        view_elsewhere: evaluated with the given options.
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
    """Tell whether the view lies outside the store with these options, an instance of the plugin's struct."""
    declared = description.view_elsewhere
    return bool(declared(options) if callable(declared) else declared)


def portable_description(description: DispatcherDescription, *, view_elsewhere: bool = False) -> PluginDescription:
    """Return *description* without the plugin's types; *view_elsewhere* as returned by `lies_elsewhere`."""
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
    """Return the JSON schema of an options struct; a type unknown to JSON is described by its Python name.

    None: a default is unknown to JSON, such as a path. The fields still list the options.
    """
    try:
        return msgspec.json.schema(options, schema_hook=lambda kind: {"description": str(kind)})
    except TypeError:
        return None


def option_field(field: msgspec.structs.FieldInfo) -> OptionField:
    """Return the description of one field of an options struct."""
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT:
        default = None
    name = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return OptionField(field.encode_name, name, field.required, msgspec.to_builtins(default, enc_hook=repr))
