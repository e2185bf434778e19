"""VersionedTable: a configuration file that is one table of named objects, and the version of that table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from reput.store.config.config_json import FormattedObject, format_config, format_field
from reput.store.config.config_manager import ConfigManager
from reput.store.config.stored_fields import DataVersion, StoredFields
from reput.store.disk.files import Clock, Files

__all__ = ["VersionedTable"]

# The table is a field of the file's object.
TABLE_DEPTH = 1

Entry = TypeVar("Entry", bound=StoredFields)


class VersionedTable(ConfigManager, Generic[Entry]):
    """Base of the managers of topics and of consumer groups.

    A child names the table, the type of its entries, and the field in which an entry has the name that leads to it.
    """

    table_name: ClassVar[str]
    name_field: ClassVar[str]
    entry_type: type[Entry]

    def __init__(self, store_directory: Path, files: Files | None = None, clock: Clock | None = None) -> None:
        super().__init__(store_directory, files, clock)
        self.table: dict[str, Entry] = {}
        self.data_version = DataVersion(timestamp=self.clock.now_ms())
        self.unknown: dict[str, Any] = {}
        # The entries as they stand in the file. Each change writes the whole file; to format thousands of unchanged
        # entries would take most of its time.
        self.formatted: dict[str, str] = {}

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All entries by name, as they are now and will be."""
        return MappingProxyType(self.table)

    def put(self, name: str, entry: Entry) -> None:
        """Add an entry, or change the one of that name."""
        with self.lock:
            self.table[name] = entry
            self.formatted.pop(name, None)
            self.data_version = self.data_version.next(self.clock.now_ms())

    def remove(self, name: str) -> None:
        """Forget an entry.

        Raises:
            KeyError: there is none of that name.
        """
        with self.lock:
            del self.table[name]
            self.formatted.pop(name, None)
            self.data_version = self.data_version.next(self.clock.now_ms())

    def touch(self) -> None:
        """Give the table a new version, so that all who know the former one ask for the table again."""
        with self.lock:
            self.data_version = self.data_version.next(self.clock.now_ms())

    def read_fields(self, fields: dict[str, Any]) -> None:
        unknown = dict(fields)
        version = msgspec.convert(unknown.pop("dataVersion", None) or {}, dict[str, Any])
        table = msgspec.convert(unknown.pop(self.table_name, None) or {}, dict[str, dict[str, Any]])
        self.data_version, self.table, self.unknown = (
            DataVersion.from_fields(version),
            {name: self.read_entry(name, entry) for name, entry in table.items()},
            unknown,
        )
        self.formatted = {}

    def replace_fields(self, fields: dict[str, Any], kept: Collection[str]) -> None:
        """Take over the fields of another broker's file, but for the entries called *kept* that it lacks."""
        with self.lock:
            own = {name: self.table[name] for name in kept}
            self.read_fields(fields)
            self.table = {**own, **self.table}

    def read_entry(self, name: str, fields: dict[str, Any]) -> Entry:
        """Return one entry; if it lacks a name, it gets *name*, its key in the table."""
        return self.entry_type.from_fields({**fields, self.name_field: fields.get(self.name_field) or name})

    def write_fields(self) -> dict[str, Any]:
        return self.fields_with({name: entry.to_fields() for name, entry in self.table.items()})

    def text(self) -> str:
        formatted = self.formatted
        for name, entry in self.table.items():
            if name not in formatted:
                formatted[name] = format_field(name, entry.to_fields(), TABLE_DEPTH)
        return format_config(self.fields_with(FormattedObject([formatted[name] for name in self.table], TABLE_DEPTH)))

    def fields_with(self, table: dict[str, Any] | FormattedObject) -> dict[str, Any]:
        """Return the fields of the file with *table* in its place."""
        fields = {"dataVersion": self.data_version.to_fields(), self.table_name: table}
        return dict(sorted((self.unknown | fields).items()))
