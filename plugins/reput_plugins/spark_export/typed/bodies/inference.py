"""Inference: the fields of bodies without a schema, from the values in the first of them.

Each field gets its most frequent type. Whole numbers beside broken ones are broken ones. If a whole number has more
than 64 bits, the field is a decimal, because floating-point numbers would round it. Values that are null, empty, nested
too deeply or of no type that a lake has show nothing.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from reput_plugins.spark_export.typed.column_types import UTC_TIME

__all__ = ["infer_json", "infer_msgpack"]

DEPTH_MAX = 64
STRUCT, LIST = "struct", "list"
LONG_RANGE = range(-(2**63), 2**63)
LARGE = pa.decimal128(38, 0)
LARGE_RANGE = range(1 - 10**38, 10**38)
NOT_A_BODY = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)


class Values:
    """The values at one place of the bodies.

    Attributes:
        counts: the number of values by type; nested ones as `STRUCT` and `LIST`.
        fields: the values in the fields of structs.
        elements: the values in lists.
    """

    __slots__ = ("counts", "elements", "fields")

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.fields: dict[str, Values] = {}
        self.elements: Values | None = None

    def add(self, value: Any, depth: int = 0) -> None:
        """Note a value."""
        kind = STRUCT if isinstance(value, dict) else LIST if isinstance(value, list) else scalar_type(value)
        if kind is None or depth > DEPTH_MAX:
            return
        self.counts[kind] += 1
        if kind == STRUCT:
            for name, inner in value.items():
                if isinstance(name, str):
                    self.fields.setdefault(name, Values()).add(inner, depth + 1)
        elif kind == LIST:
            self.elements = self.elements or Values()
            for inner in value:
                self.elements.add(inner, depth + 1)

    def type(self) -> pa.DataType | None:
        """Return the most frequent type, the first of several; None: no value shows one."""
        found: dict[pa.DataType, int] = {}
        for kind, count in self.counts.items():
            whole = self.nested_type(kind) if isinstance(kind, str) else kind
            if whole is not None:
                found[whole] = count
        for wider, others in ((pa.float64(), (pa.int64(), LARGE)), (LARGE, (pa.int64(),))):
            if wider in found:
                found[wider] += sum(found.pop(other, 0) for other in others)
        return max(found, key=found.__getitem__, default=None)

    def nested_type(self, kind: str) -> pa.DataType | None:
        """Return the type of the structs, or of the lists; None: they are empty."""
        if kind == LIST:
            element = self.elements.type() if self.elements is not None else None
            return None if element is None else pa.list_(pa.field("element", element))
        fields: dict[str, pa.Field] = {}
        for name, values in self.fields.items():
            inner = values.type()
            if inner is not None:
                # Lakes compare names without regard to case.
                fields.setdefault(name.lower(), pa.field(name, inner))
        return pa.struct(list(fields.values())) if fields else None


def scalar_type(value: Any) -> pa.DataType | None:
    """Return the type of a value that has no parts; None: there is none."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in LONG_RANGE else LARGE if value in LARGE_RANGE else None
    if isinstance(value, datetime.datetime):
        return UTC_TIME if value.tzinfo is not None else pa.timestamp("us")
    simple = {float: pa.float64(), str: pa.string(), bytes: pa.binary()}
    return simple.get(type(value))


def infer_json(bodies: pa.BinaryArray) -> pa.Schema:
    """Return the fields of those *bodies* that are JSON objects. Times are texts: the next body may have any text."""
    return infer(bodies, msgspec.json.decode)


def infer_msgpack(bodies: pa.BinaryArray) -> pa.Schema:
    """Return the fields of those *bodies* that are MessagePack maps."""
    return infer(bodies, msgspec.msgpack.decode)


def infer(bodies: pa.BinaryArray, decode: Callable[[bytes], Any]) -> pa.Schema:
    """Return the fields of those *bodies* that *decode* makes a mapping."""
    rows = Values()
    for body in bodies:
        try:
            row = decode(body.as_py())
        except NOT_A_BODY:
            continue
        if isinstance(row, dict):
            rows.add(row)
    found = rows.type()
    return pa.schema([] if found is None else list(found))
