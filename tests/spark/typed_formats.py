"""Schemas and bodies for the tests of typed tables."""

from __future__ import annotations

import io
from typing import Any

__all__ = ["AVRO_SCHEMA", "PROTO_SCHEMA", "avro_payment"]

AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
PROTO_SCHEMA = 'syntax = "proto3"; package shop; message Event { int64 id = 1; string name = 2; }'


def avro_payment(number: int, name: str) -> bytes:
    """Return a body of `AVRO_SCHEMA`."""
    import fastavro

    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(AVRO_SCHEMA), {"id": number, "name": name})
    return output.getvalue()
