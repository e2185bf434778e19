"""LakeSink: where Spark hands over the descriptors of ranges, and its workers write the files.

No message passes through the JVM. A row of the source is a range of the log; the worker that gets it decodes the range
and writes Parquet files; what goes back to the driver is the names of the files, for one transaction.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from reput.errors import DispatcherError
from reput.store.epochs import read_epochs
from reput.store.identity import read_store_id
from reput.table import DamagedRange, TableOptions
from reput.table.advice_notes import advice_noted
from reput_plugins.spark_export.lake import Lake, lake_errors
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.parquet_files import WrittenFile, lake_schema, write_range

__all__ = ["PLAN_OPTION", "LakeSink", "SinkPlan"]

# Spark shows no option with this word in its name: the settings of an object store may hold keys.
PLAN_OPTION = "secretPlan"


class SinkPlan(msgspec.Struct, frozen=True):
    """What is exported, and into which lake. It reaches the workers as the one option of the sink.

    *run* is in the names of the files that are written for it.
    """

    store: str
    lake: LakeLocation
    export_name: str
    table: TableOptions
    run: str = ""


class WrittenRange(WriterCommitMessage):
    """The files of one task: *ranges* are the (begin, until) it wrote, *damage* what it left out of them."""

    def __init__(
        self, ranges: list[tuple[int, int]], files: list[WrittenFile], damage: Sequence[DamagedRange] = ()
    ) -> None:
        self.ranges = ranges
        self.files = files
        self.damage = damage


class LakeSink(DataSource):
    """``df.writeStream.format("reput_lake")`` of a frame of ranges."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.plan = msgspec.json.decode(options[PLAN_OPTION], type=SinkPlan)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "reput_lake"

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeStreamWriter:
        """Return the writer of a stream. Nothing is ever overwritten: the lake only grows."""
        return LakeStreamWriter(self.plan)


class LakeStreamWriter(DataSourceStreamArrowWriter):
    """Writes in the workers, commits beside the driver.

    Spark may commit a micro-batch again after a restart; it is not added twice.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRange:
        """Write the ranges of one task."""
        return write_ranges(self.plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Add the files of all tasks in one transaction."""
        commit_ranges(self.plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the files of the tasks that came to an end."""
        remove_files(self.plan, messages)


@advice_noted()
def write_ranges(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> WrittenRange:
    """Write each range that *batches* name."""
    ranges = [(row["begin"], row["until"]) for batch in batches for row in batch.to_pylist()]
    files: list[WrittenFile] = []
    damage: list[DamagedRange] = []
    with lake_errors(plan.lake.address):
        for begin, until in ranges:
            written, left_out = write_range(plan.lake, plan.store, plan.table, begin, until, plan.run)
            files += written
            damage += left_out
    # What a worker process holds is held for as long as Spark keeps the process.
    pa.default_memory_pool().release_unused()
    return WrittenRange(ranges, files, damage)


def write_chosen(
    plan: SinkPlan, ranges: Sequence[tuple[int, int]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the ranges whose numbers *batches* hold; yield what was written. Runs in a worker of a batch export."""
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    chosen = [ranges[number] for number in numbers]
    rows = pa.record_batch({"begin": [begin for begin, _ in chosen], "until": [until for _, until in chosen]})
    yield pa.record_batch([[pickle.dumps(write_ranges(plan, iter([rows])))]], names=["written"])


@advice_noted()
def commit_ranges(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Add what *messages* tell of in one transaction, unless the lake has it.

    Raises:
        DispatcherError: the ranges do not lie one behind the other, or the lake refuses.
    """
    written = [message for message in messages if isinstance(message, WrittenRange)]
    ranges = sorted(found for message in written for found in message.ranges)
    if not ranges:
        return
    for (_, end), (begin, _) in itertools.pairwise(ranges):
        if end != begin:
            raise DispatcherError(f"a task did not write its range: written_until={end} next_begins={begin}")
    store = Path(plan.store)
    lake = Lake(plan.lake, plan.export_name, read_epochs(store, read_store_id(store)))
    files = [file for message in written for file in message.files]
    damage = sorted((found for message in written for found in message.damage), key=lambda found: found.begin)
    schema, begin, until = lake_schema(plan.table.row_format), ranges[0][0], ranges[-1][1]
    try:
        with lake_errors(plan.lake.address):
            added = lake.commit(
                schema, begin, until, files, damage=damage, gap_allowed=not plan.table.fail_on_data_loss
            )
    except BaseException:
        remove_files(plan, messages)
        raise
    if added is None:
        remove_files(plan, messages)


def remove_run(plan: SinkPlan) -> None:
    """Remove the files of a run of which nothing was committed, where they can be found by their names."""
    if plan.lake.folder is not None:
        for path in plan.lake.folder.glob(f"*/*/*-{plan.run}-*.parquet"):
            path.unlink(missing_ok=True)


def remove_files(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove files that no transaction names.

    A commit that failed may have failed behind its transaction, so the table is asked. Where it does not tell, the
    files stay; nobody reads them, and maintenance removes them when they are old.
    """
    written = [file.path for message in messages if isinstance(message, WrittenRange) for file in message.files]
    try:
        named = plan.lake.file_names(plan.lake.table())
        plan.lake.remove([path for path in written if path not in named])
    except (OSError, DispatcherError):
        return
