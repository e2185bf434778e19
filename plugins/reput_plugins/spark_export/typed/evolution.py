"""Evolution: how a table's columns change when the schema of its bodies changes.

A field that only the schema has is added. A field that only the table has stays, and is null in new rows. If the
table's type can hold the schema's type without loss, the column keeps its type. If the schema's type can hold the
table's, the column is widened. Every other change is refused, because rows that readers already have would change their
meaning.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from reput.errors import ConfigError
from reput_plugins.spark_export.lake_location import ICEBERG_FORMAT

__all__ = ["extended_schema", "has_wider_types", "merged_schema"]

# Decimal digits of the largest number of so many bits.
DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
ADVICE = "Name another table for the new schema; it is filled from the log. Or keep the types."
DELTA_ALONE = (
    "Iceberg widens only int32 to int64, float to double, and decimals to more digits of the same scale; "
    "a Delta table can be widened like this. "
)


def merged_schema(kept: pa.Schema, asked: pa.Schema, table: str, table_format: str) -> pa.Schema:
    """Return the columns with which a table of *kept* can hold rows of *asked*: those of *kept*, then new ones.

    Args:
        table: place of the table, for errors.
        table_format: ``delta`` or ``iceberg``, which allows fewer types to be widened.

    Raises:
        ConfigError: a column has another type; the message shows column, type kept and type asked for each.
    """
    merging = Merging(promotes if table_format == ICEBERG_FORMAT else widens)
    fields = merging.fields("", list(kept), list(asked))
    if merging.differences:
        raise ConfigError(
            f"the schema has other types than the table: table={table} {'; '.join(merging.differences)}",
            (DELTA_ALONE if merging.delta_alone else "") + ADVICE,
        )
    return pa.schema(fields)


def extended_schema(kept: pa.Schema, found: pa.Schema) -> pa.Schema:
    """Return the columns of *kept* with their types, and the columns and fields of structs that only *found* has."""
    return pa.schema(Merging(lambda *_: False).fields("", list(kept), list(found)))


def has_wider_types(kept: pa.Schema, merged: pa.Schema) -> bool:
    """Return whether a column, or a part of one, that *kept* has is wider in *merged*; *merged* has all its columns."""
    return any(is_wider(field.type, merged.field(field.name).type) for field in kept)


def is_wider(kept: pa.DataType, merged: pa.DataType) -> bool:
    """Return whether a type differs in more than additional fields of structs."""
    if pa.types.is_struct(kept):
        return any(is_wider(field.type, merged.field(field.name).type) for field in kept)
    if pa.types.is_list(kept):
        return is_wider(kept.value_type, merged.value_type)
    if pa.types.is_map(kept):
        return is_wider(kept.key_type, merged.key_type) or is_wider(kept.item_type, merged.item_type)
    return bool(kept != merged)


class Merging:
    """The merging of one table's columns with those of a schema.

    Attributes:
        differences: the types that cannot be merged, as text.
        delta_alone: whether a Delta table could be widened to one of these types.
    """

    def __init__(self, may_widen: Callable[[pa.DataType, pa.DataType], bool]) -> None:
        self.may_widen = may_widen
        self.differences: list[str] = []
        self.delta_alone = False

    def fields(self, place: str, kept: list[pa.Field], asked: list[pa.Field]) -> list[pa.Field]:
        """Return the fields of both."""
        # Lakes compare names without regard to case.
        wanted = {field.name.lower(): field for field in asked}
        found = []
        for field in kept:
            other = wanted.pop(field.name.lower(), None)
            if other is not None and other.name != field.name:
                self.differences.append(f"column={place}{field.name} kept={field.name} asked={other.name}")
                other = None
            kind = field.type if other is None else self.type_of(place + field.name, field.type, other.type)
            found.append(pa.field(field.name, kind, field.nullable))
        return found + list(wanted.values())

    def type_of(self, name: str, kept: pa.DataType, asked: pa.DataType) -> pa.DataType:
        """Return the type of one column."""
        if kept == asked or holds(kept, asked):
            return kept
        if pa.types.is_struct(kept) and pa.types.is_struct(asked):
            return pa.struct(self.fields(f"{name}.", list(kept), list(asked)))
        if pa.types.is_list(kept) and pa.types.is_list(asked):
            return pa.list_(pa.field("element", self.type_of(f"{name}.element", kept.value_type, asked.value_type)))
        if pa.types.is_map(kept) and pa.types.is_map(asked):
            key = self.type_of(f"{name}.key", kept.key_type, asked.key_type)
            return pa.map_(key, self.type_of(f"{name}.value", kept.item_type, asked.item_type))
        if self.may_widen(kept, asked):
            return asked
        self.differences.append(f"column={name} kept={kept} asked={asked}")
        self.delta_alone |= widens(kept, asked)
        return kept


def widens(kept: pa.DataType, asked: pa.DataType) -> bool:
    """Return whether a column of a Delta table can be widened. The changes are those of Delta's type widening."""
    return holds(asked, kept)


def promotes(kept: pa.DataType, asked: pa.DataType) -> bool:
    """Return whether a column of an Iceberg table can be widened. Source: Iceberg's specification, schema evolution."""
    types = pa.types
    if types.is_decimal(kept) and types.is_decimal(asked):
        return bool(kept.scale == asked.scale and kept.precision <= asked.precision)
    kinds = (types.is_signed_integer, types.is_floating)
    return any(test(kept) and test(asked) for test in kinds) and holds(asked, kept)


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
    if types.is_decimal(kept) and types.is_signed_integer(asked):
        return bool(kept.precision - kept.scale >= DIGITS[asked.bit_width])
    # A date is its midnight without a zone. As a point in time it would depend on one.
    return bool(types.is_date(asked) and types.is_timestamp(kept) and kept.tz is None)
