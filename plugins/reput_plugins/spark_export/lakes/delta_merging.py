"""Merging rows into a Delta table by key, in one transaction: ``deltalake`` joins and rewrites, without a JVM.

The library reads the key columns of the files whose statistics do not exclude the keys, and rewrites the files that
hold one of the keys. Other files stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import WriterProperties

from reput.store.disk.files import Files
from reput_plugins.spark_export.lakes.delta_table import (
    REFUSED_COMMIT,
    DeltaLakeTable,
    properties_of,
    refusals,
    sql_name,
)
from reput_plugins.spark_export.lakes.delta_versions import LOG, VERSION_DIGITS, changes_of
from reput_plugins.spark_export.lakes.lake_table import TransactionData
from reput_plugins.spark_export.parquet_files import COMPRESSION_LEVEL

__all__ = ["merge_rows"]

SOURCE, TARGET = "s", "t"


def merge_rows(
    table: DeltaLakeTable,
    rows: pa.Table,
    key: Sequence[str],
    equal: Mapping[str, str],
    deleted: str,
    transaction: TransactionData,
) -> None:
    """Replace the table's rows that have the keys of *rows* by *rows*, in one transaction.

    The transaction is made even if no row changes.

    Args:
        rows: the new rows, at most one per key, with the table's columns and the column *deleted*.
        key: the columns that make up a key; none is null in *rows*.
        equal: further values, by column, that the table's rows must have.
        deleted: boolean column; where it is true, the table's row is removed without a replacement.

    Raises:
        CommitConflict: another transaction came first.
        DispatcherError: the table cannot be written.
    """
    pairs = [f"{TARGET}.{sql_name(name)} = {SOURCE}.{sql_name(name)}" for name in key]
    pairs += [f"{TARGET}.{sql_name(name)} = {quoted(value)}" for name, value in equal.items()]
    gone = f"{SOURCE}.{sql_name(deleted)}"
    before = table.version()
    with refusals(table.location, REFUSED_COMMIT):
        merger = table.delta.merge(
            rows,
            " and ".join(pairs),
            source_alias=SOURCE,
            target_alias=TARGET,
            # The whole source is in memory: its smallest and largest keys then exclude files of the table.
            streamed_exec=False,
            writer_properties=WriterProperties(compression="ZSTD", compression_level=COMPRESSION_LEVEL),
            commit_properties=properties_of(transaction),
        )
        merger = merger.when_matched_delete(gone)
        merger = merger.when_matched_update_all(f"not {gone}", except_cols=[deleted])
        merger.when_not_matched_insert_all(f"not {gone}", except_cols=[deleted]).execute()
    table.update()
    if any(table.recorded(name) != number for name, number in transaction.recorded.items()):
        # If no row changes, the Delta library makes no transaction.
        table.append([], table.schema(), transaction)
    force_files(table, before)
    table.force_commits()


def force_files(table: DeltaLakeTable, version: int) -> None:
    """Force the files that transactions after *version* added to disk, because the Delta library does not do it.

    An object store makes its files durable itself.
    """
    folder = table.location.folder
    if folder is None:
        return
    filesystem = table.location.filesystem()
    added: set[str] = set()
    for number in range(version + 1, table.version() + 1):
        added |= changes_of(filesystem, f"{LOG}/{number:0{VERSION_DIGITS}}.json").added
    # A file that another process has merged and removed meanwhile need not be durable.
    paths = [folder / name for name in sorted(added) if (folder / name).exists()]
    Files().force_together(paths, sorted({path.parent for path in paths}))


def quoted(value: str) -> str:
    """Return a text in the library's SQL."""
    return "'" + value.replace("'", "''") + "'"
