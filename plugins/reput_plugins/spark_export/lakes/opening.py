"""Opening the table of a lake, in any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from reput.errors import ConfigError, DispatcherError
from reput_plugins.spark_export.lake_location import DELTA_FORMAT, ICEBERG_FORMAT, LakeLocation
from reput_plugins.spark_export.lakes.delta_table import create_delta_table, open_delta_table
from reput_plugins.spark_export.lakes.lake_table import LakeTable

__all__ = ["create_table", "find_table", "format_of_folder", "location_as_found", "open_table"]


def find_table(location: LakeLocation) -> LakeTable | None:
    """Return the newest version of the table; None if there is no table yet.

    Raises:
        DispatcherError: the location is a file, or the object store does not answer or refuses access.
        ConfigError: the folder holds a table of another format.
    """
    if location.folder is not None and location.folder.exists() and not location.folder.is_dir():
        raise DispatcherError(
            f"the lake is not a folder: lake={location.address}", "Name a folder. If it does not exist, it is created."
        )
    found = format_of_folder(location)
    if found not in (None, location.table_format):
        raise ConfigError(
            f"the lake has another format: lake={location.address} format={found} asked={location.table_format}",
            f"Add --lake-format {found} (lake_format), or name a separate folder.",
        )
    if location.table_format == DELTA_FORMAT:
        return open_delta_table(location)
    # Imported only here, because it needs the extra ``iceberg``.
    from reput_plugins.spark_export.lakes.iceberg_table import open_iceberg_table

    return open_iceberg_table(location)


def format_of_folder(location: LakeLocation) -> str | None:
    """Return the format of the table in a lake's folder, None without one or in an object store."""
    if location.folder is None:
        return None
    signs = {DELTA_FORMAT: "_delta_log", ICEBERG_FORMAT: "metadata"}
    return next((name for name, sign in signs.items() if (location.folder / sign).is_dir()), None)


def location_as_found(
    lake: Path | str,
    storage_options: Mapping[str, str] | None,
    lake_format: str | None,
    catalog: str | None,
    catalog_table: str | None,
) -> LakeLocation:
    """Return the location of a lake in *lake_format*; None: the format of the table that lies there.

    Raises:
        ConfigError: the arguments contradict each other.
    """
    if lake_format is None:
        # A catalog is one of Iceberg tables.
        lake_format = ICEBERG_FORMAT if catalog or catalog_table else DELTA_FORMAT
        lake_format = format_of_folder(LakeLocation.of(lake, storage_options, lake_format=lake_format)) or lake_format
    return LakeLocation.of(lake, storage_options, lake_format=lake_format, catalog=catalog, catalog_table=catalog_table)


def open_table(location: LakeLocation) -> LakeTable:
    """Return the existing table.

    Raises:
        DispatcherError: the table does not exist, or cannot be read.
    """
    table = find_table(location)
    if table is None:
        raise DispatcherError(
            f"the lake is gone: lake={location.address}", "See whether it was moved. The next start creates it again."
        )
    return table


def create_table(
    location: LakeLocation, schema: pa.Schema, partition_columns: Sequence[str], properties: Mapping[str, str]
) -> LakeTable:
    """Create an empty table, or return the one that another process has just created.

    Raises:
        DispatcherError: it cannot be created.
    """
    if location.table_format == DELTA_FORMAT:
        return create_delta_table(location, schema, partition_columns, properties)
    # Imported only here, because it needs the extra ``iceberg``.
    from reput_plugins.spark_export.lakes.iceberg_table import create_iceberg_table

    return create_iceberg_table(location, schema, partition_columns, properties)
