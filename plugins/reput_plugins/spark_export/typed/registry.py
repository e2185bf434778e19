"""Registry: schemas from a schema registry (Confluent's API), through Confluent's own client.

If the registry answers that it does not have a schema, bodies that name this schema are dead letters. If the registry
does not answer or refuses access, the export stops, because it cannot tell whether bodies fit.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import msgspec

from reput.errors import ConfigError, DispatcherError
from reput_plugins.spark_export.typed.requirements import require_library
from reput_plugins.spark_export.typed.table_specs import TableSpec

__all__ = ["RegisteredSchema", "Registry"]

# With status 404, these codes mean "no such subject, version or schema"; other codes mean "not a registry".
ABSENT_CODES = (40401, 40402, 40403)
DEFAULTS = {"max.retries": 2, "timeout": 10}


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as text. *references* maps the names of imported schemas to their texts."""

    text: str
    references: dict[str, str] = {}


class Registry:
    """The registry of one table. It caches answers, and asks once for each schema."""

    def __init__(self, address: str, subject: str, settings: dict[str, str], table: str) -> None:
        require_library("confluent_kafka", "httpx2")
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self.table = table
        self.subject = subject
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        self.shown = f"{parts.scheme}://{host}{parts.path}"
        # Secrets can stay in the environment: "$NAME" in a setting names a variable.
        given: dict[str, Any] = {name: os.path.expandvars(value) for name, value in settings.items()}
        for name, value in DEFAULTS.items():
            given[name] = type(value)(given.get(name, value))
        try:
            self.client = SchemaRegistryClient({"url": address, **given})
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the registry's settings are wrong: table={table} error={error}") from None
        self.known: dict[int, tuple[RegisteredSchema | None, str]] = {}

    @classmethod
    def of(cls, spec: TableSpec) -> Registry:
        """Return the registry that a table names."""
        subject = spec.subject or f"{spec.all_topics[0]}-value"
        return cls(str(spec.schema), subject, spec.registry, spec.name)

    def latest(self, kind: str) -> RegisteredSchema:
        """Return the newest schema of the subject.

        Raises:
            ConfigError: there is no schema, or it is of another kind than *kind* (``AVRO``, ``PROTOBUF``, ``JSON``).
            DispatcherError: the registry does not answer.
        """
        found = self.ask(lambda: self.client.get_latest_version(self.subject))
        if found is None:
            raise ConfigError(
                f"the registry has no such subject: table={self.table} registry={self.shown} subject={self.subject}",
                "Name the subject with the key `subject`.",
            )
        if found.schema.schema_type != kind:
            raise ConfigError(
                f"the subject's schemas are of another kind: table={self.table} subject={self.subject} "
                f"kind={found.schema.schema_type} needed={kind}"
            )
        return self.with_references(found.schema)

    def by_id(self, schema_id: int, kind: str) -> tuple[RegisteredSchema | None, str]:
        """Return the schema with an id, or None and the reason why there is none.

        Raises:
            DispatcherError: the registry does not answer.
        """
        if schema_id not in self.known:
            found = self.ask(lambda: self.client.get_schema(schema_id))
            if found is None:
                self.known[schema_id] = None, f"the registry has no schema with this id: id={schema_id}"
            elif found.schema_type != kind:
                self.known[schema_id] = None, f"the schema is of another kind: id={schema_id} kind={found.schema_type}"
            else:
                self.known[schema_id] = self.with_references(found), ""
        return self.known[schema_id]

    def with_references(self, schema: Any) -> RegisteredSchema:
        """Return a schema together with those that it imports, directly or through others."""
        references: dict[str, str] = {}
        waiting = list(schema.references or ())
        while waiting:
            reference = waiting.pop()
            if reference.name in references:
                continue
            found = self.ask(lambda ref=reference: self.client.get_version(ref.subject, ref.version))
            if found is None:
                raise DispatcherError(
                    f"the registry lacks a schema that another one imports: registry={self.shown} "
                    f"subject={reference.subject} version={reference.version}"
                )
            references[reference.name] = found.schema.schema_str
            waiting += found.schema.references or ()
        return RegisteredSchema(schema.schema_str, references)

    def ask(self, question: Any) -> Any:
        """Return the registry's answer; None if it answers that there is no such subject, version or schema.

        Raises:
            DispatcherError: the registry does not answer, or refuses access.
        """
        import httpx2
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return question()
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in ABSENT_CODES:
                return None
            reason = f"{error.http_status_code} {error.error_message}"
        except (OSError, httpx2.HTTPError) as error:
            reason = str(error) or type(error).__name__
        raise DispatcherError(
            f"the schema registry does not answer: table={self.table} registry={self.shown} error={reason}",
            "Bodies that need the registry were not exported; the next run continues where the table ends.",
        ) from None
