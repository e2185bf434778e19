"""TypedLake: the Delta table of one typed table, or of its dead letters, with each record exactly once.

Its transactions record the end of the log as those of `Lake` do. A table and its dead letters belong together; the dead
letters are committed first. After a crash between the two transactions, the dead letters are ahead, and are cut back
before the range is exported again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from reput.errors import ConfigError, DispatcherError
from reput.store.state.epochs import Epochs
from reput_plugins.spark_export.lake import Lake, stored_type
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.lakes.lake_table import LakeTable, ParquetFile, TransactionData
from reput_plugins.spark_export.parquet_files import CLUSTER_SETTING
from reput_plugins.spark_export.typed.evolution import has_wider_types, merged_schema

__all__ = ["STATISTICS_OF_LOG", "TABLE_SETTING", "TypedLake", "is_typed"]

TABLE_SETTING = "reput.typed"
# The columns of the log by which readers of a typed table skip files.
STATISTICS_OF_LOG = ("queueId", "queueOffset", "commitLogOffset", "storeTimestamp")
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEY_SETTING = "reput.key"


class TypedLake(Lake):
    """One export of one store into one typed table.

    Attributes:
        kind: format of the bodies, or "dead_letters"; it cannot change.
        cluster_by: columns by which the rows of a file are sorted.
        key: columns whose values are unique in the table; empty: a row per message.
    """

    has_watermarks = False

    def __init__(
        self,
        location: LakeLocation,
        export_name: str,
        epochs: Epochs,
        store_name: str | None = None,
        *,
        kind: str,
        columns: LogColumns,
        partition_columns: tuple[str, ...],
        cluster_by: tuple[str, ...] = (),
        key: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            location, export_name, epochs, store_name, partition_columns=partition_columns, columns=columns
        )
        self.kind = kind
        self.cluster_by = cluster_by
        self.key = key

    def statistics(self) -> Sequence[str]:
        """Return the columns that have statistics. A point stands before the field of a struct, unless it is quoted."""
        own = [name if PLAIN_NAME.fullmatch(name) else f"`{name}`" for name in self.cluster_by]
        return [*(self.columns.name(name) for name in STATISTICS_OF_LOG), *own]

    def settings(self) -> dict[str, str]:
        """Return the properties by which later exports recognise the table."""
        kept = {TABLE_SETTING: self.kind, CLUSTER_SETTING: ",".join(self.cluster_by)}
        return {**kept, KEY_SETTING: ",".join(self.key)} if self.key else kept

    def refuse_another(self, table: LakeTable, topics: Sequence[str] | None) -> None:
        """Refuse a table that is not typed, or holds another format, other topics or other partitions."""
        super().refuse_another(table, topics)
        kept = table.properties().get(TABLE_SETTING)
        if kept != self.kind:
            raise ConfigError(
                f"the table is of another kind: lake={self.location.address} kept={kept or 'the log'} "
                f"asked={self.kind}",
                "Name a separate table.",
            )
        key = table.properties().get(KEY_SETTING, "")
        if key != ",".join(self.key):
            raise ConfigError(
                f"the table has another key: lake={self.location.address} kept={key or 'none'} "
                f"asked={','.join(self.key) or 'none'}",
                "Name a separate table.",
            )

    def export_words(self, table: LakeTable) -> list[str]:
        """Return the command line's words for the folder of tables. The file of tables is unknown here."""
        return [self.location.address.rpartition("/")[0], "--tables", "FILE", *self.name_words()]

    def add_columns(self, table: LakeTable, schema: pa.Schema) -> LakeTable:
        """Return the table after adding the columns and fields that only *schema* has, and widening types.

        Raises:
            ConfigError: a column has another type that does not hold all its values; the message shows every
                difference.
            DispatcherError: the columns cannot be changed.
        """
        kept = table.schema()
        merged = merged_schema(kept, schema, self.location.address, self.location.table_format)
        if has_wider_types(kept, merged):
            table.widen(merged)
        elif not merged.equals(kept):
            table.add_fields(merged)
        return table

    def add_rows(
        self, table: LakeTable, files: Sequence[ParquetFile], schema: pa.Schema, transaction: TransactionData
    ) -> None:
        """Add the rows of *files*, unless the exporter of another store has widened a column since they were written.

        Raises:
            DispatcherError: a column has another type now.
        """
        kept = table.schema()
        for field in schema:
            now = kept.field(field.name).type
            if stored_type(now) != stored_type(field.type):
                raise DispatcherError(
                    f"the type of a column changed while rows were written: lake={self.location.address} "
                    f"column={field.name} written={field.type} kept={now}",
                    "Another store's export widened it. Start the export again; it continues where the table ends.",
                )
        super().add_rows(table, files, schema, transaction)


def is_typed(table: LakeTable) -> bool:
    """Return whether a table is a typed table or its dead letters, not the table of the log."""
    return TABLE_SETTING in table.properties()
