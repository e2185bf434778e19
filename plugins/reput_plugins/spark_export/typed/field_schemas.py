"""Schema files of a table's fields, as Arrow types.

what the file holds                                          for
{"type": "struct", "fields": […]}   Spark's ``df.schema.json()``   json, csv, msgpack
{"type": "object", "properties": {…}}   JSON Schema          json, csv, msgpack
{"type": "record", "fields": […]}   Avro                     avro, and json, csv, msgpack
.proto, or a set of descriptors (``protoc -o``)              protobuf
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import Schema
from deltalake.exceptions import DeltaError

from reput.errors import ConfigError
from reput_plugins.spark_export.typed.column_types import UTC_TIME

__all__ = ["fields_of_text", "read_schema_file"]

ADVICE = "A file holds Spark's df.schema.json(), a JSON Schema, or an Avro schema."
FORMATS = {"date-time": UTC_TIME, "date": pa.date32()}
DEPTH_MAX = 64


def read_schema_file(path: str, table: str) -> bytes:
    """Return the content of a schema file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"a schema cannot be read: table={table} schema={path} error={error.strerror}", ADVICE
        ) from None


def fields_of_text(text: bytes, table: str) -> pa.Schema:
    """Return the fields of a schema in JSON.

    Raises:
        ConfigError: the schema is not of a kind that the module lists.
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"a schema is not JSON: table={table} error={error}", ADVICE) from None
    kind = found.get("type") if isinstance(found, dict) else None
    if kind == "struct":
        try:
            return pa.schema(Schema.from_json(text.decode("utf-8")).to_arrow())
        except (DeltaError, ValueError, TypeError) as error:
            raise ConfigError(f"a schema is not a Spark schema: table={table} error={error}", ADVICE) from None
    if kind == "record":
        from reput_plugins.spark_export.typed.bodies.avro_schemas import avro_fields

        return avro_fields(found, table)
    if isinstance(found, dict) and (kind == "object" or "properties" in found or "$ref" in found):
        try:
            return JsonSchema(found, table).schema()
        except (AttributeError, TypeError) as error:
            raise ConfigError(f"the JSON Schema is malformed: table={table} error={error}", ADVICE) from None
    raise ConfigError(f"a schema has an unknown kind: table={table} type={kind}", ADVICE)


class JsonSchema:
    """The fields of a JSON Schema. Its rules beyond types (lengths, patterns, required) are not checked."""

    def __init__(self, whole: dict[str, Any], table: str) -> None:
        self.whole = whole
        self.table = table

    def schema(self) -> pa.Schema:
        """Return the columns."""
        kind = self.type_of(self.whole, "", 0)
        if not pa.types.is_struct(kind):
            self.refuse("", f"its type is {kind}, not an object")
        return pa.schema(list(kind))

    def type_of(self, found: Any, place: str, depth: int) -> pa.DataType:
        """Return the type of one value.

        Raises:
            ConfigError: the schema allows values of several types, or refers to another file or to itself.
        """
        if depth > DEPTH_MAX:
            self.refuse(place, "it refers to itself")
        if not isinstance(found, dict):
            self.refuse(place, "it allows every value")
        if "$ref" in found:
            return self.type_of(self.referred(found["$ref"], place), place, depth + 1)
        for key in ("oneOf", "anyOf", "allOf"):
            if key in found:
                choices = [choice for choice in found[key] if choice != {"type": "null"}]
                if len(choices) != 1:
                    self.refuse(place, f"it has {key}")
                return self.type_of(choices[0], place, depth + 1)
        kinds = found.get("type", "object" if "properties" in found else "string" if "enum" in found else [])
        kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
        if len(kinds) != 1:
            self.refuse(place, f"it has the types {','.join(map(str, kinds))}" if kinds else "it has no type")
        if kinds[0] == "object":
            properties = found.get("properties")
            if not properties:
                self.refuse(place, "it is an object without properties")
            return pa.struct(
                [pa.field(name, self.type_of(part, f"{place}/{name}", depth + 1)) for name, part in properties.items()]
            )
        if kinds[0] == "array":
            return pa.list_(pa.field("element", self.type_of(found.get("items"), f"{place}/items", depth + 1)))
        simple = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
        if kinds[0] == "string":
            return FORMATS.get(found.get("format", ""), pa.string())
        if kinds[0] not in simple:
            self.refuse(place, f"it has the type {kinds[0]}")
        return simple[kinds[0]]

    def referred(self, reference: str, place: str) -> Any:
        """Return the part of the schema that a reference names."""
        found: Any = self.whole
        if not reference.startswith("#/"):
            self.refuse(place, f"it refers to {reference}")
        for part in reference[2:].split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def refuse(self, place: str, what: str) -> None:
        """Refuse one part of the schema.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"a field of the JSON Schema cannot be a column: table={self.table} field={place or '/'} reason={what}",
            "Give the field one type, or leave it out.",
        )
