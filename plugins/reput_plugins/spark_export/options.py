"""Options of the dispatcher ``spark_export``, as in ``[dispatchers.spark_export]`` of the configuration.

What Spark itself is told stands in the table ``[spark]``, for everything that uses Spark.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["EXPORT_NAME", "SparkExportOptions"]

EXPORT_NAME = "export"

Positive = Annotated[int, msgspec.Meta(ge=1)]


class SparkExportOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        lake: folder of the Delta table, or its place in an object store, as ``s3://bucket/lake``; None: ``lake`` in the
            view's own folder. Only that one can be rebuilt.
        storage_options: settings of the Delta library for the object store, as ``AWS_REGION``.
        topics: names; None: every topic. A lake keeps to its first choice.
        name: of the export, as the table knows it; `reput export --name` takes the same one.
        interval_ms: the lake grows at most this often, unless *commit_bytes* of the log wait for it. Shorter makes more
            and smaller files.
        commit_bytes: so many bytes of the log are committed at once.
        batch_bytes_max: bytes of the log that one transaction holds at most.
        split_bytes: bytes of the log that one task decodes.
        compact_interval_ms: how often all days are looked through for small files to merge, and for orphans; in
            between it is done where transactions have left many. 0: never.
        on_corruption: what bytes of the log mean that are no records, or a body that does not have its CRC: "fail", or
            "report": they are left out, logged, and named in the transaction.
        vacuum_hours: files that reput wrote and the table does not have, or no longer has, are removed when they are
            older; 0: never.
    """

    lake: str | None = None
    storage_options: dict[str, str] = {}
    topics: tuple[str, ...] | None = None
    name: str = EXPORT_NAME
    interval_ms: Positive = 10_000
    commit_bytes: Positive = 64 << 20
    batch_bytes_max: Positive = 256 << 20
    split_bytes: Positive = 64 << 20
    compact_interval_ms: Annotated[int, msgspec.Meta(ge=0)] = 600_000
    vacuum_hours: Annotated[int, msgspec.Meta(ge=0)] = 168
    on_corruption: Literal["fail", "report"] = "fail"
