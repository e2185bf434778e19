"""TypedLake: the Delta table of one typed table, or of its dead letters, with each record exactly once.

Its transactions record the end of the log as those of `Lake` do. A table and its dead letters belong together; the dead
letters are committed first. After a crash between the two transactions, the dead letters are ahead, and are cut back
before the range is exported again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import pyarrow as pa

from reput.errors import ConfigError, DispatcherError
from reput.store.state.epochs import Epochs
from reput_plugins.spark_export.lake import OFFSET_COLUMN, Lake, stored_type
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.lakes.lake_table import LakeTable, ParquetFile, TransactionData
from reput_plugins.spark_export.parquet_files import CLUSTER_SETTING
from reput_plugins.spark_export.typed.evolution import has_wider_types, merged_schema

__all__ = ["DEAD_KIND", "STATISTICS_OF_LOG", "TABLE_SETTING", "TypedLake", "is_typed", "key_of", "lake_like", "tags_of"]

TABLE_SETTING = "reput.typed"
DEAD_KIND = "dead_letters"
# The columns of the log by which readers of a typed table skip files.
STATISTICS_OF_LOG = ("queueId", "queueOffset", "commitLogOffset", "storeTimestamp")
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEY_SETTING = "reput.key"
# The tags of the messages, and the name of the column of the commit-log offset, by which a check finds the others.
TAGS_SETTING = "reput.tags"
OFFSET_SETTING = "reput.offset_column"
# No tag has a space or this character in it.
TAGS_MARK = "|"


class TypedLake(Lake):
    """One export of one store into one typed table.

    Attributes:
        kind: format of the bodies, or "dead_letters"; it cannot change.
        cluster_by: columns by which the rows of a file are sorted.
        key: columns whose values are unique in the table; empty: a row per message.
        tags: the table has only messages with one of these tags, which cannot change; None: all messages.
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
        key: tuple[str, ...] = (),
        tags: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(
            location, export_name, epochs, store_name, partition_columns=partition_columns, columns=columns
        )
        self.kind = kind
        self.cluster_by = cluster_by
        self.key = key
        self.tags = tags

    @property
    def has_watermarks(self) -> bool:
        """Whether each row stays: a table with a key replaces rows."""
        return not self.key

    def statistics(self) -> Sequence[str]:
        """Return the columns that have statistics. A point stands before the field of a struct, unless it is quoted."""
        clustered = (name if PLAIN_NAME.fullmatch(name) else f"`{name}`" for name in self.cluster_by)
        return [*map(self.columns.name, STATISTICS_OF_LOG), *clustered]

    def statistics_columns(self) -> list[str]:
        """Return the same columns, none quoted."""
        return [*map(self.columns.name, STATISTICS_OF_LOG), *self.cluster_by]

    def settings(self) -> dict[str, str]:
        """Return the properties by which later exports recognise the table."""
        kept = {
            TABLE_SETTING: self.kind,
            CLUSTER_SETTING: ",".join(self.cluster_by),
            OFFSET_SETTING: self.columns.name(OFFSET_COLUMN),
        }
        if self.key:
            kept[KEY_SETTING] = ",".join(self.key)
        if self.tags is not None:
            kept[TAGS_SETTING] = TAGS_MARK.join(self.tags)
        return kept

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
        tags = tags_of(table)
        if tags != self.tags:
            given, asked = (" || ".join(found) if found else "all" for found in (tags, self.tags))
            raise ConfigError(
                f"the table holds other tags: lake={self.location.address} kept={given} asked={asked}",
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


def key_of(table: LakeTable) -> tuple[str, ...]:
    """Return the key of a typed table; empty: it has a row per message."""
    return tuple(name for name in table.properties().get(KEY_SETTING, "").split(",") if name)


def tags_of(table: LakeTable) -> tuple[str, ...] | None:
    """Return the tags of a typed table's messages; None: all."""
    kept = table.properties().get(TAGS_SETTING)
    return None if kept is None else tuple(kept.split(TAGS_MARK))


def lake_like(table: LakeTable) -> Callable[[LakeLocation, str, Epochs, str | None], Lake]:
    """Return the constructor for a typed table as it is, without the description that a user gave of it."""
    properties = table.properties()
    name = properties.get(OFFSET_SETTING, f"_log.{OFFSET_COLUMN}").removesuffix(OFFSET_COLUMN)
    return functools.partial(
        TypedLake,
        kind=properties[TABLE_SETTING],
        columns=LogColumns(name[:-1]) if name.endswith(".") else LogColumns(None, name),
        partition_columns=tuple(table.partition_columns()),
        key=key_of(table),
        tags=tags_of(table),
    )


def is_typed(table: LakeTable) -> bool:
    """Return whether a table is a typed table or its dead letters, not the table of the log."""
    return TABLE_SETTING in table.properties()
