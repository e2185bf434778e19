"""ProofPlan: the log and the rows that are compared. Spark sends it to the workers with their function."""

from __future__ import annotations

import msgspec

from reput.store.log.bad_range import BadRange
from reput.table import TableOptions
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.lake_table import LakeTable
from reput_plugins.spark_export.parquet_files import STORE_COLUMN

__all__ = ["OFFSET_COLUMN", "LakeFile", "ProofPlan", "files_of"]

OFFSET_COLUMN = "commitLogOffset"


class LakeFile(msgspec.Struct, frozen=True):
    """One file of the table with the lowest and highest offset and store of its transaction; None: unknown."""

    path: str
    size: int
    topic: str | None
    date: str | None
    offset_min: int | None
    offset_max: int | None
    store_min: str | None
    store_max: str | None

    def is_anothers(self, store_name: str | None, others: frozenset[str]) -> bool:
        """Return whether all rows of the file belong to one other store that the lake knows."""
        return store_name is not None and self.store_min == self.store_max and self.store_min in others

    def may_hold(self, begin: int, until: int) -> bool:
        """Return whether the file may have rows in [begin, until)."""
        return (self.offset_min is None or self.offset_min < until) and (
            self.offset_max is None or self.offset_max >= begin
        )


class ProofPlan(msgspec.Struct, frozen=True):
    """The comparison of one store's log with its rows in one version of the table.

    Attributes:
        table: how the export converts records to rows.
        store_name: value of the column ``store`` in the store's rows; None: the table has no such column.
        other_names: values of that column in the rows of other stores that the lake knows.
        offset_min: where the log began when the check began; rows below cannot be compared.
        until: where the lake ends, or where the log's history parts from the lake's.
        lake_end: where the lake ends by its transactions.
        columns: columns that both the table and the log have, except those in the folders' names.
        damage: ranges of the log that are damaged.
        watermarks: (from, until) of each watermark, ascending.
    """

    store: str
    lake: LakeLocation
    table: TableOptions
    store_name: str | None
    other_names: frozenset[str]
    offset_min: int
    until: int
    lake_end: int
    columns: tuple[str, ...]
    damage: tuple[BadRange, ...] = ()
    watermarks: tuple[tuple[int, int], ...] = ()


def files_of(table: LakeTable) -> list[LakeFile]:
    """Return the files of *table*, in the order of their offsets."""
    found = [
        LakeFile(
            file.path,
            file.size,
            file.partition.get("topic"),
            file.partition.get("date"),
            file.minimum.get(OFFSET_COLUMN),
            file.maximum.get(OFFSET_COLUMN),
            file.minimum.get(STORE_COLUMN),
            file.maximum.get(STORE_COLUMN),
        )
        for file in table.files()
    ]
    return sorted(found, key=lambda file: (file.offset_min or 0, file.path))
