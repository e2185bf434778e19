"""KeyedLake: a typed table that keeps the newest row of each key, and applies each change exactly once.

One transaction merges a range of the log into the table, and records the range's end. The range begins where the table
ends, so each change in the range is newer than the table's row of the same key, and replaces the row without a
comparison. A key is unique within one store, because rows of several stores in one table have no common order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from reput.errors import ConfigError, StoreError
from reput_plugins.spark_export.lake import OFFSET_COLUMN
from reput_plugins.spark_export.lakes.lake_table import VECTORS_SETTING, LakeTable, ParquetFile, TransactionData
from reput_plugins.spark_export.parquet_files import STORE_COLUMN
from reput_plugins.spark_export.typed.column_types import conform
from reput_plugins.spark_export.typed.keyed_rows import DELETED, newest_changes, read_changes
from reput_plugins.spark_export.typed.table_specs import DEAD_LETTERS_SUFFIX
from reput_plugins.spark_export.typed.typed_lake import TypedLake

__all__ = ["KeyedLake"]


class KeyedLake(TypedLake):
    """One export of one store into one table with a key.

    *deletion_vectors*: merges mark the replaced rows instead of writing their files anew.
    """

    def __init__(self, *given: Any, deletion_vectors: bool = False, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.deletion_vectors = deletion_vectors

    def create_once(self, schema: pa.Schema, topics: Sequence[str] | None) -> LakeTable:
        """Return the table; see `Lake.create_once`."""
        table = super().create_once(schema, topics)
        if self.deletion_vectors:
            table.enable_deletion_vectors()
        return table

    def refuse_another(self, table: LakeTable, topics: Sequence[str] | None) -> None:
        """Refuse another table than the described one, also one with deletion vectors that the description lacks."""
        super().refuse_another(table, topics)
        if not self.deletion_vectors and table.properties().get(VECTORS_SETTING) == "true":
            raise ConfigError(
                f"the table has deletion vectors: lake={self.location.address}",
                "Give deletion_vectors = true, or name a separate table.",
            )

    def add_rows(
        self, table: LakeTable, files: Sequence[ParquetFile], schema: pa.Schema, transaction: TransactionData
    ) -> None:
        """Merge the changes in *files* into the table."""
        if not files:
            table.append([], schema, transaction)
            return
        changes = read_changes(self.location, [file.path for file in files])
        rows = newest_changes(changes, self.key, self.columns.name(OFFSET_COLUMN))
        # If the body no longer has a column, the new row has null there; a merge would otherwise keep the old value.
        whole = conform(rows, pa.schema([*table.schema(), pa.field(DELETED, pa.bool_())]))
        of_store = {self.columns.name(STORE_COLUMN): self.store_name}
        table.merge_rows(whole, self.key, of_store, DELETED, self.statistics_columns(), transaction)

    def refuse_cut(self, commit_log_offset: int) -> None:
        """Refuse every cut, because the table has lost the rows that the cut-off records replaced or removed.

        Raises:
            StoreError: always.
        """
        folder = self.location.address
        raise StoreError(
            f"the log was cut below what the table holds, and a table with a key cannot be rolled back: "
            f"cut_at={commit_log_offset} lake={folder} key={','.join(self.key)}",
            f"Move {folder} and {folder}{DEAD_LETTERS_SUFFIX} away and export again: the table is rebuilt from the "
            "log. Rows whose records retention has removed are then only in the old table.",
        )
