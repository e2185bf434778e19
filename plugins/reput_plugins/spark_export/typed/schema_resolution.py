"""The schema of a table, from its file, its registry or its first bodies. Runs on the driver only."""

from __future__ import annotations

import itertools

import msgspec
import pyarrow as pa

from reput.errors import ConfigError
from reput.table import LogTable
from reput_plugins.spark_export.typed.bodies.framing import split_confluent
from reput_plugins.spark_export.typed.bodies.inference import infer_json, infer_msgpack
from reput_plugins.spark_export.typed.bodies.text_bodies import TEXT_SCHEMA
from reput_plugins.spark_export.typed.column_types import lake_schema_of
from reput_plugins.spark_export.typed.evolution import extended_schema
from reput_plugins.spark_export.typed.field_schemas import fields_of_text, read_schema_file
from reput_plugins.spark_export.typed.keyed_rows import DELETED
from reput_plugins.spark_export.typed.resolved_table import ResolvedTable
from reput_plugins.spark_export.typed.table_files import LOG_STRUCT, has_tag, log_fields
from reput_plugins.spark_export.typed.table_specs import INFER, KEY_COLUMN, TableSpec, is_registry

__all__ = ["resolve"]

SAMPLE_BODIES = 1000
# Fewer bodies, if they are large.
SAMPLE_BYTES = 32 << 20
KEY_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)
NESTED = (pa.types.is_struct, pa.types.is_list, pa.types.is_map)


def resolve(spec: TableSpec, kept: pa.Schema | None, log: LogTable, begin: int, until: int) -> ResolvedTable:
    """Return the table with its schema.

    Args:
        kept: columns of the table if it exists.
        begin, until: the part of the log from which fields are inferred.

    Raises:
        ConfigError: there is no schema, or a lake or the format cannot hold one of its fields.
        DispatcherError: the registry does not answer.
    """
    found = resolved(spec, kept, log, begin, until)
    refuse_for_format(found)
    taken = {field.name.lower() for field in log_fields(spec)}
    if spec.key_columns:
        taken.add(DELETED)
    for field in found.schema:
        if field.name.lower() in taken:
            advice = "Choose a prefix for the log's columns." if field.name == LOG_STRUCT else "Choose another prefix."
            raise ConfigError(
                f"a field has the name of one of the log's columns: table={spec.name} column={field.name}", advice
            )
    for name in (name for name in spec.key_columns if name != KEY_COLUMN):
        at = found.schema.get_field_index(name)
        kind = None if at < 0 else found.schema.field(at).type
        if kind is None or not any(test(kind) for test in KEY_TYPES):
            raise ConfigError(
                f"a key column must hold whole numbers, texts or dates: table={spec.name} key={name} "
                f"type={'none' if kind is None else kind}",
                f"Columns are: {', '.join(found.schema.names)}.",
            )
    types = {field.name: field.type for field in (*found.schema, *log_fields(spec))}
    for key in ("partition_by", "cluster_by"):
        for name in getattr(spec, key):
            if name not in types:
                raise ConfigError(
                    f"the table has no such column: table={spec.name} {key}={name}", f"Columns are: {', '.join(types)}."
                )
            kind = types[name]
            if any(test(kind) for test in NESTED) or (
                key == "partition_by" and (pa.types.is_floating(kind) or pa.types.is_timestamp(kind))
            ):
                raise ConfigError(
                    f"a column of this type cannot be used for {key}: table={spec.name} {key}={name} type={kind}"
                )
    return found


def resolved(spec: TableSpec, kept: pa.Schema | None, log: LogTable, begin: int, until: int) -> ResolvedTable:
    """Return the table with its schema, before it is checked."""
    if spec.format == "text":
        return ResolvedTable(spec, TEXT_SCHEMA)
    if spec.schema == INFER:
        return ResolvedTable(spec, inferred(spec, kept, log, begin, until))
    if spec.format == "avro":
        from reput_plugins.spark_export.typed.bodies.avro_bodies import resolve_avro

        return resolve_avro(spec)
    if spec.format == "protobuf":
        from reput_plugins.spark_export.typed.bodies.protobuf_bodies import resolve_protobuf

        return resolve_protobuf(spec)
    if is_registry(spec.schema):
        from reput_plugins.spark_export.typed.registry import Registry

        text = Registry.of(spec).latest("JSON").text.encode()
    else:
        text = read_schema_file(str(spec.schema), spec.name)
    return ResolvedTable(spec, lake_schema_of(fields_of_text(text, spec.name), spec.name), text)


def inferred(spec: TableSpec, kept: pa.Schema | None, log: LogTable, begin: int, until: int) -> pa.Schema:
    """Return the fields of the table, followed by further fields of the next bodies.

    Raises:
        ConfigError: there is neither a table nor a body to infer fields from.
    """
    bodies = sample(spec, log, begin, until)
    if spec.format == "json":
        found = infer_json(split_confluent(bodies).payloads if spec.is_confluent else bodies)
    else:
        found = infer_msgpack(bodies)
    fields = list(found)
    if kept is not None:
        # A body must not end the export because it has a field with the name of one of the log's columns.
        of_log = {field.name.lower() for field in log_fields(spec)}
        of_bodies, new = (
            pa.schema([field for field in schema if field.name.lower() not in of_log]) for schema in (kept, found)
        )
        fields = list(extended_schema(of_bodies, new))
    if not fields:
        raise ConfigError(
            f"no body shows the fields of the table: table={spec.name} topic={','.join(spec.all_topics)} "
            f"bodies={len(bodies)}",
            "Give a schema file, or export once there are messages.",
        )
    return lake_schema_of(pa.schema(fields), spec.name)


def sample(spec: TableSpec, log: LogTable, begin: int, until: int) -> pa.BinaryArray:
    """Return the first bodies of the table's messages in [begin, until)."""
    options = log.options
    reader = LogTable(
        log.store_directory,
        msgspec.structs.replace(
            options,
            row_format=msgspec.structs.replace(options.row_format, columns=("tags", "body")),
            row_filter=msgspec.structs.replace(options.row_filter, topics=frozenset(spec.all_topics)),
        ),
    )
    found: list[pa.Array] = []
    for batch in reader.batches(begin, until) if begin < until else ():
        chosen = batch if spec.wanted_tags is None else batch.filter(has_tag(batch, spec.wanted_tags))
        found.append(chosen["body"])
        if sum(map(len, found)) >= SAMPLE_BODIES or sum(bodies.nbytes for bodies in found) >= SAMPLE_BYTES:
            break
    bodies = pa.concat_arrays(found) if found else pa.array([], pa.binary())
    return bodies.slice(0, SAMPLE_BODIES)


def refuse_for_format(table: ResolvedTable) -> None:
    """Refuse columns that the format's reader cannot fill.

    Raises:
        ConfigError: there is such a column.
    """
    spec = table.spec
    refused = {"json": (pa.types.is_map, pa.types.is_binary), "csv": NESTED}.get(spec.format, ())
    for name, kind in itertools.chain.from_iterable(parts(field.name, field.type) for field in table.schema):
        if any(test(kind) for test in refused):
            raise ConfigError(
                f"the format has no values of this type: table={spec.name} format={spec.format} column={name} "
                f"type={kind}",
                "Make it a string, or a struct with named fields." if spec.format == "json" else "Leave it out.",
            )


def parts(name: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return name and type of a column, and of each part of a nested one."""
    found = [(name, kind)]
    if pa.types.is_struct(kind):
        for field in kind:
            found += parts(f"{name}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        found += parts(f"{name}.element", kind.value_type)
    return found
