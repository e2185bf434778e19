"""``kill -9`` of the processes that write, commit and merge a lake: no row is missing, duplicated or unreadable."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from reput_plugins.spark_export import check_lake
from reput_plugins.spark_export.lakes.opening import open_table
from spark.exporting import export_log, export_typed, lake_of, merge
from spark.lakes import offsets_by_reader, offsets_in, rows_in
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.processes

SECONDS_MAX = 60
DAY_MS = 86_400_000
# Its children have the libraries loaded, and none of this process's threads.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["spark.exporting"])


def written_log(store: Path, count: int, topic_count: int) -> WrittenLog:
    """Return a log of two days."""
    log = WrittenLog(store, segment_size=1 << 16)
    for number in range(count):
        topic = (f"%RETRY%{number % topic_count}").encode()
        log.append(b"%d" % number * 9, topic=topic, store_timestamp=START_MS + 2 * DAY_MS * number // count)
    log.save()
    return log


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """Run *target* in a process, yield it once it has begun, and kill it."""
    begun = FORKS.Event()
    process = FORKS.Process(target=target, args=(*arguments, begun))
    process.start()
    try:
        assert begun.wait(SECONDS_MAX)
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def names_on_disk(lake: Path) -> set[str]:
    """Return the existing Parquet files, in the table or not."""
    return {str(path.relative_to(lake)) for path in lake.glob("topic=*/*/*.parquet")}


def wait_for_files(lake: Path, count: int) -> None:
    """Wait until there are *count* files, as precisely as possible."""
    end = time.monotonic() + SECONDS_MAX
    while len(names_on_disk(lake)) < count:
        assert time.monotonic() < end


@pytest.mark.parametrize(
    ("lake_format", "kills"), [("delta", 10), ("iceberg", 3), pytest.param("iceberg", 20, marks=pytest.mark.long)]
)
def test_an_exporter_that_is_killed_at_any_time_loses_and_repeats_nothing(tmp_path: Path, lake_format: str, kills: int):
    """Again and again, at different points of writing, committing or merging; then it runs to completion."""
    log = written_log(tmp_path / "store", 600, 3)
    store, lake = str(log.store), str(tmp_path / "lake")
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    kept = lake_of(store, lake, lake_format)
    times = random.Random(6)
    ends = [*log.offsets, log.end]
    for _ in range(kills):
        with running(export_log, store, lake, lake_format, 4096, True):
            time.sleep(times.uniform(0, 0.2))
        committed = kept.committed(open_table(kept.location)) or 0
        assert offsets_in(Path(lake)) == log.offsets[: ends.index(committed)]
    with running(export_log, store, lake, lake_format, 16384, True) as last:
        last.join(SECONDS_MAX)
        assert last.exitcode == 0
    found = offsets_by_reader(Path(lake))
    assert found == dict.fromkeys(found, log.offsets)
    if lake_format == "iceberg":
        # The check of a lake, and its watermarks, are those of Delta tables.
        return
    report = check_lake(store, lake)
    assert report.ok
    assert report.views["lake"].state == "equal"
    # A transaction that was killed before its watermark got it later, once.
    assert (report.lake.watermarks.rows, report.lake.watermarks.until) == (len(log.offsets), log.end)


@pytest.mark.parametrize("lake_format", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_an_exporter_of_typed_tables_that_is_killed_at_any_time_loses_and_repeats_nothing(
    tmp_path: Path, lake_format: str
):
    """Each message is once in its table or in its dead letters, of which one message in ten is."""
    log = WrittenLog(tmp_path / "store", segment_size=1 << 16)
    for number in range(600):
        body = b"poison %d" % number if number % 10 == 0 else b'{"id": %d}' % number
        log.append(body, topic=(b"orders", b"others")[number % 2], store_timestamp=START_MS + DAY_MS * number // 300)
    log.save()
    tables = {
        "tables": {topic: {"topic": topic, "format": "json", "schema": "infer"} for topic in ("orders", "others")}
    }
    store, lake = str(log.store), tmp_path / "lake"
    times = random.Random(6)
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    for _ in range(3 if lake_format == "delta" else 10):
        with running(export_typed, store, str(lake), tables, 8192, lake_format):
            time.sleep(times.uniform(0, 0.5))
    with running(export_typed, store, str(lake), tables, 32768, lake_format) as last:
        last.join(SECONDS_MAX)
        assert last.exitcode == 0
    for remainder, topic in enumerate(("orders", "others")):
        mine = range(remainder, 600, 2)
        rows = rows_in(lake / topic)
        found = sorted(
            zip((row["commitLogOffset"] for row in rows["_log"].to_pylist()), rows["id"].to_pylist(), strict=True)
        )
        assert found == [(log.offsets[number], number) for number in mine if number % 10]
        assert offsets_in(lake / f"{topic}.dead_letters") == [log.offsets[number] for number in mine if not number % 10]


def test_an_exporter_of_a_keyed_table_that_is_killed_at_any_time_has_the_newest_row_of_each_key(tmp_path: Path):
    """As a dictionary that took each message in the order of the log; every ninth message removes its key."""
    log = WrittenLog(tmp_path / "store", segment_size=1 << 16)
    expected: dict[int, int] = {}
    times = random.Random(7)
    for number in range(900):
        key = times.randrange(120)
        body = b"" if number % 9 == 0 else b'{"id": %d, "number": %d}' % (key, number)
        log.append(body, properties=b"KEYS\x01%d\x02" % key, store_timestamp=START_MS + number)
        if body:
            expected[key] = number
        else:
            expected.pop(key, None)
    log.save()
    keyed = {"topic": "orders", "format": "json", "schema": "infer", "mode": "upsert", "key": ["id"]}
    store, lake = str(log.store), tmp_path / "lake"
    for _ in range(3):
        with running(export_typed, store, str(lake), {"tables": {"orders": keyed}}, 8192, "delta"):
            time.sleep(times.uniform(0, 0.7))
    with running(export_typed, store, str(lake), {"tables": {"orders": keyed}}, 32768, "delta") as last:
        last.join(SECONDS_MAX)
        assert last.exitcode == 0
    rows = DeltaTable(lake / "orders").to_pyarrow_table()
    assert sorted(zip(rows["id"].to_pylist(), rows["number"].to_pylist(), strict=True)) == sorted(expected.items())


@pytest.mark.spark
def test_merging_that_is_killed_changes_no_row(spark: Any, tmp_path: Path):
    """In the middle, with some files written and none in the table; later it completes, and orphans are removed."""
    log = written_log(tmp_path / "store", 400, 20)
    store, lake = str(log.store), tmp_path / "lake"
    kept = lake_of(store, str(lake))
    export_log(store, str(lake), "delta", 16384, False, threading.Event())
    version = DeltaTable(lake).version()
    # In place of its first transaction: on a busy machine it might get there before it is killed.
    in_the_way = lake / "_delta_log" / f"{version + 1:020d}.json"
    in_the_way.mkdir()
    for count in (1, 6, 12):
        wanted = len(names_on_disk(lake)) + count
        with running(merge, str(lake)):
            wait_for_files(lake, wanted)
        assert DeltaTable(lake).version() == version
        assert offsets_in(lake) == log.offsets
    in_the_way.rmdir()
    with running(merge, str(lake)) as last:
        last.join(SECONDS_MAX)
        assert last.exitcode == 0
    table = DeltaTable(lake)
    assert table.version() > version
    assert {file.path for file in open_table(kept.location).files()} < names_on_disk(lake)
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert names_on_disk(lake) == {file.path for file in open_table(kept.location).files()}
    found = offsets_by_reader(lake, spark)
    assert found == dict.fromkeys(found, log.offsets)
    assert kept.committed(open_table(kept.location)) == log.end
