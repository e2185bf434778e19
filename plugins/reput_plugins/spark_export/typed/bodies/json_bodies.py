"""JSON bodies as columns, by the kernel or else by ``pyarrow.json`` over the joined bodies.

Arrow's reader accepts one text, not an array. Each body therefore gets its number as a first field, with a random name:

    {"id":7}\n{}          →  {"5f0c…":0,"id":7}\n{"5f0c…":1}\n

If the reader returns all numbers in order, every body holds exactly one object.
"""

from __future__ import annotations

import secrets

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from reput_plugins.spark_export.typed.bodies.compiled_json import CompiledJson
from reput_plugins.spark_export.typed.bodies.decoding import Decoded, decode_halves
from reput_plugins.spark_export.typed.bodies.framing import Unframed, no_framing, split_confluent, without_first
from reput_plugins.spark_export.typed.bodies.json_screen import JsonScreen
from reput_plugins.spark_export.typed.column_types import conform, map_types, read_type, refuse_long_decimals

__all__ = ["JsonBodies"]

ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


class JsonBodies:
    """Decodes JSON objects. Fields that the schema does not name are left out; fields that are absent are null."""

    def __init__(self, schema: pa.Schema, *, confluent: bool = False) -> None:
        self.schema = schema
        self.confluent = confluent
        self.number = secrets.token_hex(8)
        # Dates are texts in JSON, and the reader converts texts to times but not to dates.
        read = pa.schema([pa.field(field.name, map_types(field.type, json_type)) for field in schema])
        self.compiled = CompiledJson(read)
        self.parsing = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(self.number, pa.int64()), *read]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )
        self.numbers = pa.array([], pa.string())
        self.screen = JsonScreen(schema)

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the columns of the bodies that fit."""
        unframed: Unframed = split_confluent(bodies) if self.confluent else no_framing(bodies)
        return unframed.whole(decode_halves(unframed.payloads, self.schema, self.attempt, ERRORS, self.screen.reason))

    def attempt(self, bodies: pa.BinaryArray) -> pa.Table:
        """Return a row for each of *bodies*; raise if any does not fit."""
        found = self.compiled.read(bodies)
        if found is None:
            found = self.read(bodies, self.parsing).drop_columns([self.number])
            refuse_long_decimals(found)
        return conform(found, self.schema)

    def read(self, bodies: pa.BinaryArray, parsing: pj.ParseOptions) -> pa.Table:
        """Return a row for each of *bodies*, with its number."""
        # The reader itself does not check the bytes within strings.
        text = bodies.cast(pa.string())
        # Few senders begin with white space, and to trim it copies every body.
        if not begins_with_brace(text):
            text = pc.ascii_ltrim_whitespace(text)
            if not begins_with_brace(text):
                raise pa.ArrowInvalid("the body is not a JSON object")
        rest = without_first(text, 1)
        names = self.named(len(bodies))
        if not pc.all(pc.starts_with(rest, '"')).as_py():
            rest = pc.ascii_ltrim_whitespace(rest)
            comma = pc.if_else(pc.starts_with(rest, "}"), "", ",")
        else:
            comma = pa.scalar(",")
        joined = pc.binary_join_element_wise(names, comma, rest, "\n", "")
        lines = joined.buffers()[2]
        table = pj.read_json(
            pa.BufferReader(lines),
            read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=parsing,
        )
        expected = pa.array(np.arange(len(bodies)))
        if table.num_rows != len(bodies) or not table[self.number].combine_chunks().equals(expected):
            raise pa.ArrowInvalid("the body is not one JSON object")
        return table

    def named(self, count: int) -> pa.StringArray:
        """Return the beginnings of *count* objects, each with its number."""
        if len(self.numbers) < count:
            digits = pa.array(np.arange(count)).cast(pa.string())
            self.numbers = pc.binary_join_element_wise(f'{{"{self.number}":', digits, "")
        return self.numbers.slice(0, count)


def begins_with_brace(texts: pa.StringArray) -> bool:
    """Return whether each text begins as an object."""
    return bool(pc.all(pc.starts_with(texts, "{")).as_py())


def json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with which the reader reads a value of type *kind*."""
    return pa.timestamp("us") if pa.types.is_date(kind) else read_type(kind)
