"""Catalogs of Iceberg tables: where a lake's table is registered, and how its files are forced to disk.

Without a catalog of your own, a lake in a folder has one beside its files: ``catalog.db``, a SQLite file of pyiceberg's
SQL catalog, in which the table is ``reput.lake``. A catalog of your own (REST, SQL, Glue, Hive, …) is one that
pyiceberg knows by name, from ``.pyiceberg.yaml`` or ``PYICEBERG_CATALOG__NAME__…`` in the environment.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import pyarrow.fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from reput.errors import ConfigError
from reput.store.disk.files import Files
from reput_plugins.spark_export.lake_location import LakeLocation, one_line

__all__ = ["BUILT_IN_TABLE", "DurableFileIO", "open_catalog", "refuse_another_catalog", "table_name"]

BUILT_IN_CATALOG, CATALOG_FILE = "reput", "catalog.db"
BUILT_IN_TABLE = "reput.lake"
FILE_IO = "py-io-impl"
# Metadata of a table after its first change. That of a creation may be left by one that was killed.
CHANGED_TABLE = re.compile(r"v?0*[1-9][0-9]*(-.*)?\.metadata\.json(\.gz)?")
# pyiceberg's names for the Delta library's settings, with which workers write data files. That library takes them with
# or without "aws_" in front, and in any case.
STORAGE_OPTIONS = {
    "endpoint_url": "s3.endpoint",
    "endpoint_url_s3": "s3.endpoint",
    "endpoint": "s3.endpoint",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "token": "s3.session-token",
    "region": "s3.region",
    "default_region": "s3.region",
}


def open_catalog(location: LakeLocation, *, create: bool) -> Catalog | None:
    """Return the lake's catalog; None if it is the lake's own, does not exist yet, and *create* is false.

    Raises:
        ConfigError: there is no catalog with that name, or a lake in an object store names no catalog.
    """
    given = {name.lower().removeprefix("aws_"): value for name, value in location.storage_options.items()}
    properties = {name: given[key] for key, name in reversed(STORAGE_OPTIONS.items()) if key in given}
    folder = location.folder
    if folder is not None:
        properties[FILE_IO] = f"{DurableFileIO.__module__}.{DurableFileIO.__name__}"
    if location.catalog is not None:
        try:
            return load_catalog(location.catalog, **properties)
        except ValueError as error:
            raise ConfigError(
                f"pyiceberg has no such catalog: catalog={location.catalog} error={one_line(error)}",
                "Describe it in .pyiceberg.yaml, or in PYICEBERG_CATALOG__NAME__URI and so on.",
            ) from None
    if folder is None:
        raise ConfigError(
            f"an Iceberg table in an object store needs a catalog: lake={location.address}",
            "Name one of pyiceberg's configuration: --catalog NAME (catalog).",
        )
    if not (folder / CATALOG_FILE).exists():
        if not create:
            return None
        folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog(BUILT_IN_CATALOG, uri=f"sqlite:///{folder / CATALOG_FILE}", **properties)


def table_name(location: LakeLocation) -> str:
    """Return the table's name in its catalog, with its namespace."""
    return location.catalog_table or BUILT_IN_TABLE


def refuse_another_catalog(location: LakeLocation) -> None:
    """Refuse a location that has a table, although its catalog has none of that name.

    Two tables in one folder would each take the other's files for leftovers, and remove them.

    Raises:
        ConfigError: the location has a table.
    """
    found = location.filesystem().get_file_info(pyarrow.fs.FileSelector("metadata", allow_not_found=True))
    if any(CHANGED_TABLE.fullmatch(entry.base_name) for entry in found):
        raise ConfigError(
            f"the lake's table is not in this catalog: lake={location.address} catalog={location.catalog or 'none'} "
            f"catalog_table={table_name(location)}",
            "Give the catalog and the name with which the lake was made (--catalog, --catalog-table), or name a "
            "separate folder.",
        )


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's access to local files, but every written file is on disk before the catalog names it."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        kind = DurableFile if scheme == "file" else PyArrowFile
        return kind(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)


class DurableFile(PyArrowFile):
    """A local file whose bytes and name are forced to disk when it is closed."""

    def create(self, overwrite: bool = False) -> Any:
        """Return the file, open for writing."""
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return ForcedStream(path, overwrite)


class ForcedStream(io.FileIO):
    """The stream of a `DurableFile`."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        super().__init__(path, "w" if overwrite else "x")
        self.path = path

    def write(self, data: Any) -> int:
        """Write all of *data*: a raw file may take only a part of it."""
        left = memoryview(data).cast("B")
        while left:
            left = left[super().write(left) :]
        return len(data)

    def close(self) -> None:
        """Force the bytes and the name to disk, then close."""
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            Files().force_together([], [self.path.parent])
