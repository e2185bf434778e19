"""Bodies that are text or a CSV record, as columns."""

from __future__ import annotations

import re
import secrets

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from reput_plugins.spark_export.typed.bodies.decoding import Decoded, decode_halves
from reput_plugins.spark_export.typed.column_types import refuse_long_decimals

__all__ = ["TEXT_SCHEMA", "CsvBodies", "TextBodies"]

COUNTS = re.compile(r"Expected (\d+) columns, got (\d+)")
WHOLE_NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)\s*")
NUMBER = re.compile(r"\s*[+-]?([0-9.]+([eE][+-]?[0-9]+)?|[A-Za-z]+(\(.*\))?)\s*")
ROW = re.compile(r"In CSV column #\d+: Row #\d+: ")
TEXT_SCHEMA = pa.schema([pa.field("text", pa.string())])


def test_of(kind: pa.DataType) -> re.Pattern[str] | None:
    """Return a pattern that matches every value that Arrow's reader accepts for a type; None: there is no pattern."""
    if pa.types.is_integer(kind):
        return WHOLE_NUMBER
    return NUMBER if pa.types.is_floating(kind) else None


class TextBodies:
    """Decodes UTF-8 into the column ``text``."""

    schema = TEXT_SCHEMA

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the bodies that are UTF-8."""
        return decode_halves(bodies, self.schema, self.attempt, (pa.ArrowInvalid,))

    def attempt(self, bodies: pa.BinaryArray) -> pa.Table:
        """Return a row for each of *bodies*; raise if any is not UTF-8."""
        try:
            return pa.table([bodies.cast(pa.string())], schema=self.schema)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid("the body is not UTF-8") from None


class CsvBodies:
    """Decodes one CSV record per body, without a header; the schema names the values in order.

    An empty value is null, except in a column of texts. As with JSON, each record gets a number as its first value,
    which proves that every body holds exactly one record. The numbers start at random.
    """

    def __init__(self, schema: pa.Schema, delimiter: str) -> None:
        self.schema = schema
        self.delimiter = delimiter
        self.first = secrets.randbits(60)
        self.tests = [test_of(field.type) for field in schema]
        names = [f"{self.first:x}", *schema.names]
        self.reading = pcsv.ReadOptions(use_threads=False, column_names=names)
        self.parsing = pcsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        self.converting = pcsv.ConvertOptions(
            column_types={names[0]: pa.int64(), **{field.name: field.type for field in schema}},
            null_values=[""],
            strings_can_be_null=False,
        )

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the columns of the bodies that fit."""
        return decode_halves(bodies, self.schema, self.attempt, (pa.ArrowInvalid, pa.ArrowKeyError), self.quick_reason)

    def quick_reason(self, body: bytes) -> str | None:
        """Return why *body* certainly does not fit, None if it may fit."""
        try:
            text = body.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            return "the body is not UTF-8"
        if '"' in text or "\n" in text or "\r" in text:
            # Quoted values may contain delimiters and newlines, so only the reader can tell.
            return None
        values = text.split(self.delimiter)
        if len(values) != len(self.schema):
            return f"the record has {len(values)} values, the schema {len(self.schema)}"
        for field, test, value in zip(self.schema, self.tests, values, strict=True):
            if value and test is not None and not test.fullmatch(value):
                return f"the value does not fit its column: column={field.name} type={field.type} value={value!r}"
        return None

    def attempt(self, bodies: pa.BinaryArray) -> pa.Table:
        """Return a row for each of *bodies*; raise if any does not fit."""
        text = pc.ascii_rtrim(bodies.cast(pa.string()), "\r\n")
        expected = pa.array(range(self.first, self.first + len(bodies)), pa.int64())
        numbers = pc.binary_join_element_wise(expected.cast(pa.string()), text, self.delimiter)
        lines = pc.binary_join_element_wise(numbers, "\n", "").buffers()[2]
        self.reading.block_size = max(lines.size + 1, 1024)
        try:
            table = pcsv.read_csv(pa.BufferReader(lines), self.reading, self.parsing, self.converting)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(self.reason(str(error))) from None
        if table.num_rows != len(bodies) or not table.column(0).combine_chunks().equals(expected):
            raise pa.ArrowInvalid("the body is not one record")
        rows = table.select(self.schema.names)
        refuse_long_decimals(rows)
        return rows.cast(self.schema)

    def reason(self, text: str) -> str:
        """Return the reader's error without the number that stands before each record."""
        counted = COUNTS.search(text)
        if counted is None:
            return ROW.sub("", text)
        expected, found = (int(number) - 1 for number in counted.groups())
        return f"the record has {found} values, the schema {expected}"
