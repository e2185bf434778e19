"""Types of columns: which ones a lake can hold, and how decoded columns become columns of the table."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from reput.errors import ConfigError

__all__ = ["conform", "lake_schema_of", "lake_type", "map_types"]

UTC_TIME = pa.timestamp("us", "UTC")


def map_types(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with *change* applied to every type in it that has no fields."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, map_types(field.type, change)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(map_types(kind.key_type, change), map_types(kind.item_type, change))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", map_types(kind.value_type, change)))
    return change(kind)


def lake_schema_of(schema: pa.Schema, table: str, *, naive_is_utc: bool = False) -> pa.Schema:
    """Return *schema* with types that a lake can hold, every column nullable.

    Args:
        table: name of the table, for errors.
        naive_is_utc: times without a zone are in UTC, as in Avro and protobuf.

    Raises:
        ConfigError: a column has a type that no lake can hold, or two columns differ only in case.
    """
    seen: dict[str, str] = {}
    fields = []
    for field in schema:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name or len(schema.get_all_field_indices(field.name)) > 1:
            raise ConfigError(
                f"two columns differ only in case: table={table} column={other} column={field.name}",
                "Delta tables do not tell them apart; give a schema without one of them.",
            )

        def change(kind: pa.DataType, name: str = field.name) -> pa.DataType:
            found = lake_type(kind, naive_is_utc)
            if found is None:
                raise ConfigError(
                    f"a lake cannot hold this type: table={table} column={name} type={kind}",
                    "Give a schema without this field.",
                )
            return found

        fields.append(pa.field(field.name, map_types(field.type, change)))
    if not fields:
        raise ConfigError(f"the schema has no field: table={table}", "A table needs at least one column.")
    return pa.schema(fields)


def lake_type(kind: pa.DataType, naive_is_utc: bool = False) -> pa.DataType | None:
    """Return the lake's type for a type without fields; None: there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return lake_type(kind.value_type, naive_is_utc)
    if types.is_timestamp(kind):
        return UTC_TIME if kind.tz is not None or naive_is_utc else pa.timestamp("us")
    if types.is_date(kind):
        return pa.date32()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if any(test(kind) for test in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)):
        return pa.binary()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
    if types.is_unsigned_integer(kind):
        # Delta has no unsigned numbers, so a number beyond the signed range does not fit.
        return {8: pa.int16(), 16: pa.int32()}.get(kind.bit_width, pa.int64())
    if types.is_time(kind) or types.is_duration(kind):
        return pa.int64()
    if types.is_float16(kind):
        return pa.float32()
    is_held = types.is_signed_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return kind if is_held else None


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return *table* with the columns of *schema*, found by name and cast without loss. Missing columns are null.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit its column.
    """
    arrays = []
    for field in schema:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.nulls(table.num_rows, field.type))
        else:
            arrays.append(conform_array(table.column(at), field.type))
    return pa.table(arrays, schema=schema)


def conform_array(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return *values* as *kind*, fields of structs by name."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
    if values.type == kind:
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        inner = pa.table(values.flatten(), names=[field.name for field in values.type])
        fields = conform(inner, pa.schema(list(kind)))
        found = [conform_array(fields.column(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(found, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind) and (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        # `flatten` leaves out values that belong to no list, as in sliced or null ones.
        flat = conform_array(values.flatten(), kind.value_type)
        sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
        offsets = pa.array([0, *sizes.cumsum().tolist()], pa.int32())
        return pa.ListArray.from_arrays(offsets, flat, type=kind, mask=values.is_null())
    if pa.types.is_time(values.type) or pa.types.is_duration(values.type):
        return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).cast(kind)
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(kind) and values.type.tz != kind.tz:
        # The point in time stays the same.
        values = values.cast(pa.timestamp(values.type.unit)).cast(pa.timestamp(kind.unit))
        return values.view(kind)
    cast = values.cast(kind)
    if pa.types.is_date(kind) and pa.types.is_timestamp(values.type) and not cast.cast(values.type).equals(values):
        raise pa.ArrowInvalid("the value is a time, not a date")
    return cast
