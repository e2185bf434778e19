"""Merges into a typed table with a key, beside appends of as many rows: in time, in processor time and in memory.

    python -m benchmarks.keyed_tables FOLDER [--rows 10000000] [--merges 5] [--way vectors|files] [--keys random|last]

The rows have ten columns, one of them the columns of the log, and lie in ten files. Each merge replaces 1 % of them,
and each append adds as many rows; both end with a durable transaction. They take turns in one process. FOLDER gets a
table of this number of rows, which later runs use.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from reput.cli.terminal.output import write_line
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.delta_table import STATISTICS_SETTING
from reput_plugins.spark_export.lakes.lake_table import LakeTable, ParquetFile, TransactionData
from reput_plugins.spark_export.lakes.opening import create_table, open_table
from reput_plugins.spark_export.parquet_files import PartitionWriters, layout_like
from reput_plugins.spark_export.typed.keyed_rows import DELETED

FILES = 10
PART = 100
STATISTICS = [f"_log.{name}" for name in ("queueId", "queueOffset", "commitLogOffset", "storeTimestamp")]
START_MS = 1_780_000_000_000
VECTORS, RANDOM = "vectors", "random"


def rows_of(ids: np.ndarray[tuple[int], np.dtype[np.int64]], first: int) -> pa.Table:
    """Return a row of each id; *first* is the number of the first message."""
    chance, count = np.random.default_rng(first), len(ids)
    names = pa.array([f"customer {number}" for number in range(100_000)])
    regions = pa.array([f"r{number}" for number in range(20)])
    notes = pa.array([f"note {number} {number * number}" for number in range(1000)])
    numbers = np.arange(first, first + count)
    times = pa.array(START_MS + numbers).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    log = {
        "queueId": np.zeros(count, np.int32),
        "queueOffset": numbers,
        "commitLogOffset": numbers * 300,
        "storeSize": np.full(count, 300, np.int32),
        "bodyCRC": chance.integers(0, 1 << 31, count, dtype=np.int32),
        "storeTimestamp": times,
        "store": pa.repeat(pa.scalar("1a" * 16), count),
    }
    return pa.table(
        {
            "id": ids,
            "name": names.take(pa.array(chance.integers(0, len(names), count))),
            "region": regions.take(pa.array(chance.integers(0, len(regions), count))),
            "amount": chance.random(count),
            "count": chance.integers(0, 1000, count),
            "weight": chance.integers(0, 1 << 40, count),
            "rate": chance.random(count),
            "note": notes.take(pa.array(chance.integers(0, len(notes), count))),
            "paid": chance.integers(0, 2, count).astype(bool),
            "_log": pa.StructArray.from_arrays([pa.array(values) for values in log.values()], list(log)),
        }
    )


def write(location: LakeLocation, rows: pa.Table) -> list[ParquetFile]:
    """Write rows as an export's worker does."""
    name = f"{0:020d}-{0:020d}-{uuid.uuid4().hex[:8]}.parquet"
    writers = PartitionWriters(location, name, layout_like(rows.schema, (), STATISTICS, {}))
    writers.add_table(rows, None)
    return writers.finish()


def make_table(folder: Path, count: int) -> None:
    """Make a table with *count* rows, unless there is one."""
    if folder.exists():
        return
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    location = LakeLocation.of(draft)
    settings = {STATISTICS_SETTING: ",".join(STATISTICS)}
    table = create_table(location, rows_of(np.arange(1), 0).schema, [], settings)
    for number in range(FILES):
        ids = np.arange(number * count // FILES, (number + 1) * count // FILES)
        rows = rows_of(ids, int(ids[0]))
        table.append(write(location, rows), rows.schema, TransactionData({"end": number}))
        table.update()
    draft.rename(folder)


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Print what the block took."""
    began, worked = time.perf_counter(), time.process_time()
    yield
    took, work = time.perf_counter() - began, time.process_time() - worked
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    write_line(f"{what:8} {took:7.2f} s  {work:7.2f} s of a processor  {memory} MiB at most")


def append(table: LakeTable, location: LakeLocation, rows: pa.Table) -> None:
    """Add rows as an export into a table without a key does."""
    table.append(write(location, rows), rows.schema, TransactionData({"other": 1}))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description="Merges into a table with a key.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--merges", type=int, default=5)
    parser.add_argument("--way", choices=[VECTORS, "files"], default=VECTORS)
    parser.add_argument("--keys", choices=[RANDOM, "last"], default=RANDOM)
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    made = asked.folder / f"made-{asked.rows}"
    make_table(made, asked.rows)
    merged, appended = asked.folder / "merged", asked.folder / "appended"
    for folder in (merged, appended):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder, copy_function=os.link)
    locations = [LakeLocation.of(folder) for folder in (merged, appended)]
    if asked.way == VECTORS:
        open_table(locations[0]).enable_deletion_vectors()
    count, chance = asked.rows // PART, np.random.default_rng(5)
    flags = pa.array(np.zeros(count, bool))
    for number in range(asked.merges):
        newest = asked.rows + number * count
        ids = (
            chance.choice(asked.rows, count, replace=False)
            if asked.keys == RANDOM
            else asked.rows - 1 - np.arange(count)
        )
        rows = rows_of(ids, newest)
        with measured("append"):
            append(open_table(locations[1]), locations[1], rows)
        with measured("merge"):
            open_table(locations[0]).merge_rows(
                rows.append_column(DELETED, flags),
                ["id"],
                {"_log.store": "1a" * 16},
                DELETED,
                STATISTICS,
                TransactionData({"end": newest}),
            )
    found = open_table(locations[0]).dataset(["id"]).to_table()["id"]
    assert len(found) == len(np.unique(found.to_numpy())) == asked.rows, "the table has another number of keys"


if __name__ == "__main__":
    main()
