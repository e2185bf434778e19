"""VersionedTable: a configuration file that is one table of named objects, and the version of that table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from reput.store.config.config_manager import ConfigManager
from reput.store.config.stored_fields import DataVersion, StoredFields
from reput.store.disk.files import Clock, Files

__all__ = ["VersionedTable"]

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

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All entries by name, as they are now and will be."""
        return MappingProxyType(self.table)

    def put(self, name: str, entry: Entry) -> None:
        """Add an entry, or change the one of that name."""
        with self.lock:
            self.table[name] = entry
            self.data_version = self.data_version.next(self.clock.now_ms())

    def remove(self, name: str) -> None:
        """Forget an entry.

        Raises:
            KeyError: there is none of that name.
        """
        with self.lock:
            del self.table[name]
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

    def read_entry(self, name: str, fields: dict[str, Any]) -> Entry:
        """Return one entry; if it lacks a name, it gets *name*, its key in the table."""
        return self.entry_type.from_fields({**fields, self.name_field: fields.get(self.name_field) or name})

    def write_fields(self) -> dict[str, Any]:
        table = {name: entry.to_fields() for name, entry in self.table.items()}
        fields = {"dataVersion": self.data_version.to_fields(), self.table_name: table}
        return dict(sorted((self.unknown | fields).items()))
