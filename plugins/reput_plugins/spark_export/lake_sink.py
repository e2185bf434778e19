"""The files that Spark's workers write into a lake, and the transaction in which the driver commits them.

No message passes through the JVM. A worker gets ranges of the log, decodes them and writes Parquet files. It returns
the file names to the driver, which commits them in one transaction.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from reput.errors import DispatcherError
from reput.store.log.segments import Segments
from reput.store.state.identity import read_store_id
from reput.table import BadRange, TableOptions
from reput.table.advice_notes import advice_noted
from reput.table.worker_memory import end_task
from reput_plugins.spark_export.lake_continuation import lake_of_store
from reput_plugins.spark_export.lake_location import DELTA_FORMAT, LakeLocation, lake_errors
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.parquet_files import lake_schema, write_range

__all__ = [
    "Batches",
    "SinkPlan",
    "WrittenRange",
    "commit_ranges",
    "contiguous",
    "remove_run",
    "remove_unnamed",
    "write_chosen",
    "write_ranges",
]


Batches = Iterator[pa.RecordBatch]


class SinkPlan(msgspec.Struct, frozen=True):
    """The task of an export, and its lake. Spark sends it to the workers with their function.

    *run* is part of the names of the run's files. *store_id* is the store's id in the lake, *store_name* its name in
    the rows; None: the store's own id. *file_schema*: the columns of the files; None: those of a Delta table.
    """

    store: str
    lake: LakeLocation
    export_name: str
    table: TableOptions
    run: str = ""
    store_id: str | None = None
    store_name: str | None = None
    file_schema: pa.Schema | None = None

    def of_table(self) -> SinkPlan:
        """Return the plan with the columns that the table's files have."""
        if self.lake.table_format == DELTA_FORMAT:
            return self
        columns = open_table(self.lake).file_schema(lake_schema(self.table.row_format))
        return msgspec.structs.replace(self, file_schema=columns)

    def write_chosen(self, ranges: Sequence[tuple[int, int]], batches: Batches) -> Batches:
        """Write the ranges whose numbers are in *batches*; yield the result. Runs in a worker."""
        return write_chosen(self, ranges, batches)

    def commit_ranges(self, written: Sequence[WrittenRange]) -> None:
        """Commit the files that the workers wrote."""
        commit_ranges(self, written)

    def remove_run(self) -> None:
        """Remove the files of an uncommitted run."""
        remove_run(self)


class WrittenRange:
    """The files of one task: *ranges* lists the written ranges (begin, until), *damage* the skipped ones."""

    def __init__(
        self, ranges: list[tuple[int, int]], files: list[ParquetFile], damage: Sequence[BadRange] = ()
    ) -> None:
        self.ranges = ranges
        self.files = files
        self.damage = damage


@advice_noted()
def write_ranges(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> WrittenRange:
    """Write each range listed in *batches*."""
    # Readers of Iceberg would refuse files without the columns' ids.
    assert plan.file_schema is not None or plan.lake.table_format == DELTA_FORMAT
    ranges = [(row["begin"], row["until"]) for batch in batches for row in batch.to_pylist()]
    files: list[ParquetFile] = []
    damage: list[BadRange] = []
    store_name = plan.store_name or plan.store_id or read_store_id(Path(plan.store))
    with lake_errors(plan.lake.address):
        for begin, until in ranges:
            written, left_out = write_range(
                plan.lake, plan.store, store_name, plan.table, begin, until, plan.run, plan.file_schema
            )
            files += written
            damage += left_out
    end_task()
    return WrittenRange(ranges, files, damage)


def write_chosen(
    plan: SinkPlan, ranges: Sequence[tuple[int, int]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the ranges whose numbers are in *batches*; yield the result. Runs in a worker of a batch export."""
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    chosen = [ranges[number] for number in numbers]
    rows = pa.record_batch({"begin": [begin for begin, _ in chosen], "until": [until for _, until in chosen]})
    yield pa.record_batch([[pickle.dumps(write_ranges(plan, iter([rows])))]], names=["written"])


@advice_noted()
def commit_ranges(plan: SinkPlan, written: Sequence[WrittenRange]) -> None:
    """Commit the files of *written* in one transaction, unless the lake already has their records.

    Raises:
        DispatcherError: the ranges are not contiguous, or the lake refuses the commit.
    """
    bounds = contiguous([found for task in written for found in task.ranges])
    if bounds is None:
        return
    store = Path(plan.store)
    store_id = plan.store_id or read_store_id(store)
    lake = lake_of_store(plan.lake, plan.export_name, store, store_id, plan.store_name)
    files = [file for task in written for file in task.files]
    damage = sorted((found for task in written for found in task.damage), key=lambda found: found.begin)
    schema, (begin, until) = lake_schema(plan.table.row_format), bounds
    try:
        with lake_errors(plan.lake.address):
            added = lake.commit(
                schema,
                begin,
                until,
                files,
                damage=damage,
                gap_allowed=not plan.table.fail_on_data_loss,
                segments=Segments(store / "commitlog"),
            )
    except BaseException:
        if not plan.lake.may_commit_late:
            remove_files(plan, written)
        raise
    if added is None:
        remove_files(plan, written)


def contiguous(ranges: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return where the ranges of all tasks begin and end; None if there are no ranges.

    Raises:
        DispatcherError: there is a gap between two, because a task did not write its range.
    """
    ordered = sorted(ranges)
    for (_, end), (begin, _) in itertools.pairwise(ordered):
        if end != begin:
            raise DispatcherError(f"a task did not write its range: written_until={end} next_begins={begin}")
    return (ordered[0][0], ordered[-1][1]) if ordered else None


def remove_run(plan: SinkPlan) -> None:
    """Remove the files of an uncommitted run. Only a lake in a folder can be searched by file name."""
    if plan.lake.folder is not None:
        for path in plan.lake.folder.glob(f"*/*/*-{plan.run}-*.parquet"):
            path.unlink(missing_ok=True)


def remove_files(plan: SinkPlan, written: Sequence[WrittenRange]) -> None:
    """Remove files that no transaction names.

    A commit may fail after its transaction was written, so this checks the table. Files stay if the table cannot be
    read, and after a failed commit that may still be made. No reader sees them, and maintenance removes them when they
    are old.
    """
    remove_unnamed(plan.lake, [file.path for task in written for file in task.files])


def remove_unnamed(lake: LakeLocation, paths: Sequence[str]) -> None:
    """Remove those of *paths* that no transaction of *lake* names; none if the table cannot be read."""
    try:
        named = {file.path for file in open_table(lake).files()}
        lake.remove([path for path in paths if path not in named])
    except (OSError, DispatcherError):
        return
