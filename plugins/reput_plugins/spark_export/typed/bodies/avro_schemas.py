"""Converts Avro schemas to types of columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from reput.errors import ConfigError
from reput_plugins.spark_export.typed.column_types import UTC_TIME

__all__ = ["avro_fields", "self_contained"]

PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.int64(),
    "time-micros": pa.int64(),
    "timestamp-millis": UTC_TIME,
    "timestamp-micros": UTC_TIME,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
# The keys of a schema whose values are schemas.
PARTS = ("type", "items", "values")
# A logical type of another type than these is ignored, as the specification demands.
LOGICAL_OF = {name: "int" if name in ("date", "time-millis") else "long" for name in LOGICAL}


def self_contained(found: Any, imported: Iterable[Any]) -> Any:
    """Return a schema with the definitions of the named types that it takes from *imported*, schemas of a registry."""
    definitions = {full_name(other, ""): other for other in imported if isinstance(other, dict) and "name" in other}
    return with_definitions(found, "", definitions)


def with_definitions(found: Any, namespace: str, definitions: dict[str, Any]) -> Any:
    """Return a schema in which the first use of each of *definitions* is the definition, which is then taken out."""
    if isinstance(found, list):
        return [with_definitions(part, namespace, definitions) for part in found]
    if isinstance(found, str):
        name = found if "." in found or f"{namespace}.{found}" not in definitions else f"{namespace}.{found}"
        if name not in definitions:
            return found
        definition = definitions.pop(name)
        # Without its own, the type would have the namespace of the place where it is used.
        return with_definitions({"namespace": "", **definition}, "", definitions)
    if not isinstance(found, dict):
        return found
    if "name" in found:
        namespace = full_name(found, namespace).rpartition(".")[0]
    changed = {key: with_definitions(found[key], namespace, definitions) for key in PARTS if key in found}
    if "fields" in found:
        changed["fields"] = [with_definitions(field, namespace, definitions) for field in found["fields"]]
    return {**found, **changed}


def full_name(found: dict[str, Any], namespace: str) -> str:
    """Return the name of a named type, with its namespace."""
    name = str(found["name"])
    namespace = found.get("namespace", namespace)
    return name if "." in name or not namespace else f"{namespace}.{name}"


def avro_fields(found: Any, table: str) -> pa.Schema:
    """Return the fields of an Avro record as columns.

    Raises:
        ConfigError: the schema is not a record, or a field can have values of several types.
    """
    try:
        kind = AvroSchema(table).type_of(found, "", "")
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the Avro schema is malformed: table={table} error={type(error).__name__}: {error}",
            "A field has a name and a type, and a decimal a precision of up to 38 digits.",
        ) from None
    if not pa.types.is_struct(kind):
        raise ConfigError(f"the Avro schema is not a record: table={table} type={kind}", "A row needs named fields.")
    return pa.schema(list(kind))


class AvroSchema:
    """Converts the types of one Avro schema. A named type can be used after its definition."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.named: dict[str, pa.DataType | None] = {}

    def type_of(self, found: Any, place: str, namespace: str) -> pa.DataType:
        """Return the type of one value."""
        if isinstance(found, list):
            choices = [choice for choice in found if choice != "null"]
            if len(choices) != 1:
                self.refuse(place, f"it is a union of {len(choices)} types")
            return self.type_of(choices[0], place, namespace)
        if isinstance(found, str):
            if found in PRIMITIVES:
                return PRIMITIVES[found]
            name = found if "." in found or f"{namespace}.{found}" not in self.named else f"{namespace}.{found}"
            kind = self.named.get(name)
            if kind is None:
                self.refuse(place, f"its type {found} is not defined before it")
            return kind
        if not isinstance(found, dict):
            self.refuse(place, "it is not a schema")
        kind = found.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            full = full_name(found, namespace)
            namespace = full.rpartition(".")[0]
            self.named[full] = None
            self.named[full] = self.named_type(kind, found, place, namespace)
            return self.named[full]
        if kind == "array":
            return pa.list_(pa.field("element", self.type_of(found.get("items"), f"{place}.element", namespace)))
        if kind == "map":
            return pa.map_(pa.string(), self.type_of(found.get("values"), f"{place}.value", namespace))
        logical = found.get("logicalType")
        if logical == "decimal" and kind == "bytes":
            return pa.decimal128(int(found["precision"]), int(found.get("scale", 0)))
        return LOGICAL[logical] if LOGICAL_OF.get(logical) == kind else self.type_of(kind, place, namespace)

    def named_type(self, kind: str, found: dict[str, Any], place: str, namespace: str) -> pa.DataType:
        """Return the type of a record, an enumeration or a fixed number of bytes."""
        if kind == "enum":
            return pa.string()
        if kind == "fixed":
            if found.get("logicalType") == "decimal":
                return pa.decimal128(int(found["precision"]), int(found.get("scale", 0)))
            return pa.binary()
        fields = []
        for field in found.get("fields", ()):
            inner = f"{place}.{field['name']}" if place else str(field["name"])
            fields.append(pa.field(field["name"], self.type_of(field["type"], inner, namespace)))
        return pa.struct(fields)

    def refuse(self, place: str, what: str) -> Any:
        """Refuse one part of the schema.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"a field of the Avro schema cannot be a column: table={self.table} field={place} reason={what}"
        )
