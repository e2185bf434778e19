"""Options of the dispatcher ``spark_export``, as in ``[dispatchers.spark_export]``, and what is asked of any export.

Settings for Spark itself are in the table ``[spark]``, shared by everything that uses Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

__all__ = ["EXPORT_NAME", "ExportRequest", "SparkExportOptions"]

EXPORT_NAME = "export"

Positive = Annotated[int, msgspec.Meta(ge=1)]


class SparkExportOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        lake: folder of the table, or its address in an object store such as ``s3://bucket/lake``; None: ``lake``
            in the view's own folder. Only a lake in that folder can be rebuilt.
        lake_format: ``delta`` or ``iceberg``. Iceberg needs the extra ``iceberg``.
        catalog: name of the Iceberg catalog in pyiceberg's configuration; None: ``catalog.db`` in the lake's folder.
        catalog_table: the table's name in the catalog, as ``namespace.name``; None: ``reput.lake``.
        storage_options: settings of the Delta library for the object store, such as ``AWS_REGION``.
        tables: typed tables to keep in the folder *lake* instead of the table of the log: by name, with the keys of
            `TableSpec`, or a TOML file of them. None: the table of the log.
        topics: names; None: every topic. The first export into a lake fixes the choice. Typed tables have their own.
        name: name of the export in the table; give the same name to `reput export --name`.
        interval_ms: minimum time between commits, unless *commit_bytes* of the log are waiting. A shorter interval
            makes more and smaller files.
        commit_bytes: log bytes that are committed without waiting for *interval_ms*.
        batch_bytes_max: maximum log bytes in one transaction.
        split_bytes: log bytes that one task decodes.
        compact_interval_ms: interval between searches of all days for small files to merge, and for orphans; in
            between, small files are merged every few transactions. 0: never.
        on_corruption: what to do with log bytes that are not records and bodies that fail their CRC: "fail", or
            "report": skip them, log them, and list them in the transaction.
        vacuum_hours: age at which files that reput wrote and the table does not name, or no longer names, are removed;
            0: never.
    """

    lake: str | None = None
    lake_format: Literal["delta", "iceberg"] = "delta"
    catalog: str | None = None
    catalog_table: str | None = None
    storage_options: dict[str, str] = {}
    tables: str | dict[str, dict[str, Any]] | None = None
    topics: tuple[str, ...] | None = None
    name: str = EXPORT_NAME
    interval_ms: Positive = 10_000
    commit_bytes: Positive = 64 << 20
    batch_bytes_max: Positive = 256 << 20
    split_bytes: Positive = 64 << 20
    compact_interval_ms: Annotated[int, msgspec.Meta(ge=0)] = 600_000
    vacuum_hours: Annotated[int, msgspec.Meta(ge=0)] = 168
    on_corruption: Literal["fail", "report"] = "fail"


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of an export, once or continuously: the arguments of `export` that are not about its run."""

    store: Path
    lake: Path | str
    tables: Path | str | Mapping[str, Any] | None
    topics: tuple[str, ...] | None
    name: str
    storage_options: Mapping[str, str] | None
    fail_on_data_loss: bool
    on_corruption: str
    store_id: str | None
    accept_truncation: bool
    lake_format: str
    catalog: str | None
    catalog_table: str | None
