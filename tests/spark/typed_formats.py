"""Schemas and bodies for the tests of typed tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput_plugins.spark_export.typed.bodies.decoding import Decoded
    from reput_plugins.spark_export.typed.resolved_table import ResolvedTable

__all__ = ["AVRO_SCHEMA", "PROTO_SCHEMA", "avro_payment", "decode", "resolved"]

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


def decode(decoder: Any, bodies: list[bytes]) -> Decoded:
    """Decode, and check that each body is either kept or refused, and once."""
    import pyarrow as pa

    found: Decoded = decoder.decode(pa.array(bodies, pa.binary()))
    found.rows.validate(full=True)
    assert found.rows.schema == decoder.schema
    assert len(found.kept) == found.rows.num_rows
    assert sorted([*found.kept.tolist(), *(number for number, _ in found.refused)]) == list(range(len(bodies)))
    return found


def resolved(tmp_path: Path, name: str, text: str | bytes, **keys: Any) -> ResolvedTable:
    """Return a table with a schema file of that content."""
    from reput_plugins.spark_export.typed import schema_resolution
    from reput_plugins.spark_export.typed.table_specs import TableSpec

    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    spec = TableSpec(name="orders", topic="orders", schema=str(path), **keys)
    return schema_resolution.resolved(spec, None, None, 0, 0)  # type: ignore[arg-type]
