"""ResolvedTable: a typed table once its schema is known. The driver makes it, and Spark sends it to the workers."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from reput_plugins.spark_export.typed.table_specs import TableSpec

__all__ = ["ResolvedTable"]


class ResolvedTable(msgspec.Struct, frozen=True):
    """A table whose schema is known.

    Attributes:
        schema: the columns of its bodies, with types that a lake can hold.
        source: the schema in its original form: Avro's JSON, or protobuf's descriptors.
        message: full name of the protobuf message.
    """

    spec: TableSpec
    schema: pa.Schema
    source: bytes = b""
    message: str = ""
