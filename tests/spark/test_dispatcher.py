"""The dispatcher that keeps a lake up to date: cursors, restarts, cuts, and kills of all its processes.

``REPUT_SPARK_KILLS=10`` kills that often with a real Spark.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import reput
from command_line import run_reput
from process_tree import descendants
from reput_plugins.spark_export import check_lake
from spark.hosting import Host
from spark.lakes import offsets_by_reader, offsets_in, rows_in
from written_log import WrittenLog

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("REPUT_SPARK_KILLS", "4"))
# In turn: the JVM, the process that starts workers, the dispatcher, which commits, and a worker, which decodes and
# writes.
VICTIMS = ("java", "pyspark.daemon", "dispatcher", "pyspark.worker")


def append(log: WrittenLog, count: int) -> None:
    """Append records."""
    for _ in range(count):
        log.append(b"body %d" % len(log.offsets) * 20)


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of 40 records."""
    log = WrittenLog(tmp_path / "store")
    append(log, 40)
    return log


def test_the_lake_holds_each_batch_when_dispatch_returns(spark: Any, log: WrittenLog):
    """Readers see the dispatched records, across segments; the flushed cursor is the table's position."""
    host = Host(log)
    assert host.start() is None
    for _ in range(4):
        host.dispatch()
        assert offsets_in(host.lake) == log.offsets
        append(log, 9)
    assert host.dispatcher.flush() == host.cursor(host.position)
    assert host.context.counters["commits"].value == 4
    host.dispatcher.close()


def test_a_backlog_is_cut_into_transactions(spark: Any, log: WrittenLog):
    """A transaction covers no more of the log than the options allow."""
    host = Host(log, batch_bytes_max=3000, split_bytes=1000)
    host.start()
    host.dispatch()
    assert offsets_in(host.lake) == log.offsets
    assert host.context.counters["commits"].value > 1
    host.dispatcher.close()


def test_a_restart_goes_on_where_the_table_ends(spark: Any, log: WrittenLog):
    """The table is the cursor, even after a kill between commit and flush; its checkpoint is not needed."""
    host = Host(log)
    host.start()
    host.dispatch()
    host.dispatcher.flush()
    flushed = host.position
    append(log, 30)
    host.dispatch()
    host.dispatcher.close()
    append(log, 30)
    again = Host(log)
    cursor = again.start()
    assert cursor == again.cursor(host.position)
    assert cursor.commit_log_offset > flushed
    again.dispatch()
    assert offsets_in(again.lake) == log.offsets
    again.dispatcher.close()


def test_an_iceberg_lake_goes_on_where_its_table_ends(spark: Any, log: WrittenLog):
    """As a Delta lake does, also after a cut of the log."""
    pytest.importorskip("pyiceberg")
    host = Host(log, lake_format="iceberg")
    host.start()
    host.dispatch()
    host.dispatcher.close()
    append(log, 9)
    again = Host(log, lake_format="iceberg")
    assert again.start() == again.cursor(log.offsets[40], 0)
    again.dispatch()
    assert offsets_in(again.lake) == log.offsets
    again.dispatcher.truncate(again.cursor(log.offsets[45]))
    assert offsets_in(again.lake) == log.offsets[:45]
    again.dispatcher.close()


def test_a_blank_alone_moves_the_table_on(spark: Any, tmp_path: Path):
    """A range without records also counts as done."""
    log = WrittenLog(tmp_path / "store")
    append(log, 1)
    host = Host(log)
    host.start()
    host.dispatch()
    log.blank(4096 - len(log.data))
    host.dispatch()
    append(log, 1)
    host.dispatch()
    assert offsets_in(host.lake) == log.offsets
    host.dispatcher.close()


def test_what_the_log_lost_is_taken_out_of_the_lake(spark: Any, log: WrittenLog):
    """After a truncation the lake continues from the cut, with the new history."""
    host = Host(log)
    host.start()
    host.dispatch()
    cut = log.offsets[25]
    host.dispatcher.truncate(host.cursor(cut))
    assert offsets_in(host.lake) == log.offsets[:25]
    host.position = cut
    host.dispatch()
    assert offsets_in(host.lake) == log.offsets
    host.dispatcher.close()


def test_small_files_are_merged_by_the_way(spark: Any, log: WrittenLog):
    """Maintenance runs between batches, and the rows stay the same."""
    host = Host(log, compact_interval_ms=1)
    host.start()
    for _ in range(3):
        host.dispatch()
        append(log, 5)
    assert offsets_in(host.lake) == log.offsets[:-5]
    assert host.context.counters["removed_files"].value > 0
    host.dispatcher.close()


def test_damage_ends_the_dispatcher_with_its_range(spark: Any, log: WrittenLog):
    """The host shows the error; nothing after the damage is exported as if nothing were missing."""
    from reput.errors import DamagedStore

    log.data[log.offsets[20] + 4] ^= 0xFF
    host = Host(log)
    host.start()
    with pytest.raises(DamagedStore, match=f"from={log.offsets[20]}"):
        host.dispatch()
    assert offsets_in(host.lake) == []
    host.dispatcher.close()


def test_retention_waits_for_the_lake_and_what_it_took_is_a_gap(spark: Any, tmp_path: Path):
    """Up to its limit; then the lake continues after the gap, which the status shows permanently."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    configuration = tmp_path / "reput.toml"
    configuration.write_text(
        'mapped_file_size_commit_log = 4096\n[dispatchers]\nenabled = ["consume_queue", "spark_export"]\n'
        f'[dispatchers.spark_export]\nlake = "{lake}"\ninterval_ms = 50\n'
    )

    def opened() -> Any:
        return reput.open(
            store, config=configuration, mode="inline", flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000
        )

    def put(to: Any) -> list[int]:
        return [to.put(reput.Message("orders", b"x" * 300)).commit_log_offset for _ in range(30)]

    def segments() -> list[int]:
        return sorted(int(path.name) for path in (store / "commitlog").iterdir())

    def clean(*options: str) -> Any:
        for path in (store / "commitlog").iterdir():
            os.utime(path, (0, time.time() - 100 * 3600))
        done = run_reput("clean", store, "--config", configuration, "--format", "json", *options)
        assert done.code == 0, done.stderr
        return done.rows()

    with opened() as writer:
        first = put(writer)
        exported = writer.appended
        writer.wait_for("spark_export", exported, timeout=120)
    assert offsets_in(lake) == first
    lake.rename(tmp_path / "aside")
    lake.write_bytes(b"in the way")
    with opened() as writer:
        second = put(writer)
        writer.wait_for("consume_queue", writer.appended, timeout=60)
        assert "the lake is not a folder" in exporter(writer).error
        end = writer.appended
    kept = clean()
    assert next(row["missed_by"] for row in kept if not row["goes"]) == ["spark_export"]
    assert exported >= segments()[0] > 0
    clean("--set", "dispatcher_reserved_time=0")
    assert segments()[0] > second[0]
    lake.unlink()
    (tmp_path / "aside").rename(lake)
    for _ in range(2):
        with opened() as writer:
            writer.wait_for("spark_export", end, timeout=120)
            assert exporter(writer).gap_bytes == segments()[0] - exported
    assert offsets_in(lake) == [*first, *(offset for offset in second if offset >= segments()[0])]


def exporter(store: Any) -> Any:
    """Return the status row of the dispatcher."""
    (row,) = (row for row in store.status().dispatchers if row.name == "spark_export")
    return row


TYPED = """
[dispatchers.spark_export.tables.orders]
topic = "orders"
format = "json"
schema = "infer"

[dispatchers.spark_export.tables.newest]
topic = "orders"
format = "json"
schema = "infer"
mode = "upsert"
key = ["id"]
"""


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.parametrize(
    ("lake_format", "typed"),
    [
        ("delta", False),
        ("iceberg", False),
        ("delta", True),
        ("iceberg", True),
    ],
)
def test_every_record_is_in_the_lake_once_whatever_is_killed(spark: Any, tmp_path: Path, lake_format: str, typed: bool):
    """``kill -9`` of the JVM, workers, the committer and the dispatcher: 0 missing, 0 duplicate, 0 unreadable."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    times = random.Random(6)
    configuration, lake = tmp_path / "reput.toml", tmp_path / "lake"
    configuration.write_text(
        '[dispatchers]\nenabled = ["consume_queue", "spark_export"]\n'
        f'[dispatchers.spark_export]\nlake = "{lake}"\ninterval_ms = 100\n'
        f'lake_format = "{lake_format}"\n{TYPED if typed else ""}'
        '[spark]\nmaster = "local[2]"\n'
    )
    with reput.open(
        tmp_path / "store", config=configuration, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000
    ) as store:
        end = 0
        ids: list[int] = []

        def put(count: int) -> None:
            nonlocal end
            for _ in range(count):
                ids.append(times.randrange(100))
                body = json.dumps({"id": ids[-1], "number": len(ids) - 1, "text": "x" * 250}).encode()
                end = store.put(reput.Message("orders", body)).next_commit_log_offset

        put(50)
        store.wait_for("spark_export", end, timeout=120)
        for kind in itertools.islice(itertools.cycle(VICTIMS), KILLS):
            put(50)
            pid = exporter(store).pid
            victims = [pid] if kind == "dispatcher" else [p for p, text in descendants(pid).items() if kind in text]
            assert victims
            time.sleep(times.uniform(0, 0.4))
            os.kill(times.choice(victims), signal.SIGKILL)
            put(50)
            store.wait_for("spark_export", end, timeout=120)
        expected = [record.commit_log_offset for record in store.records(0)]
    assert len(expected) == len(ids) == 50 + 100 * KILLS
    assert check_lake(tmp_path / "store", lake).ok
    if not typed:
        found = offsets_by_reader(lake, spark)
        assert found == dict.fromkeys(found, expected)
        return
    newest = {number: place for place, number in enumerate(ids)}
    for name, wanted in (("orders", range(len(ids))), ("newest", sorted(newest.values()))):
        rows = rows_in(lake / name).to_pylist()
        assert {row["text"] for row in rows} == {"x" * 250}
        placed = sorted((row["number"], row["id"], row["_log"]["commitLogOffset"]) for row in rows)
        assert placed == [(place, ids[place], expected[place]) for place in wanted]
