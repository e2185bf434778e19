"""How fast the log becomes rows: decoded in one process, exported to a lake by Spark's workers, and followed.

    decode       commit-log bytes to Arrow record batches, one process, every column
    export       a Delta table partitioned by topic and day, Spark warm, against the same rows through ``df.write``
    first_commit from nothing to a transaction, Spark's start included, with a class-data archive
    follow       a dispatcher that finds the whole log as its backlog: its start, and from its first transaction to its
                 last

MB are 10^6 bytes of the log.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import reput
from reput.bench.machine import machine_facts
from reput.errors import DispatcherError
from reput.table import LogTable

__all__ = ["fill_log", "measure_export"]

TOPICS, QUEUES, DAYS = 8, 4, 3
BATCH = 64
ROUNDS = 3
FOLLOW_SECONDS_MAX = 600
DISPATCHER = "spark_export"
SPARK = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def measure_export(
    directory: Path | None = None, *, size: int = 1 << 30, body_size: int = 1024, with_spark: bool = True
) -> dict[str, Any]:
    """Measure decode and export of a log of *size* bytes with bodies of *body_size*.

    Args:
        directory: where a scratch store is made and removed; None: the system's place for such.
        with_spark: measure what needs Spark, too.
    """
    scratch = Path(tempfile.mkdtemp(prefix="reput-bench-", dir=directory))
    try:
        store = scratch / "store"
        count = fill_log(store, size, body_size)
        report: dict[str, Any] = {
            "bench": "export",
            "machine": machine_facts(scratch),
            "count": count,
            "bytes": LogTable(store).find_end(),
            "body_size": body_size,
            "decode": decode(store),
        }
        if with_spark:
            report["first_commit"] = first_commit(store, scratch)
            report["export"] = export_and_write(store, scratch)
            report["follow"] = follow(store, scratch)
        return report
    finally:
        shutil.rmtree(scratch)


def fill_log(directory: Path, size: int, body_size: int) -> int:
    """Write a log of at least *size* bytes without any view; return how many records it has.

    Half of each body cannot be compressed. Store times are those of the writing, so there is one day.
    """
    source = random.Random(1)
    filler = b"a body of which half repeats itself. " * (body_size // 36 + 1)
    count = 0
    with reput.open(directory, dispatchers=[], mode="inline") as store:
        while store.appended < size:
            bodies = [source.randbytes(body_size // 2) + filler[: body_size - body_size // 2] for _ in range(BATCH)]
            store.put_batch(
                [
                    reput.Message(
                        f"bench-{number % TOPICS}",
                        body,
                        tags=f"tag-{number % 5}",
                        keys=[f"order-{number}"],
                        properties={"source": "bench"},
                        queue_id=number // TOPICS % QUEUES,
                    )
                    for number, body in enumerate(bodies, count)
                ]
            )
            count += BATCH
    return count


def rate(byte_count: int, seconds: float) -> float:
    """Return MB a second."""
    return round(byte_count / seconds / 1e6, 1)


def decode(store: Path) -> dict[str, Any]:
    """Decode the whole log a few times; the first time only warms the page cache."""
    table = LogTable(store)
    begin, until = table.bounds()
    rates = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        rows = sum(batch.num_rows for batch in table.batches(begin, until))
        rates.append(rate(until - begin, time.perf_counter() - began))
    return {"rows": rows, "mb_per_s": max(rates[1:]), "all_mb_per_s": rates[1:]}


def exporter() -> Any:
    """Return the export that the plugin brings.

    Raises:
        DispatcherError: none is installed.
    """
    for point in metadata.entry_points(group="reput.exports", name="delta"):
        return point.load()
    raise DispatcherError("no such export is installed: export=delta", "Install reput with its plugins again.")


def first_commit(store: Path, scratch: Path) -> dict[str, Any]:
    """Measure exports that start Spark: of the whole log, which leaves a class-data archive, then of a little."""
    export = exporter()
    whole = export(store, scratch / "cold-whole")
    little = export(store, scratch / "cold-little", until=LogTable(store).next_record(1 << 20, whole.until))
    return {"seconds": round(little.seconds, 2), "whole_log_seconds": round(whole.seconds, 2)}


def export_and_write(store: Path, scratch: Path) -> dict[str, Any]:
    """Measure exports with a warm Spark, and the same rows through Spark's own writer."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession, functions

    conf = SparkConf().setAppName("reput bench export").setAll(list(SPARK.items()))
    # Workers are to have this Python, whatever is first on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    gateway = launch_gateway(conf, quiet)  # type: ignore[no-untyped-call]
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    try:
        reports = [exporter()(store, scratch / f"warm-{number}") for number in range(ROUNDS)]
        for number in range(ROUNDS):
            shutil.rmtree(scratch / f"warm-{number}")
        rates = [rate(report.until - report.begin, report.seconds) for report in reports]
        frame = session.read.format("reput").load(str(store))
        frame = frame.withColumn("date", functions.to_date("storeTimestamp"))
        written = []
        for number in range(2):
            began = time.perf_counter()
            writer = frame.write.partitionBy("topic", "date").option("compression", "zstd")
            writer.parquet(str(scratch / f"written-{number}"))
            written.append(time.perf_counter() - began)
            shutil.rmtree(scratch / f"written-{number}")
        through_spark = rate(reports[0].until - reports[0].begin, min(written))
        return {
            "records": reports[0].records,
            "files": reports[0].files,
            "parquet_bytes": reports[0].bytes,
            "mb_per_s": max(rates),
            "all_mb_per_s": rates,
            "df_write_mb_per_s": through_spark,
            "times_df_write": round(max(rates) / through_spark, 2),
        }
    finally:
        session.stop()


def follow(store: Path, scratch: Path) -> dict[str, Any]:
    """Measure a dispatcher that finds the whole log as its backlog."""
    configuration = scratch / "follow.toml"
    configuration.write_text(
        f'[dispatchers]\nenabled = ["{DISPATCHER}"]\n'
        f'[dispatchers.{DISPATCHER}]\nlake = "{scratch / "followed"}"\ninterval_ms = 100\n'
    )
    began = time.perf_counter()
    with reput.open(store, config=configuration) as opened:
        assert isinstance(opened, reput.Store)
        opened.wait_for(DISPATCHER, opened.appended, timeout=FOLLOW_SECONDS_MAX)
        seconds = time.perf_counter() - began
    commits = commits_of(scratch / "followed")
    (first_at, first_end), (last_at, last_end) = commits[0], commits[-1]
    return {
        "commits": len(commits),
        "seconds_with_start": round(seconds, 2),
        "drain_mb_per_s": rate(last_end - first_end, (last_at - first_at) / 1000) if last_at > first_at else None,
    }


def commits_of(lake: Path) -> list[tuple[int, int]]:
    """Return when, in ms, and up to which commit-log offset the lake grew, from its transactions."""
    found = []
    for path in sorted((lake / "_delta_log").glob("*.json")):
        for line in path.read_text("utf-8").splitlines():
            info = json.loads(line).get("commitInfo", {})
            if "reput" in info:
                found.append((info["timestamp"], info["reput"]["until"]))
    return found
