"""ProofPlan: the log and the rows that are compared. Spark sends it to the workers with their function."""

from __future__ import annotations

import msgspec

from reput.store.log.bad_range import BadRange
from reput.table import TableOptions
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.lakes.deletion_vectors import DeletionVector
from reput_plugins.spark_export.lakes.lake_table import LakeTable
from reput_plugins.spark_export.parquet_files import STORE_COLUMN

__all__ = ["OFFSET_COLUMN", "LakeFile", "LakePart", "ProofPlan", "files_of"]

OFFSET_COLUMN = "commitLogOffset"


class LakePart(msgspec.Struct, frozen=True):
    """One of the compared tables: that of the rows, or that of the dead letters beside it.

    Attributes:
        names: how its rows name the columns of the log.
        columns: columns that both the table and the log have.
        end: where the table ends by its transactions.
        has_topics: its files are laid out by topic.
        day_column: the partition column of the day; None: its files are not laid out by day.
        watermarks: (from, until) of each of its watermarks, ascending.
    """

    lake: LakeLocation
    names: LogColumns
    columns: tuple[str, ...]
    end: int
    has_topics: bool
    day_column: str | None
    watermarks: tuple[tuple[int, int], ...] = ()


class LakeFile(msgspec.Struct, frozen=True):
    """One file of a table with the lowest and highest offset and store of its transaction; None: unknown.

    *part* is the number of its table in the plan, *deletion* names the rows that are deleted in it.
    """

    part: int
    path: str
    size: int
    topic: str | None
    date: str | None
    offset_min: int | None
    offset_max: int | None
    store_min: str | None
    store_max: str | None
    deletion: DeletionVector | None = None

    def is_anothers(self, store_name: str | None, others: frozenset[str]) -> bool:
        """Return whether all rows of the file belong to one other store that the lake knows."""
        return store_name is not None and self.store_min == self.store_max and self.store_min in others

    def may_hold(self, begin: int, until: int) -> bool:
        """Return whether the file may have rows in [begin, until)."""
        return (self.offset_min is None or self.offset_min < until) and (
            self.offset_max is None or self.offset_max >= begin
        )


class ProofPlan(msgspec.Struct, frozen=True):
    """The comparison of one store's log with its rows in one version of the table, and of its dead letters.

    Attributes:
        parts: the compared tables.
        table: how the export converts records to rows.
        store_name: value of the column ``store`` in the store's rows; None: the table has no such column.
        other_names: values of that column in the rows of other stores that the lake knows.
        offset_min: where the log began when the check began; rows below cannot be compared.
        until: where the lake ends, or where the log's history diverges from the lake's.
        lake_end: where the lake ends by its transactions.
        tags: the tags of the records that have a row; None: all.
        keyed: the table has only the newest row of each key, so a record may lack a row.
        damage: ranges of the log that are damaged.
    """

    store: str
    parts: tuple[LakePart, ...]
    table: TableOptions
    store_name: str | None
    other_names: frozenset[str]
    offset_min: int
    until: int
    lake_end: int
    tags: tuple[str, ...] | None = None
    keyed: bool = False
    damage: tuple[BadRange, ...] = ()


def files_of(table: LakeTable, number: int, part: LakePart) -> list[LakeFile]:
    """Return the files of *table*, which is part *number* of the plan, in the order of their offsets."""
    offset, store = part.names.name(OFFSET_COLUMN), part.names.name(STORE_COLUMN)
    found = [
        LakeFile(
            number,
            file.path,
            file.size,
            file.partition.get("topic") if part.has_topics else None,
            None if part.day_column is None else file.partition.get(part.day_column),
            file.minimum.get(offset),
            file.maximum.get(offset),
            file.minimum.get(store),
            file.maximum.get(store),
            file.deletion,
        )
        for file in table.files()
    ]
    return sorted(found, key=lambda file: (file.offset_min or 0, file.path))
