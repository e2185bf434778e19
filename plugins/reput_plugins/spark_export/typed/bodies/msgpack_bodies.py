"""MessagePack bodies as columns, by ``msgspec``, which checks every value against the schema while it decodes.

No maintained library decodes MessagePack by column, so this costs a Python object per value. Values are not converted
to other types: a text is never a number.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from reput_plugins.spark_export.typed.bodies.decoding import Decoded, decode_halves
from reput_plugins.spark_export.typed.column_types import conform, map_types, read_type

__all__ = ["MsgpackBodies"]

ERRORS = (
    msgspec.DecodeError,
    msgspec.ValidationError,
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    OverflowError,
    ValueError,
    # Too many arrays inside of each other.
    RecursionError,
)


class MsgpackBodies:
    """Decodes MessagePack maps with texts as keys. Fields that the schema does not name are left out."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.decoder = msgspec.msgpack.Decoder(row_type(list(schema)))
        self.read = pa.schema([field.with_type(map_types(field.type, read_type)) for field in schema])

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the columns of the bodies that fit."""
        return decode_halves(bodies, self.schema, self.attempt, ERRORS)

    def attempt(self, bodies: pa.BinaryArray) -> pa.Table:
        """Return a row for each of *bodies*; raise if any does not fit."""
        decode = self.decoder.decode
        rows: list[dict[str, Any]] = [decode(body) for body in bodies.to_pylist()]
        return conform(pa.Table.from_pylist(rows, self.read), self.schema)


def row_type(fields: list[pa.Field]) -> Any:
    """Return the type of a map with these fields, all of which may be absent or nil."""
    return TypedDict("Row", {field.name: value_type(field.type) for field in fields}, total=False)  # type: ignore[operator]


def value_type(kind: pa.DataType) -> Any:
    """Return the Python type of the values of a column."""
    types = pa.types
    found: Any = None
    if types.is_struct(kind):
        found = row_type(list(kind))
    elif types.is_list(kind):
        found = list[value_type(kind.value_type)]  # type: ignore[misc]
    elif types.is_map(kind):
        found = dict[str, value_type(kind.item_type)]  # type: ignore[misc]
    elif types.is_integer(kind):
        half = 1 << (kind.bit_width - 1)
        found = Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]
    elif types.is_floating(kind):
        found = float
    elif types.is_timestamp(kind):
        found = Annotated[datetime.datetime, msgspec.Meta(tz=kind.tz is not None)]
    elif types.is_decimal(kind):
        found = decimal.Decimal
    else:
        simple = {pa.bool_(): bool, pa.string(): str, pa.binary(): bytes, pa.date32(): datetime.date}
        found = simple[kind]
    return found | None
