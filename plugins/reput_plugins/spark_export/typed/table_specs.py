"""Typed tables as a user describes them, in TOML or as a mapping.

    [tables.orders]
    topic = "orders"                # or topics = ["orders", "orders-eu"]
    format = "json"
    schema = "orders.json"          # a file beside this one, the address of a schema registry, or "infer"

The table lies in the folder ``NAME`` of the lake, here ``orders``, and its dead letters in ``NAME.dead_letters``.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from reput.errors import ConfigError

__all__ = ["DEAD_LETTERS_SUFFIX", "INFER", "KEY_COLUMN", "LOG_COLUMNS", "TableSpec", "is_registry", "load_tables"]

INFER = "infer"
DEAD_LETTERS_SUFFIX = ".dead_letters"
TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
TAGS = re.compile(r"\s*[^|\s]+(\s*\|\|\s*[^|\s]+)*\s*")
# Readers, reput among them, expect the metadata of a table in a folder with one of these names.
RESERVED_NAMES = ("_delta_log", "metadata")
PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DATE_COLUMN = "_date"
# Given as the key, this means the message's KEYS property, which then becomes a column.
KEYS = "keys"
KEY_COLUMN = "_key"

# A table needs these columns to be continued: they identify the record, and serve as marks of the log.
NEEDED_LOG_COLUMNS = ("queueId", "queueOffset", "commitLogOffset", "storeSize", "bodyCRC", "storeTimestamp")
LOG_COLUMNS = (
    *NEEDED_LOG_COLUMNS,
    "topic",
    "msgId",
    "tags",
    "keys",
    "properties",
    "flag",
    "reconsumeTimes",
    "bornTimestamp",
    "bornHost",
    "storeHost",
)
DEFAULT_LOG_COLUMNS = (*NEEDED_LOG_COLUMNS, "topic", "msgId", "tags", "keys", "bornTimestamp")

Format = Literal["json", "avro", "protobuf", "msgpack", "csv", "text"]


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One typed table.

    Attributes:
        name: folder in the lake.
        topic, topics: one topic, or several. Exactly one of the two is given.
        format: encoding of the bodies.
        schema: a schema file, the address of a schema registry (``http://…``), or "infer"; absent for text.
        subject: subject in the registry; None: ``TOPIC-value``.
        registry: further settings of the registry's client, such as ``ssl.ca.location``.
        message: full name of the protobuf message; None: the only message of the file, or its first.
        framing: the bytes before the encoded fields: "none"; "confluent": a zero byte and the schema's id;
            "single_object": Avro's mark and the schema's fingerprint. None: "confluent" with a registry, else "none".
        delimiter: the character between the values of a CSV record.
        tags: only messages with one of these tags, as ``a || b``.
        mode: "append": a row per message; "upsert": the newest row of each key, an empty body removes it.
        key: for "upsert": columns of the bodies; or "keys": the message's KEYS property, which is the column ``_key``.
        deletion_vectors: for "upsert" in Delta tables: a merge marks replaced rows instead of writing their files anew.
        columns: columns of the log; those that identify the record are always included.
        prefix: put before the names of the log's columns; None: these are fields of the struct column ``_log`` instead.
        partition_by: columns of the table; ``_date`` is the day of the store time in UTC.
        cluster_by: columns by which the rows of a file are sorted.
    """

    name: str
    topic: str | None = None
    topics: tuple[str, ...] = ()
    format: Format
    schema: str | None = None
    subject: str | None = None
    registry: dict[str, str] = {}
    message: str | None = None
    framing: Literal["none", "confluent", "single_object"] | None = None
    delimiter: str = ","
    tags: str | None = None
    mode: Literal["append", "upsert"] = "append"
    key: tuple[str, ...] | Literal["keys"] = ()
    deletion_vectors: bool = False
    columns: tuple[str, ...] = DEFAULT_LOG_COLUMNS
    prefix: str | None = None
    partition_by: tuple[str, ...] = (DATE_COLUMN,)
    cluster_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not TABLE_NAME.fullmatch(self.name):
            self.refuse("name", self.name, "A table's name consists of letters, digits, '_' and '-'.")
        if self.name.lower() in RESERVED_NAMES:
            self.refuse("name", self.name, "A folder of this name holds the metadata of a table; choose another name.")
        if bool(self.topic) == bool(self.topics):
            self.refuse("topic", self.topic, "Give either topic or topics.")
        if (self.schema is None) != (self.format == "text"):
            self.refuse("schema", self.schema, 'Give a file, a registry or "infer"; the format text has no schema.')
        if self.schema == INFER and self.format not in ("json", "msgpack"):
            self.refuse("schema", INFER, f"Fields cannot be inferred from the format {self.format}; give a schema.")
        if self.framing not in (None, "none") and self.format not in ("avro", "protobuf", "json"):
            self.refuse("framing", self.framing, f"Bodies of the format {self.format} have no framing.")
        if self.framing == "single_object" and self.format != "avro":
            self.refuse("framing", self.framing, "Only Avro has this framing.")
        if is_registry(self.schema) and self.format not in ("avro", "protobuf", "json"):
            self.refuse("schema", self.schema, "A registry has only schemas of Avro, protobuf and JSON.")
        if self.message is not None and self.format != "protobuf":
            self.refuse("message", self.message, "Only protobuf has messages.")
        if bool(self.key) != (self.mode == "upsert"):
            self.refuse(
                "key", self.key or None, 'Give key = ["…"] or key = "keys" with mode = "upsert", and only then.'
            )
        if self.deletion_vectors and self.mode != "upsert":
            self.refuse("deletion_vectors", "true", 'Only a table with mode = "upsert" replaces rows.')
        for name in ("key", "partition_by", "cluster_by"):
            self.refuse_names(name)
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            self.refuse("delimiter", repr(self.delimiter), "Give one ASCII character that is no quote or line end.")
        if self.tags is not None and not TAGS.fullmatch(self.tags):
            self.refuse("tags", self.tags, 'Write tags = "paid || shipped".')
        if self.prefix is not None and not PREFIX.fullmatch(self.prefix):
            self.refuse("prefix", self.prefix, "Use letters, digits and '_'.")
        for name in self.columns:
            if name not in LOG_COLUMNS:
                self.refuse("columns", name, f"The log has the columns {', '.join(LOG_COLUMNS)}.")

    def refuse_names(self, key: str) -> None:
        """Refuse columns that cannot be used for *key*.

        Raises:
            ConfigError: a name occurs twice, or has a character that the table's properties or merges do not allow.
        """
        names = (self.key_columns if key == "key" else getattr(self, key)) or ()
        if len(set(names)) < len(names):
            self.refuse(key, ",".join(names), "Name each column once.")
        for name in names:
            if ("," in name and key != "partition_by") or ("." in name and key == "key"):
                self.refuse(key, name, "Choose a column whose name has no comma, and for a key no point, in it.")
            if key == "cluster_by" and name in self.partition_by:
                self.refuse(key, name, "Rows of one partition have the same value there; leave it out.")

    def refuse(self, key: str, value: object, advice: str) -> None:
        """Refuse one key of the table.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"a typed table cannot be made like this: table={self.name} {key}={value}", advice)

    @property
    def all_topics(self) -> tuple[str, ...]:
        """The topics, at least one."""
        return self.topics or (self.topic or "",)

    @property
    def log_columns(self) -> tuple[str, ...]:
        """The log's columns of the table, in the order of the log."""
        asked = {*self.columns, *NEEDED_LOG_COLUMNS}
        return tuple(name for name in LOG_COLUMNS if name in asked)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key; empty with a row per message."""
        return (KEY_COLUMN,) if self.key == KEYS else tuple(self.key)

    @property
    def wanted_tags(self) -> tuple[str, ...] | None:
        """The tags of the chosen messages; None: all messages are chosen."""
        return None if self.tags is None else tuple(tag.strip() for tag in self.tags.split("||"))

    @property
    def is_confluent(self) -> bool:
        """Whether bodies begin with a zero byte and the id of their schema."""
        return self.framing == "confluent" or (self.framing is None and is_registry(self.schema))


def is_registry(schema: str | None) -> bool:
    """Return whether a schema is the address of a registry."""
    return schema is not None and schema.startswith(("http://", "https://"))


def load_tables(tables: Path | str | Mapping[str, Any]) -> list[TableSpec]:
    """Return the tables of a TOML file, or of the mapping that such a file holds.

    Names of schema files are relative to the file's folder, or to the current one.

    Raises:
        ConfigError: the file cannot be read, or describes no table, or a key is unknown or has a wrong value.
    """
    folder = Path()
    if isinstance(tables, Mapping):
        found: Mapping[str, Any] = tables
    else:
        folder = Path(tables).parent
        try:
            found = tomllib.loads(Path(tables).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"the file of tables cannot be read: tables={os.fspath(tables)} error={reason}",
                'Write a TOML file with [tables.NAME], topic = "…", format = "json" and schema = "…".',
            ) from None
    unknown = sorted(set(found) - {"tables"})
    if unknown:
        raise ConfigError(f"the file of tables has an unknown key: key={unknown[0]}", "Write [tables.NAME].")
    described = found.get("tables", {})
    if not isinstance(described, Mapping) or not described:
        raise ConfigError(f"the file describes no table: tables={described!r}", "Write [tables.NAME].")
    specs = [spec_of(name, keys) for name, keys in described.items()]
    refuse_equal_names(specs)
    return [in_folder(spec, folder) for spec in specs]


def spec_of(name: str, keys: Any) -> TableSpec:
    """Return one table."""
    known = set(TableSpec.__struct_fields__) - {"name"}
    if not isinstance(keys, Mapping):
        raise ConfigError(f"a table must consist of keys: table={name} value={keys!r}", "Write [tables.NAME].")
    for key in keys:
        if key not in known:
            raise ConfigError(
                f"a table has an unknown key: table={name} {key}={keys[key]!r}",
                f"Keys are: {', '.join(sorted(known))}.",
            )
    # Keyed tables are not partitioned by day, because each change would move its row to another day.
    places: dict[str, Any] = {"partition_by": ()} if keys.get("mode") == "upsert" else {}
    try:
        return msgspec.convert({"name": name, **places, **keys}, TableSpec)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            # The table's own refusal, with its advice.
            raise error.__cause__ from None
        raise ConfigError(f"a typed table cannot be made like this: table={name} error={error}") from None


def refuse_equal_names(specs: Sequence[TableSpec]) -> None:
    """Refuse names that differ only in case, because some file systems do not distinguish them."""
    seen: dict[str, str] = {}
    for spec in specs:
        other = seen.setdefault(spec.name.lower(), spec.name)
        if other != spec.name:
            raise ConfigError(f"two tables differ only in case: table={other} table={spec.name}")


def in_folder(spec: TableSpec, folder: Path) -> TableSpec:
    """Return a table whose schema file is relative to the current folder."""
    if spec.schema in (None, INFER) or is_registry(spec.schema):
        return spec
    return msgspec.structs.replace(spec, schema=str((folder / str(spec.schema)).absolute()))
