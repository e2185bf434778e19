"""Body decoders: chooses the decoder for a table's format and schema.

The driver finds out the schema: it reads the file, asks the registry, or looks at the first bodies. Workers get the
schema from the driver, and read no schema file.
"""

from __future__ import annotations

from reput_plugins.spark_export.typed.bodies.decoding import BodyDecoder
from reput_plugins.spark_export.typed.bodies.json_bodies import JsonBodies
from reput_plugins.spark_export.typed.bodies.text_bodies import CsvBodies, TextBodies
from reput_plugins.spark_export.typed.resolved_table import ResolvedTable

__all__ = ["make_decoder"]


def make_decoder(table: ResolvedTable) -> BodyDecoder:
    """Return the decoder of a table's bodies."""
    spec = table.spec
    if spec.format == "json":
        return JsonBodies(table.schema, confluent=spec.is_confluent)
    if spec.format == "csv":
        return CsvBodies(table.schema, spec.delimiter)
    if spec.format == "text":
        return TextBodies()
    # Imported here, because each decoder needs a library of the extra ``typed``.
    if spec.format == "avro":
        from reput_plugins.spark_export.typed.bodies.avro_bodies import AvroBodies

        return AvroBodies(table)
    if spec.format == "protobuf":
        from reput_plugins.spark_export.typed.bodies.protobuf_bodies import ProtobufBodies

        return ProtobufBodies(table)
    from reput_plugins.spark_export.typed.bodies.msgpack_bodies import MsgpackBodies

    return MsgpackBodies(table.schema)
