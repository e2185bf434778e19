"""Evolution: how a table's columns change when the schema of its bodies changes.

A field that only the schema has is added. A field that only the table has stays, and is null in new rows. If the
table's type can hold the schema's type without loss, the column keeps its type. Every other change is refused: rows
that readers already have would change their meaning, or the Delta library cannot change the type of the column.
"""

from __future__ import annotations

import pyarrow as pa

from reput.errors import ConfigError

__all__ = ["merged_schema"]


def merged_schema(kept: pa.Schema, asked: pa.Schema, table: str) -> pa.Schema:
    """Return the columns with which a table of *kept* can hold rows of *asked*: those of *kept*, then new ones.

    Raises:
        ConfigError: a column has another type; the message shows column, type kept and type asked for each.
    """
    differences: list[str] = []
    fields = merged_fields("", list(kept), list(asked), differences)
    if differences:
        raise ConfigError(
            f"the schema has other types than the table: table={table} {'; '.join(differences)}",
            "Name another table for the new schema; it is filled from the log. Or keep the types.",
        )
    return pa.schema(fields)


def merged_fields(place: str, kept: list[pa.Field], asked: list[pa.Field], differences: list[str]) -> list[pa.Field]:
    """Return the fields of both, and add each difference of types to *differences*."""
    # Delta compares names without regard to case.
    wanted = {field.name.lower(): field for field in asked}
    found = []
    for field in kept:
        other = wanted.pop(field.name.lower(), None)
        if other is not None and other.name != field.name:
            differences.append(f"column={place}{field.name} kept={field.name} asked={other.name}")
            other = None
        kind = field.type if other is None else merged_type(place + field.name, field.type, other.type, differences)
        found.append(pa.field(field.name, kind, field.nullable))
    return found + list(wanted.values())


def merged_type(name: str, kept: pa.DataType, asked: pa.DataType, differences: list[str]) -> pa.DataType:
    """Return the type of one column."""
    if kept == asked or holds(kept, asked):
        return kept
    if pa.types.is_struct(kept) and pa.types.is_struct(asked):
        return pa.struct(merged_fields(f"{name}.", list(kept), list(asked), differences))
    if pa.types.is_list(kept) and pa.types.is_list(asked):
        return pa.list_(
            pa.field("element", merged_type(f"{name}.element", kept.value_type, asked.value_type, differences))
        )
    if pa.types.is_map(kept) and pa.types.is_map(asked):
        key = merged_type(f"{name}.key", kept.key_type, asked.key_type, differences)
        return pa.map_(key, merged_type(f"{name}.value", kept.item_type, asked.item_type, differences))
    differences.append(f"column={name} kept={kept} asked={asked}")
    return kept


def holds(kept: pa.DataType, asked: pa.DataType) -> bool:
    """Return whether the type *kept* includes every value of the type *asked*."""
    types = pa.types
    if types.is_signed_integer(kept) and types.is_signed_integer(asked):
        return bool(kept.bit_width >= asked.bit_width)
    if types.is_floating(kept) and types.is_floating(asked):
        return bool(kept.bit_width >= asked.bit_width)
    if types.is_float64(kept) and types.is_signed_integer(asked):
        return bool(asked.bit_width <= 32)
    if types.is_decimal(kept) and types.is_decimal(asked):
        return bool(kept.scale >= asked.scale and kept.precision - kept.scale >= asked.precision - asked.scale)
    return False
