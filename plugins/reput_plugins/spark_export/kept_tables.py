"""Tables that a lake consists of: the table of the log, or typed tables and their dead letters in folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow.fs

from reput.errors import ConfigError, DispatcherError
from reput_plugins.spark_export.lake import is_foreign, refuse_foreign
from reput_plugins.spark_export.lake_location import LakeLocation, one_line
from reput_plugins.spark_export.lakes.lake_table import LakeTable
from reput_plugins.spark_export.lakes.opening import find_table, format_of_folder
from reput_plugins.spark_export.typed.table_specs import DATE_COLUMN, DEAD_LETTERS_SUFFIX
from reput_plugins.spark_export.typed.typed_folder import inside
from reput_plugins.spark_export.typed.typed_lake import is_typed

__all__ = ["KeptTable", "file_sizes", "kept_tables"]


class KeptTable(msgspec.Struct, frozen=True):
    """One table of a lake. *foreign*: another program made the table. *date_column* has the day of the store time."""

    name: str
    location: LakeLocation
    date_column: str
    foreign: bool = False


def kept_tables(location: LakeLocation, name: str | None = None) -> list[KeptTable]:
    """Return the table at *location*, or the tables in its folders, by name.

    *name*: return only this typed table and its dead letters.

    Raises:
        ConfigError: there is no such table, or reput has not written the only table or the named one.
        DispatcherError: the lake cannot be read.
    """
    itself = find_table(location)
    if itself is not None:
        if name is not None:
            raise ConfigError(
                f"the lake is a table of the whole log, not a folder of tables: lake={location.address} table={name}",
                "Leave out --table (table).",
            )
        refuse_foreign(itself, location)
        return [KeptTable(location.address.rpartition("/")[2], location, date_column_of(itself))]
    wanted = None if name is None else (name, name + DEAD_LETTERS_SUFFIX)
    found = []
    for folder in folders_with_tables(location):
        if wanted is None or folder in wanted:
            place = inside(location, folder)
            table = find_table(place)
            if table is None:
                continue
            foreign = is_foreign(table)
            if not foreign or wanted is not None:
                refuse_foreign(table, place)
            found.append(KeptTable(folder, place, date_column_of(table), foreign))
    if all(table.foreign for table in found):
        raise ConfigError(
            f"there is no table that reput wrote: lake={location.address}" + ("" if name is None else f" table={name}"),
            "Name the LAKE of an export; for an Iceberg table add --lake-format iceberg (lake_format).",
        )
    return found


def date_column_of(table: LakeTable) -> str:
    """Return the name of the column with the day of the store time."""
    return DATE_COLUMN if is_typed(table) else "date"


def folders_with_tables(location: LakeLocation) -> Iterator[str]:
    """Yield the names of folders in a lake that may be tables, ascending."""
    if location.folder is not None and not location.folder.is_dir():
        return
    try:
        entries = location.filesystem().get_file_info(pyarrow.fs.FileSelector(""))
    except OSError as error:
        raise DispatcherError(
            f"the lake cannot be read: lake={location.address} error={one_line(error)}",
            "Check its address, settings and permissions.",
        ) from None
    for name in sorted(entry.base_name for entry in entries if entry.type == pyarrow.fs.FileType.Directory):
        place = inside(location, name)
        if place.folder is None or format_of_folder(place) == location.table_format:
            yield name


def file_sizes(location: LakeLocation, names: Sequence[str]) -> Iterator[int]:
    """Yield the size of each file, except files that were removed meanwhile."""
    for info in location.filesystem().get_file_info(list(names)):
        yield info.size or 0
