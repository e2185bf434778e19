"""``kill -9`` of the processes that write, commit and merge a lake: no row is missing, duplicated or unreadable."""

from __future__ import annotations

import json
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
from spark.exporting import follow_to_the_end, lake_of, merge
from spark.lakes import offsets_by_reader, offsets_in, rows_in
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.processes

SECONDS_MAX = 60
# A part of the time in which a run reaches the end of the log.
SECONDS_TO_KILL = {"delta": 0.5, "iceberg": 2.0}
DAY_MS = 86_400_000
# Its children have the libraries loaded, and none of this process's threads.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["spark.exporting", "reput_plugins.spark_export.lakes.iceberg_table"])


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


def follow_and_kill(
    log: WrittenLog, lake: Path, lake_format: str, kills: int, tables: dict[str, Any] | None = None
) -> Iterator[None]:
    """Follow the log *kills* times, each time until a random moment; yield after each; then follow it to its end.

    A run goes from writing to committing and merging several times, and most of its kills come in the middle.
    """
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    times = random.Random(6)
    store = str(log.store)
    for _ in range(kills):
        with running(follow_to_the_end, store, str(lake), lake_format, len(log.data) // 16, True, tables):
            time.sleep(times.uniform(0, SECONDS_TO_KILL[lake_format]))
        yield
    with running(follow_to_the_end, store, str(lake), lake_format, len(log.data) // 4, True, tables) as last:
        last.join(SECONDS_MAX)
        assert last.exitcode == 0


# A few kills each time; many, also of Iceberg tables whose commits take longer, with the long tests.
LONG_KILLS = [pytest.param(name, 20, marks=pytest.mark.long) for name in ("delta", "iceberg")]
KILLS = [("delta", 3), ("iceberg", 1), *LONG_KILLS]


@pytest.mark.parametrize(("lake_format", "kills"), KILLS)
def test_an_exporter_that_is_killed_at_any_time_loses_and_repeats_nothing(tmp_path: Path, lake_format: str, kills: int):
    """Again and again, at different points of writing, committing or merging; then it runs to completion."""
    log = written_log(tmp_path / "store", 600, 3)
    lake = tmp_path / "lake"
    kept = lake_of(str(log.store), str(lake), lake_format)
    ends = [*log.offsets, log.end]
    for _ in follow_and_kill(log, lake, lake_format, kills):
        committed = kept.committed(open_table(kept.location)) or 0
        assert offsets_in(lake) == log.offsets[: ends.index(committed)]
    found = offsets_by_reader(lake)
    assert found == dict.fromkeys(found, log.offsets)
    report = check_lake(log.store, lake)
    assert report.ok
    assert report.views["lake"].state == "equal"
    # A transaction that was killed before its watermark got it later, once.
    assert (report.lake.watermarks.rows, report.lake.watermarks.until) == (len(log.offsets), log.end)


def order(number: int, chance: random.Random) -> dict[str, Any]:
    """Return an order with a column of each kind."""
    return {
        "id": chance.randrange(120),
        "number": number,
        "text": f"order {number}",
        "amount": number / 4,
        "paid": number % 3 == 0,
        "place": {"street": f"s{number}"},
        "items": [number, number + 1],
    }


def decoded(log: WrittenLog) -> Iterator[tuple[int, str, str, Any]]:
    """Yield offset, topic, KEYS and body of each record, decoded by this function alone; None: the body is not JSON."""
    for begin in log.offsets:
        body_size = int.from_bytes(log.data[begin + 84 : begin + 88], "big")
        at = begin + 88 + body_size
        body, topic_size = bytes(log.data[begin + 88 : at]), log.data[at]
        topic = bytes(log.data[at + 1 : at + 1 + topic_size]).decode()
        at += 1 + topic_size
        properties = bytes(log.data[at + 2 : at + 2 + int.from_bytes(log.data[at : at + 2], "big")]).decode()
        keys = dict(pair.split("\x01") for pair in properties.split("\x02") if pair)["KEYS"]
        try:
            yield begin, topic, keys, json.loads(body) if body else {}
        except ValueError:
            yield begin, topic, keys, None


def rows_by_offset(lake: Path) -> dict[int, Any]:
    """Return the columns of the bodies by commit-log offset; no offset is there twice."""
    rows = rows_in(lake).to_pylist()
    found = {row["_log"]["commitLogOffset"]: {name: row[name] for name in row if name[0] != "_"} for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(("lake_format", "kills"), KILLS)
def test_an_exporter_of_typed_tables_that_is_killed_at_any_time_loses_and_repeats_nothing(
    tmp_path: Path, lake_format: str, kills: int
):
    """Each message is once in its table, with every field, or in its dead letters, of which one message in ten is."""
    log, chance = WrittenLog(tmp_path / "store", segment_size=1 << 16), random.Random(7)
    for number in range(600):
        body = b"poison %d" % number if number % 10 == 0 else json.dumps(order(number, chance)).encode()
        log.append(body, topic=(b"orders", b"others")[number % 2], store_timestamp=START_MS + DAY_MS * number // 300)
    log.save()
    tables = {
        "tables": {topic: {"topic": topic, "format": "json", "schema": "infer"} for topic in ("orders", "others")}
    }
    lake = tmp_path / "lake"
    for _ in follow_and_kill(log, lake, lake_format, kills, tables):
        pass
    for topic in ("orders", "others"):
        mine = {offset: body for offset, of, _, body in decoded(log) if of == topic}
        assert rows_by_offset(lake / topic) == {offset: body for offset, body in mine.items() if body is not None}
        assert offsets_in(lake / f"{topic}.dead_letters") == [offset for offset, body in mine.items() if body is None]
    report = check_lake(log.store, lake)
    assert report.ok
    assert [report.tables[topic].watermarks.rows for topic in ("orders", "others")] == [300, 300]


LONG_KEYED = [pytest.param(name, 20, False, marks=pytest.mark.long) for name in ("delta", "iceberg")]
VECTORS = [("delta", 2, True), pytest.param("delta", 20, True, marks=pytest.mark.long)]


@pytest.mark.parametrize(
    ("lake_format", "kills", "vectors"),
    [("delta", 3, False), ("iceberg", 1, False), *LONG_KEYED, *VECTORS],
)
def test_an_exporter_of_a_keyed_table_that_is_killed_at_any_time_has_the_newest_row_of_each_key(
    tmp_path: Path, lake_format: str, kills: int, vectors: bool
):
    """As a dictionary that took each message in the order of the log; every ninth message removes its key."""
    log, chance = WrittenLog(tmp_path / "store", segment_size=1 << 16), random.Random(7)
    for number in range(600):
        found = order(number, chance)
        body = b"" if number % 9 == 0 else json.dumps(found).encode()
        log.append(body, properties=b"KEYS\x01%d\x02" % found["id"], store_timestamp=START_MS + number)
    log.save()
    keyed: dict[str, Any] = {"topic": "orders", "format": "json", "schema": "infer", "mode": "upsert", "key": ["id"]}
    keyed["deletion_vectors"] = vectors
    lake = tmp_path / "lake"
    for _ in follow_and_kill(log, lake, lake_format, kills, {"tables": {"orders": keyed}}):
        pass
    newest = {keys: (offset, body) for offset, _, keys, body in decoded(log)}
    assert rows_by_offset(lake / "orders") == {offset: body for offset, body in newest.values() if body}
    assert check_lake(log.store, lake).ok


@pytest.mark.spark
def test_merging_that_is_killed_changes_no_row(spark: Any, tmp_path: Path):
    """In the middle, with some files written and none in the table; later it completes, and orphans are removed."""
    log = written_log(tmp_path / "store", 400, 20)
    store, lake = str(log.store), tmp_path / "lake"
    kept = lake_of(store, str(lake))
    follow_to_the_end(store, str(lake), "delta", 16384, False, None, threading.Event())
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
