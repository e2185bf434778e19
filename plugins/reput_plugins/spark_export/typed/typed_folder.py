"""A folder of typed tables: how to recognise one, so that it is not used as a table of the log."""

from __future__ import annotations

import msgspec
import pyarrow.fs

from reput.errors import ConfigError
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.opening import find_table, format_of_folder
from reput_plugins.spark_export.typed.table_specs import DEAD_LETTERS_SUFFIX

__all__ = ["dead_letters_of", "inside", "refuse_typed_tables", "typed_tables"]

NAMESPACE = "reput"


def inside(folder: LakeLocation, name: str) -> LakeLocation:
    """Return the place of a table in a lake, and in its catalog if it has one."""
    place = msgspec.structs.replace(folder, address=f"{folder.address}/{name}")
    if folder.catalog is None:
        return place
    # A point would begin another part of the name.
    return msgspec.structs.replace(place, catalog_table=f"{NAMESPACE}.{name.replace('.', '_')}")


def dead_letters_of(table: LakeLocation) -> LakeLocation:
    """Return the place of the dead letters beside a typed table."""
    folder, _, name = table.address.rpartition("/")
    return inside(msgspec.structs.replace(table, address=folder), name + DEAD_LETTERS_SUFFIX)


def typed_tables(folder: LakeLocation) -> list[str]:
    """Return the names of the typed tables in *folder*, each of which has dead letters beside it."""
    if folder.folder is not None and not folder.folder.is_dir():
        return []
    found = folder.filesystem().get_file_info(pyarrow.fs.FileSelector("", allow_not_found=True))
    names = [info.base_name for info in found if info.base_name.endswith(DEAD_LETTERS_SUFFIX)]
    return sorted(name.removesuffix(DEAD_LETTERS_SUFFIX) for name in names if is_table(inside(folder, name)))


def is_table(place: LakeLocation) -> bool:
    """Return whether a place holds a table, in a folder of any format."""
    return format_of_folder(place) is not None if place.folder is not None else find_table(place) is not None


def refuse_typed_tables(folder: LakeLocation) -> None:
    """Refuse a folder of typed tables as the place of a table of the log.

    Raises:
        ConfigError: *folder* holds typed tables.
    """
    tables = typed_tables(folder)
    if tables:
        raise ConfigError(
            f"the folder holds typed tables: lake={folder.address} tables={','.join(tables)}",
            "Add --tables FILE to continue them, or name a separate folder for a table of the whole log.",
        )
