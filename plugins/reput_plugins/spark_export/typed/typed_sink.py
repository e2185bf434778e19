"""The files that Spark's workers write for typed tables, and the transactions in which the driver commits them.

One scan of a range feeds all tables of the plan. Each table is committed in its own transaction, which records the end
of the range. Dead letters are committed before rows.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from reput.store.log.segments import Segments
from reput.table import BadRange, TableOptions
from reput.table.advice_notes import advice_noted
from reput.table.worker_memory import end_task
from reput_plugins.spark_export.lake import Commit
from reput_plugins.spark_export.lake_continuation import MakeLake, lake_of_store
from reput_plugins.spark_export.lake_location import LakeLocation, lake_errors
from reput_plugins.spark_export.lake_marks import LogColumns
from reput_plugins.spark_export.lake_sink import Batches, contiguous, remove_unnamed
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.typed.keyed_lake import KeyedLake
from reput_plugins.spark_export.typed.table_files import (
    DEAD_SCHEMA,
    TablePlan,
    log_columns,
    log_fields,
    write_tables,
)
from reput_plugins.spark_export.typed.table_specs import DATE_COLUMN, TableSpec
from reput_plugins.spark_export.typed.typed_lake import DEAD_KIND, TypedLake

__all__ = ["TypedPlan", "WrittenTables", "lakes_of"]


class WrittenTables:
    """The files of one task: for each table, the files of its rows and of its dead letters."""

    def __init__(
        self,
        ranges: list[tuple[int, int]],
        files: list[tuple[list[ParquetFile], list[ParquetFile]]],
        damage: Sequence[BadRange],
    ) -> None:
        self.ranges = ranges
        self.files = files
        self.damage = damage


class TypedPlan(msgspec.Struct, frozen=True):
    """The task of an export of typed tables. Spark sends it to the workers with their function.

    Attributes:
        run: text that is part of the name of each file of this run.
    """

    store: str
    export_name: str
    table: TableOptions
    tables: tuple[TablePlan, ...]
    run: str = ""

    def write_chosen(self, ranges: Sequence[tuple[int, int]], batches: Batches) -> Batches:
        """Write the ranges whose numbers are in *batches*; yield the result. Runs in a worker."""
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        yield pa.record_batch([[pickle.dumps(self.write([ranges[number] for number in numbers]))]], names=["written"])

    @advice_noted()
    def write(self, ranges: Sequence[tuple[int, int]]) -> WrittenTables:
        """Write *ranges*."""
        files: list[tuple[list[ParquetFile], list[ParquetFile]]] = [([], []) for _ in self.tables]
        damage: list[BadRange] = []
        with lake_errors(self.tables[0].location.address):
            for begin, until in ranges:
                written, left_out = write_tables(self.tables, self.store, self.table, begin, until, self.run)
                for (rows, dead), (more_rows, more_dead) in zip(files, written, strict=True):
                    rows += more_rows
                    dead += more_dead
                damage += left_out
        end_task()
        return WrittenTables(list(ranges), files, damage)

    @advice_noted()
    def commit_ranges(self, written: Sequence[WrittenTables]) -> None:
        """Commit the files of *written*, each table in its own transaction, unless the table already has their records.

        Raises:
            DispatcherError: the ranges are not contiguous, or a table refuses the commit.
        """
        bounds = contiguous([found for task in written for found in task.ranges])
        if bounds is None:
            return
        damage = sorted((found for task in written for found in task.damage), key=lambda found: found.begin)
        for number, plan in enumerate(self.tables):
            rows, dead = lakes_of(plan.spec)
            of_rows = [file for task in written for file in task.files[number][0]]
            of_dead = [file for task in written for file in task.files[number][1]]
            self.commit(dead, plan, plan.dead_location, plan.dead_store_id, DEAD_SCHEMA, bounds, of_dead, damage)
            columns = pa.schema([*plan.rows, *log_fields(plan.spec)])
            keyed = bool(plan.spec.key_columns)
            self.commit(rows, plan, plan.location, plan.store_id, columns, bounds, of_rows, damage, keyed)

    def commit(
        self,
        make: MakeLake,
        plan: TablePlan,
        location: LakeLocation,
        store_id: str,
        columns: pa.Schema,
        bounds: tuple[int, int],
        files: Sequence[ParquetFile],
        damage: Sequence[BadRange],
        keyed: bool = False,
    ) -> Commit | None:
        """Commit the files of one table, written with *columns*; remove files that the table does not use."""
        store = Path(self.store)
        lake = lake_of_store(location, self.export_name, store, store_id, plan.store_name, make)
        paths = [file.path for file in files]
        try:
            with lake_errors(location.address):
                added = lake.commit(
                    columns,
                    *bounds,
                    files,
                    damage=damage,
                    gap_allowed=not self.table.fail_on_data_loss,
                    segments=Segments(store / "commitlog"),
                )
        except BaseException:
            if keyed or not location.may_commit_late:
                remove_unnamed(location, paths)
            raise
        if added is None or keyed:
            # The merge has copied the rows into other files, which belong to the table.
            remove_unnamed(location, paths)
        return added

    def remove_run(self) -> None:
        """Remove the files of an uncommitted run. Only a lake in a folder can be searched by file name."""
        for location in (found for plan in self.tables for found in (plan.location, plan.dead_location)):
            if location.folder is not None:
                for path in location.folder.rglob(f"*-{self.run}-*.parquet"):
                    path.unlink(missing_ok=True)


def lakes_of(spec: TableSpec) -> tuple[MakeLake, MakeLake]:
    """Return the constructors for the table of *spec* and for its dead letters."""
    settings: dict[str, Any] = {
        "kind": spec.format,
        "columns": log_columns(spec),
        "partition_columns": spec.partition_by,
        "cluster_by": spec.cluster_by,
        "key": spec.key_columns,
        "tags": spec.wanted_tags,
    }
    rows = (
        functools.partial(KeyedLake, deletion_vectors=spec.deletion_vectors, **settings)
        if spec.key_columns
        else functools.partial(TypedLake, **settings)
    )
    dead = functools.partial(
        TypedLake,
        kind=DEAD_KIND,
        columns=LogColumns(),
        partition_columns=(DATE_COLUMN,),
        tags=spec.wanted_tags,
    )
    return rows, dead
