"""Consume queues on Spark: tasks that read the log make the units, and each queue is written by one task.

A queue has one writer, which gets its units in log order. So the rules of `ConsumeQueueBuilder` (duplicate units, gaps,
queues that begin after their first place) apply as if one dispatcher wrote everything.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.store.disk.sealed_file import seal
from reput.store.ext.consume_queue_ext_addresses import ExtAddresses
from reput.store.log.log_scan import ROW_DTYPE
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.consume_queue_builder import (
    LEFT_OUT,
    ConsumeQueueBuilder,
    ConsumeQueueState,
    QueueTable,
    shown_queue_file_size,
)
from reput.store.record.multi_dispatch import further_queues
from reput_hooks import Cursor, DispatchBatch, DispatchColumns
from reput_plugins.spark_export.engine.log_requests import read_requests
from reput_plugins.spark_export.engine.ranges import Batches, errors_of, parallelism, range_frame, ranges_in
from reput_plugins.spark_export.engine.rebuild_plan import Built, RebuildPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "EXT_FOLDER",
    "TASKS_OF_CORE",
    "UNIT_COLUMNS",
    "UNIT_SCHEMA",
    "as_requests",
    "build_queues",
    "counted",
    "ext_view",
    "have_units",
    "remove_leftovers",
    "unit_arrays",
]

EXT_FOLDER = "consumequeue_ext"
TASKS_OF_CORE = 2
# *place* orders the units of one record: its own queue, then those of multi-dispatch, which have no store time because
# they have no ext unit. A row without a topic is not a unit but a count: a range has *record_size* records, and the
# last one begins at *commit_log_offset*.
UNIT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("commit_log_offset", pa.int64()),
        ("place", pa.int32()),
        ("record_size", pa.int32()),
        ("tags_code", pa.int64()),
        ("queue_offset", pa.int64()),
        ("store_timestamp", pa.int64()),
    ]
)
UNIT_COLUMNS = (
    "topic string, queue_id int, commit_log_offset bigint, place int, record_size int, tags_code bigint, "
    "queue_offset bigint, store_timestamp bigint"
)
NO_STORE_TIME = -1
RESULT_SCHEMA = pa.schema([("result", pa.binary())])

Array = np.ndarray[Any, Any]


class QueuesOfTask(msgspec.Struct, frozen=True):
    """The output of one task: the end of each queue, and the rejected records.

    *records* and *last* sum up the count rows that the task received: the number of records, and where the last one
    begins, with its store time.
    """

    table: QueueTable
    refused: list[tuple[int, str]]
    records: int
    last: tuple[int, int]


def build_queues(session: SparkSession, plan: RebuildPlan, end: Cursor) -> Built:
    """Build every queue below ``consumequeue/`` of the target."""
    units = range_frame(
        session,
        plan.store,
        plan.begin,
        plan.until,
        functools.partial(units_of_ranges, plan),
        UNIT_COLUMNS,
        split_bytes=plan.split_bytes,
    )
    queues = (
        units.repartition(TASKS_OF_CORE * parallelism(session), "topic", "queue_id")
        .sortWithinPartitions("topic", "queue_id", "commit_log_offset", "place")
        .mapInArrow(functools.partial(write_queues, plan), "result binary")
    )
    with errors_of("consume_queue"):
        found = [msgspec.msgpack.decode(row, type=QueuesOfTask) for row in queues.toArrow()["result"].to_pylist()]
    table: QueueTable = {}
    for task in found:
        for topic, ends in task.table.items():
            table.setdefault(topic, {}).update(ends)
    _, store_timestamp = max(task.last for task in found)
    cursor = msgspec.structs.replace(end, store_timestamp=store_timestamp)
    refused = sorted(refusal for task in found for refusal in task.refused)
    generation = ext_view(plan) / "generation"
    ext_generation = generation.read_text() if generation.exists() else None
    state = ConsumeQueueState(cursor, table, ext_generation)
    return Built(seal(state), sum(task.records for task in found), refused)


def units_of_ranges(plan: RebuildPlan, batches: Batches) -> Batches:
    """Yield the units of one task's ranges. Runs in a worker."""
    for begin, until in ranges_in(batches):
        count, last, timestamp = 0, begin, 0
        for rows, columns in read_requests(plan, begin, until):
            count += len(rows)
            last, timestamp = int(rows["commit_log_offset"][-1]), int(rows["store_timestamp"][-1])
            yield units_of(plan, rows, columns)
        yield pa.record_batch([[None], [0], [last], [0], [count], [0], [0], [timestamp]], schema=UNIT_SCHEMA)


def units_of(plan: RebuildPlan, rows: Array, columns: DispatchColumns) -> pa.RecordBatch:
    """Return the units of some records, including those of multi-dispatch."""
    batch = pa.record_batch(unit_arrays(rows[have_units(plan, rows, columns)], columns), schema=UNIT_SCHEMA)
    further = [*further_units(plan, rows, columns)]
    if not further:
        return batch
    more = pa.RecordBatch.from_pylist(further, UNIT_SCHEMA)
    return pa.Table.from_batches([batch, more]).combine_chunks().to_batches()[0]


def have_units(plan: RebuildPlan, rows: Array, columns: DispatchColumns) -> Array:
    """Return for each record whether it has a unit in its own queue."""
    # Topics that were deleted later have no queues, even if the log still has their records.
    gone = np.array(
        [max(plan.deletions.get(name[0], 0), plan.recreated_at.get(name, 0)) for name in columns.queues], np.int64
    )
    found: Array = ((rows["sys_flag"] & LEFT_OUT) == 0) & (rows["commit_log_offset"] >= gone[rows["queue_index"]])
    return found


def unit_arrays(own: Array, columns: DispatchColumns) -> list[pa.Array]:
    """Return the columns of `UNIT_SCHEMA` for the units of records in their own queues."""
    topics = pa.array([topic for topic, _ in columns.queues], pa.string())
    queue_ids = np.array([queue_id for _, queue_id in columns.queues], np.int32)
    return [
        topics.take(pa.array(own["queue_index"])),
        pa.array(queue_ids[own["queue_index"]]),
        pa.array(own["commit_log_offset"].astype(np.int64)),
        pa.array(np.zeros(len(own), np.int32)),
        pa.array(own["record_size"].astype(np.int32)),
        *(pa.array(own[name].astype(np.int64)) for name in ("tags_code", "queue_offset", "store_timestamp")),
    ]


def further_units(plan: RebuildPlan, rows: Array, columns: DispatchColumns) -> Iterator[dict[str, Any]]:
    """Yield the units of records with multi-dispatch in their further queues."""
    begins = np.cumsum(rows["texts_size"]) - rows["texts_size"]
    chosen = (rows["multi_dispatch_size"] >= 0) & ((rows["sys_flag"] & LEFT_OUT) == 0)
    for number in np.flatnonzero(chosen).tolist():
        row = rows[number]
        at = int(begins[number]) + max(int(row["uniq_key_size"]), 0) + max(int(row["keys_size"]), 0)
        text = columns.texts[at : at + int(row["multi_dispatch_size"])]
        queues = further_queues(columns.queues[int(row["queue_index"])], text)
        for place, ((topic, queue_id), queue_offset) in enumerate(queues, 1):
            if row["commit_log_offset"] >= plan.deletions.get(topic, 0):
                yield {
                    "topic": topic,
                    "queue_id": queue_id,
                    "commit_log_offset": int(row["commit_log_offset"]),
                    "place": place,
                    "record_size": int(row["record_size"]),
                    "tags_code": int(row["tags_code"]),
                    "queue_offset": queue_offset,
                    "store_timestamp": NO_STORE_TIME,
                }


def write_queues(plan: RebuildPlan, batches: Batches) -> Batches:
    """Write one task's queues and force them to disk. Runs in a worker."""
    refused: list[tuple[int, str]] = []
    ext_directory = Path(plan.target) / EXT_FOLDER
    ext_file_size = shown_queue_file_size(ext_directory) or plan.settings.mapped_file_size_consume_queue_ext
    addresses = ExtAddresses(ext_view(plan) / "addresses", ext_directory, ext_file_size)
    builder = ConsumeQueueBuilder(
        Path(plan.target) / "consumequeue",
        plan.settings.mapped_file_size_consume_queue,
        has_batch_queue=BatchTopics(Path(plan.store)).has,
        refuse=lambda offset, reason: refused.append((offset, reason)),
        # The addresses of the target's ext files, if it has any.
        addresses=addresses,
    )
    nowhere = Cursor("", 0, 0, 0)
    records, last = 0, (-1, 0)
    try:
        for batch in batches:
            count, range_last = counted(batch)
            records, last = records + count, max(last, range_last)
            requests = as_requests(batch.filter(pc.is_valid(batch["topic"])))
            remove_leftovers(builder, builder.directory, requests.queues)
            builder.put(DispatchBatch(0, nowhere, [requests]))
        builder.force()
    finally:
        builder.close()
        addresses.close()
    result = QueuesOfTask(builder.table, refused, records, last)
    yield pa.record_batch([[msgspec.msgpack.encode(result)]], schema=RESULT_SCHEMA)


def counted(batch: pa.RecordBatch) -> tuple[int, tuple[int, int]]:
    """Return the sum of the count rows (no topic), and (commit-log offset, store time) of the last record."""
    counts = batch.filter(pc.is_null(batch["topic"])).to_pylist()
    last = max(((row["commit_log_offset"], row["store_timestamp"]) for row in counts), default=(-1, 0))
    return sum(row["record_size"] for row in counts), last


def remove_leftovers(builder: ConsumeQueueBuilder, folder: Path, queues: list[tuple[str, int]]) -> None:
    """Remove files of failed task attempts below *folder*, for the queues that *builder* is about to begin."""
    for topic, queue_id in queues:
        directory = folder / topic / str(queue_id)
        if (topic, queue_id) not in builder.queues and builder.refusal(topic) is None and directory.exists():
            shutil.rmtree(directory)


def as_requests(batch: pa.RecordBatch) -> DispatchColumns:
    """Return units as requests for a builder."""
    rows = np.zeros(batch.num_rows, ROW_DTYPE)
    for name in ("commit_log_offset", "record_size", "tags_code", "queue_offset", "store_timestamp"):
        rows[name] = batch[name].to_numpy()
    for name in ("uniq_key_size", "keys_size", "multi_dispatch_size", "properties_size"):
        rows[name] = -1
    queues: dict[tuple[str, int], int] = {}
    pairs = zip(batch["topic"].to_pylist(), batch["queue_id"].to_pylist(), strict=True)
    rows["queue_index"] = [queues.setdefault(pair, len(queues)) for pair in pairs]
    return DispatchColumns(list(queues), rows.tobytes(), b"")


def ext_view(plan: RebuildPlan) -> Path:
    """Return the folder of the ext files' view in the target."""
    return Path(plan.target) / "reput" / "views" / "consume_queue_ext"
