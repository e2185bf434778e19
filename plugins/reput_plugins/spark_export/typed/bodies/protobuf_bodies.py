"""Protobuf bodies as columns, by ``ptars``, which decodes arrays of bodies in Rust.

The schema is a ``.proto`` file, which ``grpcio-tools`` compiles, a set of descriptors, or a registry's schema. If a
body has no value for a field without presence, the column has the field's default, as protobuf defines.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.errors import ConfigError
from reput_plugins.spark_export.typed.bodies.decoding import (
    Decoded,
    decode_halves,
    joined,
    panics_as_errors,
    short_reason,
)
from reput_plugins.spark_export.typed.bodies.framing import no_framing, split_confluent, without_first
from reput_plugins.spark_export.typed.column_types import conform, lake_schema_of, refuse_distant_times
from reput_plugins.spark_export.typed.field_schemas import read_schema_file
from reput_plugins.spark_export.typed.registry import RegisteredSchema, Registry
from reput_plugins.spark_export.typed.requirements import require_library
from reput_plugins.spark_export.typed.resolved_table import ResolvedTable
from reput_plugins.spark_export.typed.table_specs import TableSpec, is_registry

__all__ = ["ProtobufBodies", "compile_proto", "resolve_protobuf"]

Array = np.ndarray[Any, Any]

ERRORS = (ValueError, TypeError, OverflowError, NotImplementedError)
MAIN_FILE = "schema.proto"
INDEX_COUNT_MAX = 32
# The library follows groups inside of groups without a limit. A message of this size cannot fill the stack with them.
UNPARSED_SIZE_MAX = 4096
NOT_PARSED = "the message cannot be parsed, or nests messages too deeply"


def resolve_protobuf(spec: TableSpec) -> ResolvedTable:
    """Return the table with its message type from the schema.

    Raises:
        ConfigError: the schema is not a protobuf schema or has no such message, or a lake cannot hold a field.
        DispatcherError: a library is missing, or the registry does not answer.
    """
    require_library("ptars", "google.protobuf")
    if is_registry(spec.schema):
        source = compile_registered(Registry.of(spec).latest("PROTOBUF"), spec.name)
    elif str(spec.schema).endswith(".proto"):
        path = Path(str(spec.schema))
        read_schema_file(str(path), spec.name)
        source = compile_proto(path.parent, path.name, spec.name)
    else:
        source = read_schema_file(str(spec.schema), spec.name)
    messages = Messages(source, spec.name)
    descriptor = messages.named(spec.message) if spec.message else messages.at((0,))
    if descriptor is None:
        raise ConfigError(
            f"the schema has no such message: table={spec.name} message={spec.message}",
            f"Messages are: {', '.join(messages.names())}.",
        )
    schema = lake_schema_of(messages.reader(descriptor).schema, spec.name, naive_is_utc=True)
    return ResolvedTable(spec, schema, source, descriptor.full_name)


class Messages:
    """The messages of a set of descriptors. Its last file is the one that was compiled."""

    def __init__(self, source: bytes, table: str) -> None:
        import ptars
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError

        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(source).file
            for file in files:
                pool.Add(file)
            self.main = pool.FindFileByName(files[-1].name)
        except (DecodeError, TypeError, KeyError, IndexError) as error:
            raise ConfigError(
                f"the schema is not a set of protobuf descriptors: table={table} error={error}",
                "Give a .proto file, or the output of `protoc --include_imports -o FILE`.",
            ) from None
        self.pool = pool
        config = ptars.PtarsConfig(
            timestamp_unit="us", time_unit="us", duration_unit="us", enum_repr="string", list_value_name="element"
        )
        try:
            with panics_as_errors():
                self.handlers = ptars.HandlerPool([self.main], config=config)
        except ValueError as error:
            raise ConfigError(
                f"the protobuf schema cannot be used: table={table} error={error}",
                'Give a schema with syntax = "proto3" or "proto2".',
            ) from None

    def names(self) -> list[str]:
        """Return the full names of the file's messages."""
        return sorted(message.full_name for message in self.main.message_types_by_name.values())

    def named(self, name: str) -> Any:
        """Return the message with a full name, None if there is none."""
        try:
            return self.pool.FindMessageTypeByName(name)
        except KeyError:
            return None

    def at(self, indexes: tuple[int, ...]) -> Any:
        """Return the message at a path of indexes, as Confluent's wire format names it; None if there is none."""
        found: Any = None
        # Indexes count in the order of the file.
        inner = list(self.main.message_types_by_name.values())
        for index in indexes:
            if not 0 <= index < len(inner):
                return None
            found = inner[index]
            inner = list(found.nested_types)
        return found

    def reader(self, descriptor: Any) -> ProtobufReader:
        """Return the reader of a message type."""
        return ProtobufReader(self.handlers.get_for_message(descriptor), descriptor)


class ProtobufReader:
    """Decodes messages of one type."""

    def __init__(self, handler: Any, descriptor: Any) -> None:
        from google.protobuf import message_factory

        self.handler = handler
        self.schema: pa.Schema = handler.schema()
        self.parse = message_factory.GetMessageClass(descriptor).FromString

    def read(self, messages: pa.BinaryArray) -> pa.Table:
        """Return a row for each of *messages*; raise a `ValueError` if any does not fit."""
        with panics_as_errors():
            # A copy, because the library reads a sliced array from its beginning.
            found = pa.Table.from_batches([self.handler.array_to_record_batch(pa.concat_arrays([messages]))])
        refuse_distant_times(found)
        return found

    def is_safe(self, message: bytes) -> bool:
        """Return whether google's parser, which limits the depth, accepts *message*."""
        from google.protobuf.message import DecodeError

        try:
            self.parse(message)
        except DecodeError:
            return False
        return True

    def safe(self, messages: pa.BinaryArray) -> Array:
        """Return which of *messages* cannot fill the stack."""
        found = np.ones(len(messages), bool)
        for number in np.flatnonzero(pc.binary_length(messages).to_numpy() > UNPARSED_SIZE_MAX).tolist():
            found[number] = self.is_safe(messages[number].as_py())
        return found


class ProtobufBodies:
    """Decodes protobuf messages."""

    def __init__(self, table: ResolvedTable) -> None:
        require_library("ptars", "google.protobuf")
        self.schema = table.schema
        self.spec = table.spec
        messages = Messages(table.source, table.spec.name)
        self.reader = messages.reader(messages.named(table.message))
        self.registry = Registry.of(table.spec) if is_registry(table.spec.schema) else None
        self.by_id: dict[int, Messages | str] = {}

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the columns of the bodies that fit."""
        if not self.spec.is_confluent:
            return no_framing(bodies).whole(self.decode_by(bodies, self.reader))
        unframed = split_confluent(bodies)
        parts: list[tuple[Decoded, Any]] = []
        for schema_id in np.unique(unframed.mark).tolist():
            at = np.flatnonzero(unframed.mark == schema_id)
            for indexes, chosen, payloads in split_indexes(unframed.payloads.take(pa.array(at))):
                reader, reason = self.reader_of(schema_id, indexes)
                if reader is None:
                    refused = [(number, reason) for number in range(len(chosen))]
                    found = Decoded(self.schema.empty_table(), np.empty(0, np.int64), refused)
                else:
                    found = self.decode_by(payloads, reader)
                parts.append((found, at[chosen]))
        return unframed.whole(joined(parts, self.schema))

    def reader_of(self, schema_id: int, indexes: tuple[int, ...] | None) -> tuple[ProtobufReader | None, str]:
        """Return the reader of a schema's message, or None and the reason why there is none."""
        if indexes is None:
            return None, "the body's list of message indexes is incomplete"
        if self.registry is None:
            return self.reader, ""
        text, reason = self.registry.by_id(schema_id, "PROTOBUF")
        if text is None:
            return None, reason
        if schema_id not in self.by_id:
            # Any producer may have registered it.
            try:
                self.by_id[schema_id] = Messages(compile_registered(text, self.spec.name), self.spec.name)
            except ConfigError as error:
                self.by_id[schema_id] = short_reason(f"the schema cannot be used: id={schema_id} error={error}")
        messages = self.by_id[schema_id]
        if isinstance(messages, str):
            return None, messages
        descriptor = messages.at(indexes)
        if descriptor is None:
            return None, f"the schema has no message at these indexes: id={schema_id} indexes={indexes}"
        return messages.reader(descriptor), ""

    def decode_by(self, payloads: pa.BinaryArray, reader: ProtobufReader) -> Decoded:
        """Return the columns of messages of one type."""

        def attempt(part: pa.BinaryArray) -> pa.Table:
            return conform(reader.read(part), self.schema)

        unframed = no_framing(payloads).chosen(reader.safe(payloads), NOT_PARSED)
        return unframed.whole(decode_halves(unframed.payloads, self.schema, attempt, ERRORS))


def split_indexes(payloads: pa.BinaryArray) -> list[tuple[tuple[int, ...] | None, Any, pa.BinaryArray]]:
    """Group the payloads by their message indexes; return indexes, numbers and messages of each group.

    The indexes are a count, then as many numbers, all as zigzag varints. A single zero means the first message.
    """
    first = pc.starts_with(payloads, b"\0").to_numpy(zero_copy_only=False)
    chosen = np.flatnonzero(first)
    found: list[tuple[tuple[int, ...] | None, Any, pa.BinaryArray]] = []
    if len(chosen):
        found.append(((0,), chosen, without_first(payloads.take(pa.array(chosen)), 1)))
    others: dict[tuple[int, ...] | None, list[tuple[int, bytes]]] = {}
    for number in np.flatnonzero(~first).tolist():
        indexes, message = read_indexes(payloads[number].as_py())
        others.setdefault(indexes, []).append((number, message))
    for indexes, members in others.items():
        numbers = np.array([number for number, _ in members])
        found.append((indexes, numbers, pa.array([message for _, message in members], pa.binary())))
    return found


def read_indexes(payload: bytes) -> tuple[tuple[int, ...] | None, bytes]:
    """Return the message indexes and the message; None if the list of indexes is incomplete."""
    numbers: list[int] = []
    value = shift = 0
    for at, byte in enumerate(payload):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        numbers.append(value >> 1 ^ -(value & 1))
        value = shift = 0
        if not 0 <= numbers[0] <= INDEX_COUNT_MAX:
            break
        if len(numbers) > numbers[0]:
            return tuple(numbers[1:]) or (0,), payload[at + 1 :]
    return None, payload


def compile_registered(schema: RegisteredSchema, table: str) -> bytes:
    """Return the descriptors of a registry's schema, and of the schemas that it imports."""
    with tempfile.TemporaryDirectory(prefix="reput-proto-") as name:
        folder = Path(name)
        for path, text in {**schema.references, MAIN_FILE: schema.text}.items():
            target = (folder / path).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise ConfigError(f"a schema imports a file outside of its folder: table={table} file={path}")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        return compile_proto(folder, MAIN_FILE, table)


def compile_proto(folder: Path, name: str, table: str) -> bytes:
    """Return the descriptors of a ``.proto`` file and of all files that it imports; its own come last.

    Raises:
        ConfigError: the file is not valid.
        DispatcherError: the compiler is missing.
    """
    require_library("grpc_tools")
    well_known = resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory(prefix="reput-proto-") as output:
        target = Path(output) / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{well_known}", "--include_imports"]
        told = subprocess.run(
            [*command, f"--descriptor_set_out={target}", name], capture_output=True, text=True, check=False
        )
        if told.returncode:
            reason = " ".join(line for line in told.stderr.splitlines() if "Warning" not in line)
            raise ConfigError(f"the protobuf schema is not valid: table={table} schema={name} error={reason}")
        return target.read_bytes()
