"""Columns of Iceberg tables in Arrow's types, with or without the ids by which readers find them in data files."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

__all__ = ["arrow_columns", "columns_of_files"]


def arrow_columns(schema: Schema, *, with_ids: bool) -> pa.Schema:
    """Return the columns of a table; texts and bytes in Arrow's types of 32-bit offsets, as exports have them."""
    return pa.schema([narrow(field) for field in schema_to_pyarrow(schema, include_field_ids=with_ids)])


def columns_of_files(schema: Schema, wanted: pa.Schema) -> pa.Schema:
    """Return those columns of a table that *wanted* has, in its order, with their ids."""
    known = arrow_columns(schema, with_ids=True)
    return pa.schema([known.field(name) for name in wanted.names])


def narrow(field: pa.Field) -> pa.Field:
    """Return a field with 32-bit offsets, and the ids of its parts."""
    kind = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_map(kind):
        kind = pa.map_(narrow(kind.key_field), narrow(kind.item_field))
    elif pa.types.is_large_list(kind) or pa.types.is_list(kind):
        kind = pa.list_(narrow(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([narrow(part) for part in kind])
    return pa.field(field.name, kind, field.nullable, field.metadata)
