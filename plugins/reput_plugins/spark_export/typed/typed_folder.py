"""A folder of typed tables: how to recognise one, so that it is not used as a table of the log."""

from __future__ import annotations

import msgspec
import pyarrow.fs

from reput.errors import ConfigError
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.delta_table import open_delta_table
from reput_plugins.spark_export.typed.table_specs import DEAD_LETTERS_SUFFIX

__all__ = ["dead_letters_of", "inside", "refuse_typed_tables", "typed_tables"]


def inside(folder: LakeLocation, name: str) -> LakeLocation:
    """Return the place of a table in a lake."""
    return LakeLocation(f"{folder.address}/{name}", folder.storage_options)


def dead_letters_of(table: LakeLocation) -> LakeLocation:
    """Return the place of the dead letters beside a typed table."""
    return msgspec.structs.replace(table, address=table.address + DEAD_LETTERS_SUFFIX)


def typed_tables(folder: LakeLocation) -> list[str]:
    """Return the names of the typed tables in *folder*, each of which has dead letters beside it."""
    if folder.folder is not None and not folder.folder.is_dir():
        return []
    found = folder.filesystem().get_file_info(pyarrow.fs.FileSelector("", allow_not_found=True))
    names = [info.base_name for info in found if info.base_name.endswith(DEAD_LETTERS_SUFFIX)]
    tables = [name for name in names if open_delta_table(inside(folder, name)) is not None]
    return sorted(name.removesuffix(DEAD_LETTERS_SUFFIX) for name in tables)


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
