"""The key index on Spark: the tasks that read the log hash and number the keys, and one task writes each index file.

A file is full before the next one begins, so a key's number determines its file, and a file depends only on the last
key of the file before. There are two passes: the first counts the keys of each range, the second sends the keys.
"""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from reput.store.disk.files import Files
from reput.store.disk.sealed_file import seal
from reput.store.index.index_builder import IndexCursor, IndexState, next_name
from reput.store.index.index_keys import KeyHashes
from reput.store.index.index_layout import IndexHeader, index_paths
from reput.store.index.index_mapping import IndexMapping, index_file_size
from reput.store.record.layout import TRANSACTION_ROLLBACK_TYPE
from reput_hooks import Cursor, DispatchColumns
from reput_plugins.spark_export.engine.log_requests import read_requests
from reput_plugins.spark_export.engine.ranges import Batches, errors_of, range_frame, ranges_in
from reput_plugins.spark_export.engine.rebuild_plan import Built, RebuildPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["build_index"]

COUNT_SCHEMA = pa.schema(
    [
        ("begin", pa.int64()),
        ("key_count", pa.int64()),
        ("record_count", pa.int64()),
        ("last_record", pa.int64()),
        ("last_key_record", pa.int64()),
        ("store_timestamp", pa.int64()),
    ]
)
COUNT_COLUMNS = ", ".join(f"{name} bigint" for name in COUNT_SCHEMA.names)
KEY_SCHEMA = pa.schema(
    [
        ("file", pa.int32()),
        ("number", pa.int64()),
        ("key_hash", pa.int64()),
        ("commit_log_offset", pa.int64()),
        ("store_timestamp", pa.int64()),
    ]
)
KEY_COLUMNS = "file int, number bigint, key_hash bigint, commit_log_offset bigint, store_timestamp bigint"
RESULT_SCHEMA = pa.schema([("file", pa.int32()), ("header", pa.binary())])

Array = np.ndarray[Any, Any]


def build_index(session: SparkSession, plan: RebuildPlan, end: Cursor) -> Built:
    """Build every file below ``index/`` of the target."""
    directory = Path(plan.target) / "index"
    Files().make_directory(directory)
    capacity = plan.settings.max_index_num - 1
    counts = count_keys(session, plan)
    record_count = sum(count["record_count"] for count in counts)
    key_count = sum(count["key_count"] for count in counts)
    last_record = max((count["last_record"] for count in counts), default=-1)
    last_key_record = max((count["last_key_record"] for count in counts), default=-1)
    timestamp = max((count["store_timestamp"] for count in counts if count["last_record"] == last_record), default=0)
    names = file_names(directory, file_count(key_count, capacity, record_count, last_record > last_key_record))
    headers: dict[int, IndexHeader] = {}
    if key_count:
        headers = write_files(session, plan, numbers_of(counts), names, capacity)
    # The record after the one that filled a file starts the next file, whether or not it has keys.
    for number in range(-(-key_count // capacity), len(names)):
        headers[number] = empty_file(plan, names[number], headers.get(number - 1))
    files = Files()
    for path in (directory, directory.parent):
        files.force_directory(path)
    state = IndexState(names, headers[len(names) - 1] if names else IndexHeader())
    cursor = msgspec.structs.replace(end, store_timestamp=timestamp)
    return Built(seal(IndexCursor(cursor, state)), record_count, [])


def file_count(key_count: int, capacity: int, record_count: int, record_follows: bool) -> int:
    """Return how many files the index has; *record_follows*: a record follows the one with the last key."""
    if not record_count:
        return 0
    return max(-(-key_count // capacity) + (key_count % capacity == 0 and record_follows), 1)


def file_names(directory: Path, count: int) -> list[str]:
    """Return names for new files, which sort after the existing ones."""
    names: list[str] = []
    last = max((path.name for path in index_paths(directory)), default="")
    for _ in range(count):
        last = next_name(last, time.time_ns() // 1_000_000)
        names.append(last)
    return names


def numbers_of(counts: list[dict[str, int]]) -> dict[int, int]:
    """Return the number of each range's first key, by the range's begin."""
    numbers = {}
    at = 0
    for count in sorted(counts, key=lambda count: count["begin"]):
        numbers[count["begin"]] = at
        at += count["key_count"]
    return numbers


def count_keys(session: SparkSession, plan: RebuildPlan) -> list[dict[str, int]]:
    """Return the counts of each range, as rows of `COUNT_SCHEMA`."""
    work = functools.partial(count_keys_of_ranges, plan)
    frame = range_frame(session, plan.store, plan.begin, plan.until, work, COUNT_COLUMNS, split_bytes=plan.split_bytes)
    with errors_of("index"):
        found: list[dict[str, int]] = frame.toArrow().to_pylist()
    return found


def count_keys_of_ranges(plan: RebuildPlan, batches: Batches) -> Batches:
    """Count the keys of one task's ranges. Runs in a worker."""
    hashes = KeyHashes()
    for begin, until in ranges_in(batches):
        key_count = record_count = 0
        last_record = last_key_record = -1
        timestamp = 0
        for rows, columns in read_requests(plan, begin, until):
            offsets = keys_of(plan, hashes, rows, columns)[1]
            key_count += len(offsets)
            record_count += len(rows)
            last_record, timestamp = int(rows["commit_log_offset"][-1]), int(rows["store_timestamp"][-1])
            if len(offsets):
                last_key_record = int(offsets[-1])
        row = [begin, key_count, record_count, last_record, last_key_record, timestamp]
        yield pa.record_batch([[value] for value in row], schema=COUNT_SCHEMA)


def keys_of(plan: RebuildPlan, hashes: KeyHashes, rows: Array, columns: DispatchColumns) -> tuple[Array, Array, Array]:
    """Return hash, commit-log offset and store time of each key, as the dispatcher finds them."""
    row, found, _ = hashes.find(rows, columns.queues, columns.texts, with_tags=plan.settings.index_tags)
    kept = (rows["sys_flag"][row] & TRANSACTION_ROLLBACK_TYPE) != TRANSACTION_ROLLBACK_TYPE
    row, found = row[kept], found[kept]
    return found, rows["commit_log_offset"][row].astype(np.int64), rows["store_timestamp"][row].astype(np.int64)


def write_files(
    session: SparkSession, plan: RebuildPlan, numbers: dict[int, int], names: list[str], capacity: int
) -> dict[int, IndexHeader]:
    """Write every file that has keys; return their headers by number."""
    work = functools.partial(keys_of_ranges, plan, numbers, capacity)
    keys = range_frame(session, plan.store, plan.begin, plan.until, work, KEY_COLUMNS, split_bytes=plan.split_bytes)
    with errors_of("index"):
        before: dict[int, tuple[int, int]] = {}
        if len(names) > 1:
            ends = keys.where(f"(number + 1) % {capacity} = 0").select("file", "commit_log_offset", "store_timestamp")
            before = {row["file"] + 1: (row["commit_log_offset"], row["store_timestamp"]) for row in ends.collect()}
        built = (
            keys.repartition(len(names), "file")
            .sortWithinPartitions("file", "number")
            .mapInArrow(functools.partial(write_keys, plan, names, before), "file int, header binary")
            .toArrow()
        )
    return {row["file"]: msgspec.msgpack.decode(row["header"], type=IndexHeader) for row in built.to_pylist()}


def keys_of_ranges(plan: RebuildPlan, numbers: dict[int, int], capacity: int, batches: Batches) -> Batches:
    """Yield the keys of one task's ranges, with their numbers. Runs in a worker."""
    hashes = KeyHashes()
    for begin, until in ranges_in(batches):
        first = numbers[begin]
        for rows, columns in read_requests(plan, begin, until):
            found, offsets, timestamps = keys_of(plan, hashes, rows, columns)
            number = np.arange(first, first + len(found), dtype=np.int64)
            first += len(found)
            file = (number // capacity).astype(np.int32)
            yield pa.record_batch([pa.array(a) for a in (file, number, found, offsets, timestamps)], schema=KEY_SCHEMA)


def write_keys(plan: RebuildPlan, names: list[str], before: dict[int, tuple[int, int]], batches: Batches) -> Batches:
    """Write the files of one task, and force them to disk. Runs in a worker."""
    file: IndexMapping | None = None
    at = -1
    for batch in batches:
        columns = {name: batch[name].to_numpy() for name in KEY_SCHEMA.names}
        numbers = columns["file"]
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for begin, end in itertools.pairwise(bounds):
            if begin == end:
                continue
            if int(numbers[begin]) != at:
                if file is not None:
                    yield finished(at, file)
                at = int(numbers[begin])
                file = new_file(plan, names[at])
                if at in before:
                    offset, timestamp = before[at]
                    file.begin_behind(IndexHeader(end_offset=offset, end_timestamp=timestamp))
            assert file is not None
            file.reserve(end - begin)
            file.put_columns(
                *(columns[name][begin:end] for name in ("key_hash", "commit_log_offset", "store_timestamp"))
            )
    if file is not None:
        yield finished(at, file)


def new_file(plan: RebuildPlan, name: str) -> IndexMapping:
    """Make one file of the index. It replaces the file of a failed task attempt."""
    settings, files = plan.settings, Files()
    path = Path(plan.target) / "index" / name
    if path.exists():
        files.remove(path)
    files.create(path, index_file_size(settings.max_hash_slot_num, settings.max_index_num))
    return IndexMapping(path, settings.max_hash_slot_num, settings.max_index_num, files)


def finished(number: int, file: IndexMapping) -> pa.RecordBatch:
    """Force a file to disk and return its header as a row."""
    file.force()
    header = msgspec.msgpack.encode(file.header)
    file.close()
    return pa.record_batch([[number], [header]], schema=RESULT_SCHEMA)


def empty_file(plan: RebuildPlan, name: str, before: IndexHeader | None) -> IndexHeader:
    """Make the file without keys that follows a full one, and return its header."""
    file = new_file(plan, name)
    if before is not None:
        file.begin_behind(before)
    file.force()
    file.close()
    return file.header
