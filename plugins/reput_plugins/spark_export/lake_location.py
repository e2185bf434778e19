"""LakeLocation: where a lake lies, a folder or an object store, and how files are written and removed there.

Only the Delta library accesses an object store, with its own settings (``storage_options``), so the files of a lake
and its transactions take the same path and need the same permissions.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler

from reput.errors import ConfigError, DispatcherError
from reput_plugins.spark_export.lakes.storage_option_names import misspelt_options

__all__ = ["DELTA_FORMAT", "ICEBERG_FORMAT", "LAKE_ADVICE", "LakeLocation", "lake_errors", "one_line"]

LAKE_ADVICE = "Free space, or grant write permission; the next run continues where the table ends."
DELTA_FORMAT, ICEBERG_FORMAT = FORMATS = ("delta", "iceberg")
ERROR_LETTERS_MAX = 400
# Colours and arrows in the Delta library's error texts.
DECORATION = re.compile(r"\x1b\[[0-9;]*m|↳")

logger = logging.getLogger(__name__)


class LakeLocation(msgspec.Struct, frozen=True):
    """Where one lake lies.

    Attributes:
        address: absolute path of a folder, or the address of a place in an object store, as ``s3://bucket/lake``.
        storage_options: settings of the Delta library for that object store; they may hold secrets.
        table_format: ``delta`` or ``iceberg``.
        catalog: name of the Iceberg catalog in pyiceberg's configuration; None: the one in the lake's folder.
        catalog_table: the table's name in the catalog, with its namespace; None: ``reput.lake``.
    """

    address: str
    storage_options: dict[str, str] = {}
    table_format: str = DELTA_FORMAT
    catalog: str | None = None
    catalog_table: str | None = None

    @classmethod
    def of(
        cls,
        lake: Path | str,
        storage_options: Mapping[str, str] | None = None,
        *,
        lake_format: str = DELTA_FORMAT,
        catalog: str | None = None,
        catalog_table: str | None = None,
    ) -> LakeLocation:
        """Return the location that a user named.

        Raises:
            ConfigError: the address names no bucket, a folder is given object-store settings, a Delta table is given a
                catalog, or the format is unknown.
        """
        if lake_format not in FORMATS:
            raise ConfigError(f"the lake's format is unknown: lake_format={lake_format} known={','.join(FORMATS)}")
        if lake_format == DELTA_FORMAT and (catalog or catalog_table):
            raise ConfigError(
                f"only Iceberg tables have a catalog: lake_format={lake_format} catalog={catalog or ''} "
                f"catalog_table={catalog_table or ''}",
                "Add --lake-format iceberg (lake_format).",
            )
        if catalog_table is not None and not all(catalog_table.rpartition(".")):
            raise ConfigError(
                f"a table's name in a catalog needs a namespace: catalog_table={catalog_table}", "Write namespace.name."
            )
        text, options = os.fspath(lake), dict(storage_options or {})
        scheme, separator, _ = text.partition("://")
        if separator and scheme != "file":
            if not urlsplit(text).netloc:
                raise ConfigError(f"the lake's address names no bucket: lake={text}", "Write s3://bucket/lake.")
            for option, meant in misspelt_options(options):
                # Do not log the value, which may be a secret.
                logger.warning(
                    "a setting of the object store is probably misspelt, and then has no effect: "
                    "storage_option=%s meant=%s",
                    option,
                    meant,
                )
            return cls(text.rstrip("/"), options, lake_format, catalog, catalog_table)
        if options:
            raise ConfigError(
                f"settings of an object store have no effect on a folder: lake={text} "
                f"storage_options={','.join(options)}",
                "Name a place in an object store, like s3://bucket/lake.",
            )
        path = Path(unquote(urlsplit(text).path) if separator else text).absolute()
        return cls(str(path), {}, lake_format, catalog, catalog_table)

    @property
    def folder(self) -> Path | None:
        """The folder of the lake; None in an object store."""
        return None if "://" in self.address else Path(self.address)

    @property
    def may_commit_late(self) -> bool:
        """Whether a transaction that failed for want of an answer may still be made: another machine decides."""
        return self.folder is None or self.catalog is not None

    def filesystem(self) -> Any:
        """Return the lake as an Arrow file system; names are relative to the lake."""
        if self.folder is not None:
            return pa.fs.SubTreeFileSystem(self.address, pa.fs.LocalFileSystem())
        return pa.fs.PyFileSystem(DeltaStorageHandler(self.address, self.storage_options))

    def remove(self, names: list[str]) -> None:
        """Remove files; a missing file is not an error."""
        if self.folder is not None:
            for name in names:
                (self.folder / name).unlink(missing_ok=True)
            return
        store = self.filesystem()
        for name in names:
            store.delete_file(name)


@contextmanager
def lake_errors(address: str) -> Iterator[None]:
    """Raise an ``OSError`` from inside the block (disk full or read-only, permission denied) as one error.

    Raises:
        DispatcherError: the lake cannot be written. Readers see none of the new files.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise DispatcherError(f"the lake cannot be written: lake={address} error={reason}", LAKE_ADVICE) from error


def one_line(error: Exception) -> str:
    """Return an error of the Delta library as one line, without its colours."""
    text = " ".join(DECORATION.sub(" ", str(error)).split())
    return text if len(text) <= ERROR_LETTERS_MAX else f"{text[:ERROR_LETTERS_MAX]}…"
