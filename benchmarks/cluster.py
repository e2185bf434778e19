"""A large log on a standalone Spark cluster: exported, checked and rebuilt by one worker, then two, then three.

    master ── worker 1 (1 core) ─┐
           ── worker 2 (1 core) ─┼── read the store's segments, write the lake and the views
           ── worker 3 (1 core) ─┘

Every worker is a process of this machine, so more workers than cores show what waiting for the disk leaves over.

    python -m benchmarks.cluster --gib 20 --workers 1 --workers 2 --workers 3
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from reput.bench.export import fill_log
from reput.bench.machine import machine_facts, machine_text
from reput.bench.scratch import scratch_directory
from reput.cli.terminal.output import table_text, write_line
from reput.plugin_jobs import DELTA, find_engine, find_export, rebuild_with
from reput.settings import Settings
from reput.table import LogTable

__all__ = ["main"]

START_TIMEOUT_S = 120.0
BODY_SIZE = 1024
VIEWS = ("consume_queue", "index")


@contextlib.contextmanager
def started(log: Path, words: str, *command: str) -> Iterator[str]:
    """Start one of Spark's processes; yield its log once it has *words*."""
    spec = find_spec("pyspark")
    if spec is None or spec.submodule_search_locations is None:
        raise RuntimeError("pyspark is not installed")
    home = next(iter(spec.submodule_search_locations))
    ours = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [os.path.join(home, "bin", "spark-class"), *command],
            env={**os.environ, **ours, "PYSPARK_PYTHON": sys.executable},
            stdout=output,
            stderr=output,
        )
    try:
        end = time.monotonic() + START_TIMEOUT_S
        while words not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"a process of Spark has not started: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield log.read_text()
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def cluster(scratch: Path, worker_count: int) -> Iterator[str]:
    """Start a master and workers of one core each; yield the master's address."""
    package = "org.apache.spark.deploy"
    at_home = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        log = scratch / f"master-{worker_count}.log"
        text = stack.enter_context(started(log, "elected leader", f"{package}.master.Master", *at_home))
        found = re.search(r"Starting Spark master at (spark://\S+)", text)
        if found is None:
            raise RuntimeError(f"the master has no address: log={log}")
        for number in range(worker_count):
            resources = ("--cores", "1", "--memory", "1g", "--work-dir", str(scratch / f"work-{worker_count}-{number}"))
            log = scratch / f"worker-{worker_count}-{number}.log"
            words = "Successfully registered with master"
            stack.enter_context(started(log, words, f"{package}.worker.Worker", *at_home, *resources, found[1]))
        yield found[1]


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds *work* takes."""
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def measure(store: Path, scratch: Path, worker_count: int, byte_count: int) -> dict[str, str]:
    """Return the row of one cluster."""
    from reput_plugins.spark_export.spark_session import spark_session

    rates = {}
    lake, rebuilt = scratch / f"lake-{worker_count}", scratch / f"rebuilt-{worker_count}"
    with cluster(scratch, worker_count) as master:
        settings = {"spark.master": master, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
        with spark_session(settings, "reput benchmark") as session:
            session.range(worker_count).count()
            engine = find_engine("spark")
            jobs: dict[str, Callable[[], object]] = {
                "export": lambda: find_export(DELTA)(store, lake),
                "check": lambda: engine.check_store(store, Settings(), lambda done: None),
                "rebuild": lambda: list(
                    rebuild_with(engine)(store, VIEWS, rebuilt, Settings(), on_progress=lambda *done: None)
                ),
            }
            for name, work in jobs.items():
                seconds = timed(work)
                rates[name] = f"{seconds:,.0f} s ({byte_count / seconds / 1e6:,.0f} MB/s)"
    # The next cluster needs the room.
    for directory in (lake, rebuilt):
        shutil.rmtree(directory)
    return {"workers": str(worker_count), **rates}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description="Measure Spark clusters.")
    parser.add_argument("--gib", type=float, default=20.0, metavar="N", help="size of the log; default 20")
    parser.add_argument("--workers", type=int, action="append", metavar="N", help="repeatable; default 1, 2 and 3")
    parser.add_argument("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    asked = parser.parse_args(arguments)
    with scratch_directory(asked.directory) as scratch:
        print(f"reput: {machine_text(machine_facts(scratch))}", file=sys.stderr)
        store = scratch / "store"
        count = fill_log(store, int(asked.gib * (1 << 30)), BODY_SIZE)
        end = LogTable(store).find_end()
        print(f"reput: records={count} bytes={end}", file=sys.stderr)
        rows = []
        for worker_count in asked.workers or (1, 2, 3):
            rows.append(measure(store, scratch, worker_count, end))
            print(f"reput: {rows[-1]}", file=sys.stderr)
        write_line(table_text(rows, tuple(rows[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
