"""Avro bodies as columns, by ``pyruhvro``, which decodes in Rust and raises if a body ends too early.

The library does not support the types ``bytes`` and ``fixed``, and therefore no decimals. Schemas with such a field are
decoded row by row with ``fastavro``, at a twentieth of the speed.

With a registry, each body names the schema with which it was written. Bodies are decoded by their own schema; the
fields then become the table's columns by name, and a field that the writer did not have is null. As in every Avro
reader, bytes after the last field are ignored, because Avro does not mark where a record ends.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from reput.errors import ConfigError
from reput_plugins.spark_export.typed.bodies.avro_schemas import avro_fields, self_contained
from reput_plugins.spark_export.typed.bodies.decoding import (
    Decoded,
    decode_halves,
    joined,
    panics_as_errors,
    short_reason,
)
from reput_plugins.spark_export.typed.bodies.framing import no_framing, split_confluent, split_single_object
from reput_plugins.spark_export.typed.column_types import conform, lake_schema_of, refuse_distant_times
from reput_plugins.spark_export.typed.field_schemas import read_schema_file
from reput_plugins.spark_export.typed.registry import RegisteredSchema, Registry
from reput_plugins.spark_export.typed.requirements import require_library
from reput_plugins.spark_export.typed.resolved_table import ResolvedTable
from reput_plugins.spark_export.typed.table_specs import TableSpec, is_registry

__all__ = ["AvroBodies", "resolve_avro"]

# Logical types, and the name under which the library decodes them. Others are decoded as their underlying types.
DECODED_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp-millis",
    "timestamp-micros": "timestamp-micros",
    "local-timestamp-millis": "timestamp-millis",
    "local-timestamp-micros": "timestamp-micros",
}
ERRORS = (ValueError, TypeError, OverflowError, EOFError, LookupError, ArithmeticError, NotImplementedError)


def resolve_avro(spec: TableSpec) -> ResolvedTable:
    """Return the table with the schema of its file, or with the newest schema of its registry subject.

    Raises:
        ConfigError: the schema is not an Avro schema, or a lake cannot hold a field.
        DispatcherError: a library is missing, or the registry does not answer.
    """
    require_library("pyruhvro")
    if is_registry(spec.schema):
        source = whole_text(Registry.of(spec).latest("AVRO"), spec.name).encode()
    else:
        source = read_schema_file(str(spec.schema), spec.name)
    found = schema_in(source, spec.name)
    return ResolvedTable(spec, lake_schema_of(avro_fields(found, spec.name), spec.name), source)


def whole_text(schema: RegisteredSchema, table: str) -> str:
    """Return a registry's schema with the definitions of the types that it takes from other schemas.

    Raises:
        ConfigError: a schema is not JSON.
    """
    if not schema.references:
        return schema.text
    imported = [schema_in(text, table) for text in schema.references.values()]
    return msgspec.json.encode(self_contained(schema_in(schema.text, table), imported)).decode()


def schema_in(source: bytes | str, table: str) -> Any:
    """Return the schema that a text holds.

    Raises:
        ConfigError: it is not JSON.
    """
    try:
        return msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"an Avro schema is not JSON: table={table} error={error}") from None


class AvroBodies:
    """Decodes Avro records."""

    def __init__(self, table: ResolvedTable) -> None:
        require_library("pyruhvro")
        self.schema = table.schema
        self.spec = table.spec
        self.source = table.source.decode()
        self.registry = Registry.of(table.spec) if is_registry(table.spec.schema) else None
        self.readers: dict[str, Callable[[list[bytes]], pa.Table]] = {}
        self.fingerprint = fingerprint(self.source) if table.spec.framing == "single_object" else 0

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the columns of the bodies that fit."""
        if self.spec.framing == "single_object":
            unframed = split_single_object(bodies)
            known = unframed.mark == self.fingerprint
            reason = f"the body names another schema than the table's: fingerprint={self.fingerprint:016x}"
            unframed = unframed.chosen(known, reason)
            return unframed.whole(self.decode_by(unframed.payloads, self.source))
        if not self.spec.is_confluent:
            return no_framing(bodies).whole(self.decode_by(bodies, self.source))
        unframed = split_confluent(bodies)
        if self.registry is None:
            return unframed.whole(self.decode_by(unframed.payloads, self.source))
        parts: list[tuple[Decoded, Any]] = []
        for schema_id in np.unique(unframed.mark).tolist():
            at = np.flatnonzero(unframed.mark == schema_id)
            payloads = unframed.payloads.take(pa.array(at))
            text, reason = self.registry.by_id(schema_id, "AVRO")
            if text is None:
                refused = [(number, reason) for number in range(len(at))]
                found = Decoded(self.schema.empty_table(), np.empty(0, np.int64), refused)
            else:
                found = self.decode_written(payloads, schema_id, text)
            parts.append((found, at))
        return unframed.whole(joined(parts, self.schema))

    def decode_written(self, payloads: pa.BinaryArray, schema_id: int, schema: RegisteredSchema) -> Decoded:
        """Return the columns of bodies that name *schema*, which any producer may have registered."""
        try:
            return self.decode_by(payloads, whole_text(schema, self.spec.name))
        except ConfigError as error:
            reason = short_reason(f"bodies of this schema cannot be decoded: id={schema_id} error={error}")
            refused = [(number, reason) for number in range(len(payloads))]
            return Decoded(self.schema.empty_table(), np.empty(0, np.int64), refused)

    def decode_by(self, payloads: pa.BinaryArray, source: str) -> Decoded:
        """Return the columns of bodies that were written with the schema *source*."""
        if source not in self.readers:
            self.readers[source] = reader_of(source, self.spec.name)
        read = self.readers[source]

        def attempt(part: pa.BinaryArray) -> pa.Table:
            return conform(read(part.to_pylist()), self.schema)

        return decode_halves(payloads, self.schema, attempt, ERRORS)


def reader_of(source: str, table: str) -> Callable[[list[bytes]], pa.Table]:
    """Return a function that decodes bodies that were written with the schema *source*."""
    found = schema_in(source, table)
    fields = avro_fields(found, table)
    plain = rewritten(found)
    if plain is None:
        return row_reader(found, fields, table)
    import pyruhvro

    schema = msgspec.json.encode(plain).decode()

    def read(bodies: list[bytes]) -> pa.Table:
        with panics_as_errors():
            found = pa.Table.from_batches([pyruhvro.deserialize_array(bodies, schema)])
        # The library does not check the encoding of texts, and readers of the lake would fail at such a row.
        found.validate(full=True)
        refuse_distant_times(found)
        return found

    return read


def row_reader(found: Any, schema: pa.Schema, table: str) -> Callable[[list[bytes]], pa.Table]:
    """Return a function that decodes bodies one by one."""
    require_library("fastavro")
    import fastavro
    from fastavro.schema import SchemaParseException

    try:
        parsed = fastavro.parse_schema(undecoded(found))
    except SchemaParseException as error:
        raise ConfigError(f"the Avro schema is malformed: table={table} error={error}") from None

    def read(bodies: list[bytes]) -> pa.Table:
        rows = [fastavro.schemaless_reader(io.BytesIO(body), parsed) for body in bodies]
        return pa.Table.from_pylist(rows, schema)

    return read


def undecoded(found: Any) -> Any:
    """Return the schema without the logical types that are decoded as their underlying types."""
    if isinstance(found, list):
        return [undecoded(part) for part in found]
    if not isinstance(found, dict):
        return found
    kept = {name: value if name == "default" else undecoded(value) for name, value in found.items()}
    if kept.get("logicalType") not in (None, "decimal", *DECODED_LOGICAL):
        del kept["logicalType"]
    return kept


def rewritten(found: Any) -> Any:
    """Return a schema of the same encoding that the library supports; None if there is none, as for bytes."""
    if isinstance(found, list):
        choices = [rewritten(choice) for choice in found]
        return None if None in choices else choices
    if not isinstance(found, dict):
        # The library cuts a number off that is too long for an int; as a long, it is found not to fit its column.
        return {"bytes": None, "int": "long"}.get(found, found)
    if found.get("type") == "fixed":
        return None
    changed = {name: value for name, value in found.items() if name != "logicalType"}
    if found.get("logicalType") in DECODED_LOGICAL:
        changed["logicalType"] = DECODED_LOGICAL[found["logicalType"]]
    for key in ("items", "values", "type"):
        if key in found and changed.get("logicalType") != "date":
            changed[key] = rewritten(found[key])
            if changed[key] is None:
                return None
    if "fields" in found:
        changed["fields"] = [rewritten(field) for field in found["fields"]]
        if None in changed["fields"]:
            return None
    return changed


def fingerprint(source: str) -> int:
    """Return Avro's CRC-64 fingerprint of a schema."""
    require_library("fastavro")
    from fastavro.schema import fingerprint as fingerprint_of
    from fastavro.schema import to_parsing_canonical_form

    found = fingerprint_of(to_parsing_canonical_form(msgspec.json.decode(source)), "CRC-64-AVRO")
    return int.from_bytes(bytes.fromhex(found), "little")
