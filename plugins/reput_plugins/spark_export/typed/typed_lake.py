"""TypedLake: the Delta table of one typed table, or of its dead letters, with the exactness of the log's own table.

Its transactions carry the log's end as those of `Lake` do. Two tables belong together: the dead letters are committed
first. If a crash comes between the two transactions, the dead letters are ahead, and are cut back before the range is
exported again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from reput.errors import ConfigError, DispatcherError
from reput.store.state.epochs import Epochs
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_location import LAKE_ADVICE, LakeLocation, one_line
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.typed.evolution import merged_schema

__all__ = ["TypedLake"]

TABLE_SETTING = "reput.typed"
CLUSTER_SETTING = "reput.cluster_by"


class TypedLake(Lake):
    """One export of one store into one typed table.

    Attributes:
        kind: format of the bodies, or "dead_letters"; a table keeps it.
        cluster_by: columns by which the rows of a file are sorted.
    """

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
    ) -> None:
        super().__init__(location, export_name, epochs, store_name)
        self.kind = kind
        self.columns = columns
        self.partition_columns = partition_columns
        self.cluster_by = cluster_by

    def settings(self) -> dict[str, str]:
        """Return the properties by which the table is known again."""
        return {TABLE_SETTING: self.kind, CLUSTER_SETTING: ",".join(self.cluster_by)}

    def refuse_another(self, table: DeltaTable, topics: Sequence[str] | None) -> None:
        """Refuse a table that is not typed, or holds another format, other topics or other partitions."""
        super().refuse_another(table, topics)
        kept = table.metadata().configuration.get(TABLE_SETTING)
        if kept != self.kind:
            raise ConfigError(
                f"the table holds something else: lake={self.location.address} kept={kept or 'the log'} "
                f"asked={self.kind}",
                "Name a separate table.",
            )

    def add_columns(self, table: DeltaTable, schema: pa.Schema) -> DeltaTable:
        """Return the table with the columns and fields added that *schema* has in addition.

        Raises:
            ConfigError: a column has another type; the message shows every difference.
            DispatcherError: the columns cannot be added.
        """
        kept = pa.schema(table.schema().to_arrow())
        merged = merged_schema(kept, schema, self.location.address)
        if merged.equals(kept):
            return table
        try:
            # Of an empty addition, the Delta library adds the missing fields, also those inside of structs.
            write_deltalake(
                table,
                merged.empty_table(),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(custom_metadata={}),
            )
        except (OSError, DeltaError) as error:
            raise DispatcherError(
                f"the lake cannot be extended with columns: lake={self.location.address} error={one_line(error)}",
                LAKE_ADVICE,
            ) from None
        self.force_commits()
        return self.location.table()
