"""Merging rows into a Delta table by key, in one transaction: ``deltalake`` joins and rewrites, without a JVM.

The library reads the key columns of the files whose statistics do not exclude the keys, and rewrites the files that
hold one of the keys. Other files stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, WriterProperties

from reput_plugins.spark_export.parquet_files import COMPRESSION_LEVEL

__all__ = ["WRITER_PROPERTIES", "merge", "quoted", "sql_name"]

SOURCE, TARGET = "s", "t"
# Without the limit, the library writes the smallest and the largest body into the footer, which every query reads.
WRITER_PROPERTIES = WriterProperties(
    compression="ZSTD", compression_level=COMPRESSION_LEVEL, statistics_truncate_length=64
)


def merge(
    delta: DeltaTable,
    rows: pa.Table,
    key: Sequence[str],
    equal: Mapping[str, str],
    deleted: str,
    properties: CommitProperties,
) -> None:
    """Merge *rows* as `LakeTable.merge_rows` does. If no row changes, the library makes no transaction."""
    pairs = [f"{TARGET}.{sql_name(name)} = {SOURCE}.{sql_name(name)}" for name in key]
    pairs += [f"{TARGET}.{sql_name(name)} = {quoted(value)}" for name, value in equal.items()]
    gone = f"{SOURCE}.{sql_name(deleted)}"
    merger = delta.merge(
        rows,
        " and ".join(pairs),
        source_alias=SOURCE,
        target_alias=TARGET,
        # The whole source is in memory: its smallest and largest keys then exclude files of the table.
        streamed_exec=False,
        writer_properties=WRITER_PROPERTIES,
        commit_properties=properties,
    )
    merger = merger.when_matched_delete(gone)
    merger = merger.when_matched_update_all(f"not {gone}", except_cols=[deleted])
    merger.when_not_matched_insert_all(f"not {gone}", except_cols=[deleted]).execute()


def sql_name(name: str) -> str:
    """Return a column, or the field of a struct (``column.field``), in the library's SQL."""
    column, _, field = name.partition(".")
    return f"\"{column}\"['{field}']" if field else f'"{column}"'


def quoted(value: str) -> str:
    """Return a text in the library's SQL."""
    return "'" + value.replace("'", "''") + "'"
