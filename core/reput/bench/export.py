"""How fast the log becomes rows: decoded in one process, exported to a lake by Spark's workers, and followed.

    decode       commit-log bytes to Arrow record batches, one process, every column; with and without comparing
                 every CRC
    export       a Delta table partitioned by topic and day, Spark warm, against the same rows through ``df.write``, and
                 against an Iceberg table, in turns, if the extra ``iceberg`` is installed
    check_lake   that lake compared with the log, row by row, by threads of one process
    query        one column of the log in Spark against all of them, rows counted by nothing but Spark's ``noop`` sink
    typed        a typed table of JSON bodies with ten fields, Spark warm, against Spark's own ``from_json`` over rows
                 through ``df.write``
    first_commit from nothing to a transaction, including Spark's start, with a class-data archive
    follow       a dispatcher whose backlog is the whole log: its start, and the time from its first transaction to its
                 last; then 100 messages per second: duration of its micro-batches, and delay of messages into the lake.
                 The memory is the maximum of its JVM

MB are 10^6 bytes of the log.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import reput
from reput.bench.machine import machine_facts, percentiles
from reput.bench.scratch import scratch_directory
from reput.errors import DispatcherError
from reput.plugin_jobs import DELTA, DELTA_CHECK, find_export
from reput.table import LogTable, table_options

__all__ = ["fill_log", "measure_export"]

TOPICS, QUEUES, DAYS = 8, 4, 3
BATCH = 64
ROUNDS = 3
FOLLOW_SECONDS_MAX = 600
TRICKLE_PER_SECOND = 100
JSON_BODY_SIZE = 1024
ORDER_DDL = (
    "id bigint, customer bigint, amount double, currency string, paid boolean, status string, sku string, "
    "created timestamp, address struct<city: string, zip: string>, note string"
)
TEXT_FIELD = {"type": "string"}
ORDER_FIELDS: dict[str, Any] = {
    "id": {"type": "integer"},
    "customer": {"type": "integer"},
    "amount": {"type": "number"},
    "currency": TEXT_FIELD,
    "paid": {"type": "boolean"},
    "status": TEXT_FIELD,
    "sku": TEXT_FIELD,
    "created": {"type": "string", "format": "date-time"},
    "address": {"type": "object", "properties": {"city": TEXT_FIELD, "zip": TEXT_FIELD}},
    "note": TEXT_FIELD,
}
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
    directory: Path | None = None,
    *,
    size: int = 1 << 30,
    body_size: int = 1024,
    with_spark: bool = True,
    trickle_seconds: int = 30,
) -> dict[str, Any]:
    """Measure decode and export of a log of *size* bytes with bodies of *body_size*.

    Args:
        directory: where a scratch store is created and removed; None: the system's temporary directory.
        with_spark: also run the measurements that need Spark.
        trickle_seconds: how long single messages are put.
    """
    with scratch_directory(directory) as scratch:
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
            report["typed"] = typed_and_from_json(scratch, size)
            report["follow"] = follow(store, scratch, body_size, trickle_seconds)
        return report


def fill_log(directory: Path, size: int, body_size: int) -> int:
    """Write a log of at least *size* bytes without any view; return its number of records.

    Half of each body is incompressible. Store times are the real ones, so all records are of one day.
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
    """Return MB per second."""
    return round(byte_count / seconds / 1e6, 1)


def decode(store: Path) -> dict[str, Any]:
    """Decode the whole log a few times, with and without comparing every CRC, in turns.

    The first time only warms the page cache.
    """
    tables = {verify_crc: LogTable(store, table_options(verify_crc=verify_crc)) for verify_crc in ("all", "none")}
    begin, until = tables["all"].bounds()
    rates: dict[str, list[float]] = {verify_crc: [] for verify_crc in tables}
    for _ in range(ROUNDS + 1):
        for verify_crc, table in tables.items():
            began = time.perf_counter()
            rows = sum(batch.num_rows for batch in table.batches(begin, until))
            rates[verify_crc].append(rate(until - begin, time.perf_counter() - began))
    return {
        "rows": rows,
        "mb_per_s": max(rates["all"][1:]),
        "all_mb_per_s": rates["all"][1:],
        "without_crc_mb_per_s": max(rates["none"][1:]),
        "all_without_crc_mb_per_s": rates["none"][1:],
    }


def first_commit(store: Path, scratch: Path) -> dict[str, Any]:
    """Measure exports that start Spark: of the whole log, which leaves a class-data archive, then of an addition."""
    export = find_export(DELTA)
    whole = export(store, scratch / "cold-whole")
    little = export(store, scratch / "cold-little", until=LogTable(store).next_record(1 << 20, whole.until))
    return {"seconds": round(little.seconds, 2), "whole_log_seconds": round(whole.seconds, 2)}


@contextlib.contextmanager
def warm_spark() -> Iterator[Any]:
    """Yield a session that exports use, and stop it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf().setAppName("reput bench export").setAll(list(SPARK.items()))
    # Workers must use this Python, whatever is first on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    gateway = launch_gateway(conf, quiet)  # type: ignore[no-untyped-call]
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    try:
        yield session
    finally:
        session.stop()


def fill_orders(directory: Path, size: int) -> int:
    """Write a log of JSON bodies of 1 KiB with ten fields, in one topic; return the number of records."""
    source = random.Random(1)
    count = 0
    with reput.open(directory, dispatchers=[], mode="inline") as store:
        while store.appended < size:
            store.put_batch([reput.Message("orders", order(source, number)) for number in range(count, count + BATCH)])
            count += BATCH
    return count


def order(source: random.Random, number: int) -> bytes:
    """Return a body of 1 KiB, half of whose note is incompressible."""
    fields = {
        "id": number,
        "customer": source.randrange(10**6),
        "amount": round(source.random() * 1000, 2),
        "currency": "EUR",
        "paid": bool(number % 3),
        "status": "shipped",
        "sku": f"sku-{source.randrange(1000)}",
        "created": f"2026-01-31T10:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "address": {"city": "Berlin", "zip": "10115"},
        "note": "",
    }
    left = JSON_BODY_SIZE - len(json.dumps(fields))
    fields["note"] = source.randbytes(left // 4).hex() + "a note that repeats itself, " * (left // 56 + 1)
    fields["note"] = str(fields["note"])[:left]
    return json.dumps(fields).encode()


def typed_and_from_json(scratch: Path, size: int) -> dict[str, Any]:
    """Measure a typed table of JSON, and the same columns by Spark's ``from_json``, in turns."""
    from pyspark.sql import functions

    store = scratch / "orders"
    fill_orders(store, size)
    byte_count = LogTable(store).find_end()
    schema = {"type": "object", "properties": ORDER_FIELDS}
    file = scratch / "orders.json"
    file.write_text(json.dumps(schema))
    tables = {"tables": {"orders": {"topic": "orders", "format": "json", "schema": str(file)}}}
    typed, spark = [], []
    with warm_spark() as session:
        for number in range(ROUNDS):
            report = find_export(DELTA)(store, scratch / f"typed-{number}", tables=tables)
            typed.append(rate(byte_count, report.seconds))
            began = time.perf_counter()
            rows = session.read.format("reput").load(str(store))
            text = functions.col("body").cast("string")
            fields = functions.from_json(text, ORDER_DDL).alias("fields")
            found = rows.select(fields, "queueId", "queueOffset", "commitLogOffset", "storeTimestamp", "tags", "keys")
            found = found.select("fields.*", "*").drop("fields")
            found = found.withColumn("date", functions.to_date("storeTimestamp"))
            target = str(scratch / f"from-json-{number}")
            found.write.partitionBy("date").option("compression", "zstd").parquet(target)
            spark.append(rate(byte_count, time.perf_counter() - began))
            for name in (f"typed-{number}", f"from-json-{number}"):
                shutil.rmtree(scratch / name)
    shutil.rmtree(store)
    return {
        "records": report.tables[0].records,
        "dead_letters": report.tables[0].dead_letters,
        "mb_per_s": max(typed),
        "all_mb_per_s": typed,
        "from_json_mb_per_s": max(spark),
        "all_from_json_mb_per_s": spark,
        "times_from_json": round(max(typed) / max(spark), 2),
    }


def export_and_write(store: Path, scratch: Path) -> dict[str, Any]:
    """Measure exports with a warm Spark, and the same rows through Spark's own writer."""
    from pyspark.sql import functions

    with warm_spark() as session:
        formats = ["delta", *(["iceberg"] if find_spec("pyiceberg") else [])]
        found: dict[str, list[Any]] = {lake_format: [] for lake_format in formats}
        checks = []
        for number in range(ROUNDS):
            for lake_format in formats:
                lake = scratch / f"warm-{lake_format}-{number}"
                found[lake_format].append(find_export(DELTA)(store, lake, lake_format=lake_format))
                if lake_format == "delta":
                    checks.append(find_export(DELTA_CHECK)(store, lake))
                shutil.rmtree(lake)
        if not all(check.ok for check in checks):
            raise DispatcherError(f"an export is not equal to its log: {checks}", "Report this.")
        reports = found["delta"]
        rates, iceberg_rates = (
            [rate(report.until - report.begin, report.seconds) for report in found.get(lake_format, ())]
            for lake_format in ("delta", "iceberg")
        )
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
        query = {name: min(seconds) for name, seconds in query_seconds(session, store).items()}
        return {
            "query_all_columns_seconds": round(query["all"], 2),
            "query_tags_seconds": round(query["tags"], 2),
            "query_times_all_columns": round(query["all"] / query["tags"], 2),
            "records": reports[0].records,
            "files": reports[0].files,
            "parquet_bytes": reports[0].bytes,
            "mb_per_s": max(rates),
            "all_mb_per_s": rates,
            "check_lake_mb_per_s": max(check.lake.mb_per_s for check in checks),
            "all_check_lake_mb_per_s": [check.lake.mb_per_s for check in checks],
            "df_write_mb_per_s": through_spark,
            "times_df_write": round(max(rates) / through_spark, 2),
            "iceberg_mb_per_s": max(iceberg_rates, default=None),
            "all_iceberg_mb_per_s": iceberg_rates,
            "iceberg_times_delta": round(max(iceberg_rates) / max(rates), 2) if iceberg_rates else None,
        }


def query_seconds(session: Any, store: Path) -> dict[str, list[float]]:
    """Return how long queries of all columns and of the tags take, in turns, after one of each to warm up."""
    reader = session.read.format("reput")
    frames = {"all": reader.load(str(store)), "tags": reader.option("columns", "tags").load(str(store))}
    seconds: dict[str, list[float]] = {name: [] for name in frames}
    for _ in range(ROUNDS + 1):
        for name, frame in frames.items():
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            seconds[name].append(time.perf_counter() - began)
    return {name: taken[1:] for name, taken in seconds.items()}


def follow(store: Path, scratch: Path, body_size: int, trickle_seconds: int) -> dict[str, Any]:
    """Measure a dispatcher whose backlog is the whole log, and which then gets messages one by one."""
    configuration = scratch / "follow.toml"
    lake = scratch / "followed"
    configuration.write_text(
        f'[dispatchers]\nenabled = ["{DISPATCHER}"]\n[dispatchers.{DISPATCHER}]\nlake = "{lake}"\ninterval_ms = 1\n'
    )
    began = time.perf_counter()
    with reput.open(store, config=configuration) as opened:
        assert isinstance(opened, reput.Store)
        opened.wait_for(DISPATCHER, opened.appended, timeout=FOLLOW_SECONDS_MAX)
        seconds = time.perf_counter() - began
        backlog = commits_of(lake)
        stored = trickle(opened, body_size, trickle_seconds)
        opened.wait_for(DISPATCHER, opened.appended, timeout=FOLLOW_SECONDS_MAX)
        memory = jvm_memory(opened)
    (first_at, first_end), (last_at, last_end) = backlog[0], backlog[-1]
    trickled = commits_of(lake)[len(backlog) :]
    between = [(later[0] - earlier[0]) / 1000 for earlier, later in pairwise(trickled)]
    return {
        "commits": len(backlog),
        "seconds_with_start": round(seconds, 2),
        "drain_mb_per_s": rate(last_end - first_end, (last_at - first_at) / 1000) if last_at > first_at else None,
        "messages_per_s": TRICKLE_PER_SECOND,
        "micro_batches": len(trickled),
        "micro_batch": percentiles(between),
        "stored_to_lake": percentiles(delays(stored, trickled)),
        "jvm_memory_bytes_max": memory,
    }


def trickle(store: Any, body_size: int, seconds: int) -> list[tuple[int, int]]:
    """Put messages at a steady rate; return when each was stored, in ms, and where it ends in the log."""
    body = bytes(body_size)
    begin = time.monotonic()
    stored = []
    for number in range(seconds * TRICKLE_PER_SECOND):
        time.sleep(max(begin + number / TRICKLE_PER_SECOND - time.monotonic(), 0))
        result = store.put(reput.Message(f"bench-{number % TOPICS}", body))
        stored.append((result.store_timestamp, result.next_commit_log_offset))
    return stored


def delays(stored: list[tuple[int, int]], commits: list[tuple[int, int]]) -> list[float]:
    """Return for each message the seconds between its storing and its commit to the lake."""
    waiting = iter(stored)
    found: list[float] = []
    message = next(waiting, None)
    for committed_at, until in commits:
        while message is not None and message[1] <= until:
            found.append(max(committed_at - message[0], 0) / 1000)
            message = next(waiting, None)
    return found


def jvm_memory(store: Any) -> int | None:
    """Return the peak resident memory of the dispatcher's JVM, None if it runs no JVM on this machine."""
    (row,) = (row for row in store.status().dispatchers if row.name == DISPATCHER)
    waiting = [row.pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        # A process or a thread may end before it is read; then nothing below it counts.
        with contextlib.suppress(OSError):
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            if status["Name"].strip() == "java" and "VmHWM" in status:
                return int(status["VmHWM"].split()[0]) << 10
        # Not the search of pathlib, which raises when a process ends meanwhile.
        for children in glob.glob(f"{process}/task/*/children"):
            with contextlib.suppress(OSError):
                waiting += Path(children).read_text().split()
    return None


def commits_of(lake: Path) -> list[tuple[int, int]]:
    """Return when, in ms, and up to which commit-log offset the lake grew, from its transactions."""
    found = []
    for path in sorted((lake / "_delta_log").glob("*.json")):
        for line in path.read_text("utf-8").splitlines():
            info = json.loads(line).get("commitInfo", {})
            if "reput" in info:
                found.append((info["timestamp"], info["reput"]["until"]))
    return found
