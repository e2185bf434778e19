"""Ext files on Spark: tasks that read the log evaluate the filters, and tasks that own a queue write its units.

The driver reads the consumers' filters when it begins; a worker that finds other filters raises an error.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from reput.errors import StoreError
from reput.filter import BloomFilter
from reput.store.disk.sealed_file import seal
from reput.store.ext.consume_queue_ext_builder import ConsumeQueueExtBuilder, ExtCursor, ExtState
from reput.store.ext.consume_queue_ext_files import ExtEnd
from reput.store.ext.filters_in_use import FILTERS_IN_USE, FiltersInUse
from reput.store.ext.registered_filters import RegisteredFilters
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.consume_queue_builder import QueueTable
from reput_hooks import Cursor, replace_durably
from reput_plugins.spark_export.engine.log_requests import read_requests
from reput_plugins.spark_export.engine.queue_building import (
    EXT_FOLDER,
    RESULT_SCHEMA,
    TASKS_OF_CORE,
    UNIT_COLUMNS,
    UNIT_SCHEMA,
    as_requests,
    counted,
    ext_view,
    have_units,
    remove_leftovers,
    unit_arrays,
)
from reput_plugins.spark_export.engine.ranges import Batches, errors_of, parallelism, range_frame, ranges_in
from reput_plugins.spark_export.engine.rebuild_plan import Built, RebuildPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["build_ext"]

EXT_SCHEMA = UNIT_SCHEMA.append(pa.field("bit_map", pa.binary()))
EXT_COLUMNS = f"{UNIT_COLUMNS}, bit_map binary"


class ExtOfTask(msgspec.Struct, frozen=True):
    """Output of one task, as an `ExtState`; the number of records in its rows, and (offset, store time) of the last."""

    state: ExtState
    records: int
    last: tuple[int, int]


def build_ext(session: SparkSession, plan: RebuildPlan, end: Cursor) -> Built:
    """Build every file below ``consumequeue_ext/`` of the target, and the addresses of their units."""
    filters = read_filters(plan)
    digest = None if filters is None else filters.digest
    units = range_frame(
        session,
        plan.store,
        plan.begin,
        plan.until,
        functools.partial(units_of_ranges, plan, digest),
        EXT_COLUMNS,
        split_bytes=plan.split_bytes,
    )
    written = (
        units.repartition(TASKS_OF_CORE * parallelism(session), "topic", "queue_id")
        .sortWithinPartitions("topic", "queue_id", "commit_log_offset")
        .mapInArrow(functools.partial(write_ext, plan), "result binary")
    )
    with errors_of("consume_queue_ext"):
        found = [msgspec.msgpack.decode(row, type=ExtOfTask) for row in written.toArrow()["result"].to_pylist()]
    table: QueueTable = {}
    ends: dict[str, dict[int, ExtEnd]] = {}
    for task in found:
        for topic, queues in task.state.addresses.items():
            table.setdefault(topic, {}).update(queues)
        for topic, of_topic in task.state.ends.items():
            ends.setdefault(topic, {}).update(of_topic)
    records = sum(task.records for task in found)
    _, store_timestamp = max(task.last for task in found)
    folder = ext_view(plan)
    folder.mkdir(parents=True, exist_ok=True)
    replace_durably(folder / "generation", os.urandom(16).hex().encode())
    if digest is not None and records:
        # The filters were evaluated for every record, so their consumers may rely on all bits.
        replace_durably(folder / FILTERS_IN_USE, seal(FiltersInUse(digest, 0)))
    cursor = msgspec.structs.replace(end, store_timestamp=store_timestamp)
    return Built(seal(ExtCursor(cursor, ExtState(table, ends))), records, [])


def read_filters(plan: RebuildPlan) -> RegisteredFilters | None:
    """Return the filters that are registered now, None if the settings disable bit maps."""
    settings = plan.settings
    if not settings.enable_calc_filter_bit_map:
        return None
    bloom_filter = BloomFilter(settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter)
    filters = RegisteredFilters(Path(plan.store), bloom_filter, settings.filter_data_clean_time_span)
    filters.reload()
    return filters


def units_of_ranges(plan: RebuildPlan, digest: str | None, batches: Batches) -> Batches:
    """Yield the units of one task's ranges, with their bit maps. Runs in a worker.

    Raises:
        StoreError: the filters no longer match *digest*.
    """
    filters = None if digest is None else read_filters(plan)
    if filters is not None and filters.digest != digest:
        raise StoreError("consumers registered other filters meanwhile: file=consumerFilter.json", "Run it again.")
    for begin, until in ranges_in(batches):
        count, last, timestamp = 0, begin, 0
        for rows, columns in read_requests(plan, begin, until, needs_properties=filters is not None):
            count += len(rows)
            last, timestamp = int(rows["commit_log_offset"][-1]), int(rows["store_timestamp"][-1])
            chosen = have_units(plan, rows, columns)
            bits: list[bytes | None] = [None] * int(chosen.sum())
            if filters is not None:
                bits = [filters.bit_map(request) for request, has in zip(columns, chosen, strict=True) if has]
            arrays = [*unit_arrays(rows[chosen], columns), pa.array(bits, pa.binary())]
            yield pa.record_batch(arrays, schema=EXT_SCHEMA)
        yield pa.record_batch([[None], [0], [last], [0], [count], [0], [0], [timestamp], [None]], schema=EXT_SCHEMA)


def write_ext(plan: RebuildPlan, batches: Batches) -> Batches:
    """Write the ext files of one task's queues, and their addresses, and force them to disk. Runs in a worker."""
    builder = ConsumeQueueExtBuilder(
        Path(plan.target) / EXT_FOLDER,
        ext_view(plan) / "addresses",
        plan.settings.mapped_file_size_consume_queue_ext,
        has_batch_queue=BatchTopics(Path(plan.store)).has,
    )
    records, last = 0, (-1, 0)
    try:
        for batch in batches:
            count, range_last = counted(batch)
            records, last = records + count, max(last, range_last)
            units = batch.filter(pc.is_valid(batch["topic"]))
            requests = as_requests(units)
            for folder in (builder.directory, builder.addresses.directory):
                remove_leftovers(builder.addresses, folder, requests.queues)
            bit_maps: Iterator[bytes | None] = iter(units["bit_map"].to_pylist())
            # `put` calls this once for each request, in order.
            builder.put(requests, lambda request, bits=bit_maps: next(bits))  # type: ignore[misc]
        state = builder.force()
    finally:
        builder.close()
    result = ExtOfTask(state, records, last)
    yield pa.record_batch([[msgspec.msgpack.encode(result)]], schema=RESULT_SCHEMA)
