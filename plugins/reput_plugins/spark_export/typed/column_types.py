"""Types of columns: which ones a lake can hold, and how decoded columns become columns of the table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.errors import ConfigError

__all__ = [
    "conform",
    "lake_schema_of",
    "lake_type",
    "map_types",
    "read_type",
    "refuse_distant_times",
    "refuse_long_decimals",
]

UTC_TIME = pa.timestamp("us", "UTC")
# The beginning of year 1 and the end of year 9999, in seconds since 1970.
SECOND_MIN, SECOND_END = -62_135_596_800, 253_402_300_800
SECONDS_OF_DAY = 86_400
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


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

    def refuse(name: str, kind: pa.DataType) -> None:
        raise ConfigError(
            f"a lake cannot hold this type: table={table} column={name} type={kind}",
            "Give a schema without this field.",
        )

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
                refuse(name, kind)
            return found

        if has_part(field.type, is_empty_struct):
            refuse(field.name, field.type)
        fields.append(pa.field(field.name, map_types(field.type, change)))
    if not fields:
        raise ConfigError(f"the schema has no field: table={table}", "A table needs at least one column.")
    return pa.schema(fields)


def has_part(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type, or a type inside of it, passes a test."""
    if test(kind):
        return True
    return pa.types.is_nested(kind) and any(has_part(kind.field(at).type, test) for at in range(kind.num_fields))


def is_empty_struct(kind: pa.DataType) -> bool:
    """Return whether a type is a struct without fields, which Parquet files cannot hold."""
    return bool(pa.types.is_struct(kind)) and not kind.num_fields


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


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with which a value without fields is read before `conform` makes it *kind*."""
    # As a float, a number that is too large would become infinite.
    return pa.float64() if pa.types.is_float32(kind) else kind


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
        # Arrow would copy a single chunk.
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
    if values.type == kind and not has_part(kind, pa.types.is_map):
        return values
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        return conform_map(values, kind)
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
    if not pa.types.is_null(values.type) and family(values.type) != family(kind):
        raise pa.ArrowInvalid(f"a value of type {values.type} does not fit a column of type {kind}")
    cast = values.cast(kind)
    if pa.types.is_date(kind) and pa.types.is_timestamp(values.type) and not cast.cast(values.type).equals(values):
        raise pa.ArrowInvalid("the value is a time, not a date")
    is_cut = pa.types.is_float32(kind) and pa.types.is_float64(values.type)
    if is_cut and pc.any(pc.not_equal(pc.is_inf(cast), pc.is_inf(values))).as_py():
        raise pa.ArrowInvalid("the number is too large for its column")
    return cast


def conform_map(values: pa.MapArray, kind: pa.MapType) -> pa.Array:
    """Return *values* as *kind*. Of equal keys of one map only the last stays: some readers refuse the others."""
    bounds = values.offsets.to_numpy()
    sizes = np.diff(bounds)
    keys, items = (part.slice(bounds[0], bounds[-1] - bounds[0]) for part in (values.keys, values.items))
    rows = np.repeat(np.arange(len(values)), sizes)
    # A number for each pair of map and key.
    encoded = keys.dictionary_encode()
    pairs = rows * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
    _, last = np.unique(pairs[::-1], return_index=True)
    if len(last) < len(pairs):
        kept = np.sort(len(pairs) - 1 - last)
        keys, items = keys.take(pa.array(kept)), items.take(pa.array(kept))
        sizes = np.bincount(rows[kept], minlength=len(values))
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    keys, items = conform_array(keys, kind.key_type), conform_array(items, kind.item_type)
    return pa.MapArray.from_arrays(
        offsets, keys, items, type=kind, mask=values.is_null() if values.null_count else None
    )


def family(kind: pa.DataType) -> str:
    """Return what the values of a type are. A text is never read as a number, nor a number as a time."""
    types = pa.types
    if types.is_dictionary(kind):
        return family(kind.value_type)
    if types.is_nested(kind):
        # With the kind of nesting, without the types inside.
        return str(kind).partition("<")[0].removeprefix("large_")
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return "number" if is_number else "truth" if types.is_boolean(kind) else "text"


def refuse_distant_times(table: pa.Table) -> None:
    """Refuse times and dates outside of the years 1 to 9999, which several readers of lakes cannot represent.

    Raises:
        pyarrow.ArrowInvalid: *table* has one.
    """
    for column in table.columns:
        for chunk in column.chunks:
            refuse_distant(chunk)


def refuse_long_decimals(table: pa.Table) -> None:
    """Refuse decimals with more digits than their column has. Arrow's readers of JSON and CSV do not check that.

    Raises:
        pyarrow.ArrowInvalid: *table* has one.
    """
    for column in table.columns:
        if has_part(column.type, pa.types.is_decimal):
            column.validate(full=True)


def refuse_distant(values: pa.Array) -> None:
    """Refuse such times in an array, also in structs, lists and maps."""
    kind = values.type
    if pa.types.is_map(kind):
        refuse_distant(values.keys)
        refuse_distant(values.items)
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            refuse_distant(part)
    elif pa.types.is_list(kind):
        refuse_distant(values.flatten())
    elif pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        found = pc.min_max(values)
        if found["min"].is_valid:
            lowest, highest = found["min"].value, found["max"].value
            begin, end = SECOND_MIN // SECONDS_OF_DAY, SECOND_END // SECONDS_OF_DAY
            if pa.types.is_timestamp(kind):
                begin, end = SECOND_MIN * UNITS[kind.unit], SECOND_END * UNITS[kind.unit]
            if not begin <= lowest <= highest < end:
                raise pa.ArrowInvalid("a time lies outside of the years 1 to 9999")
