"""How soon a store is usable after the start of a command, and how fast its log is checked.

Each opening runs in its own process, like a user's program: from before its start until it has opened the store, read
the last message of each queue through the views, and put one. The log has its default number of segments for its size
(four, like the store that RocketMQ is measured with), and is in the page cache.

clean    after the store was closed
killed   after `kill -9` of the process, with the last snapshot of the queues' offsets removed, so that every record of
         the log is fully checked, as after a kill in the first seconds of a store that was filled fast
check    `reput check STORE` as a command, of the log with its views, and of the log alone
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import reput
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment

__all__ = ["measure_open"]

PROGRAM = [sys.executable, "-m", "reput.bench.usable_store"]
SEGMENTS = 4
QUEUES = 4
BATCH = 64
VIEWS = ("consume_queue", "index")
LOG_SETTING = "mapped_file_size_commit_log"
# An upper bound for a record's size without its body, for the puts of this benchmark.
RECORD_MORE = 256
WAIT_S = 300.0
MILLISECONDS = 1e3


def measure_open(
    directory: Path | None = None, *, size: int = 1 << 30, body_size: int = 1024, rounds: int = 3
) -> dict[str, Any]:
    """Measure openings after a close and after a kill, and checks, of a log of *size* bytes.

    Args:
        directory: where a scratch store is created and removed; None: the system's temporary directory.
        rounds: openings of each kind, in turns, and checks; the report has the median, for openings also minimum and
            maximum.
    """
    with scratch_directory(directory) as scratch:
        store = scratch / "store"
        count = fill(store, size, body_size)
        log_bytes = sum(segment.stat().st_size for segment in (store / "commitlog").iterdir())
        # One unmeasured run: the first start of a program may have to compile it.
        open_once(store)
        clean: list[dict[str, float]] = []
        killed: list[dict[str, float]] = []
        for _ in range(rounds):
            clean.append(open_once(store))
            open_once(store, kill=True)
            (store / "reput" / "queue_offsets").unlink()
            killed.append(open_once(store))
        with_views = [check(store) for _ in range(rounds)]
        for folder in ("consumequeue", "index"):
            shutil.rmtree(store / folder)
        log_alone = [check(store) for _ in range(rounds)]
        return {
            "bench": "open",
            "machine": machine_facts(scratch),
            "count": count,
            "log_bytes": log_bytes,
            "segments": SEGMENTS,
            "body_size": body_size,
            "clean": openings(clean),
            "killed": openings(killed),
            "check_with_views_mb_per_s": round(statistics.median(with_views), 1),
            "check_mb_per_s": round(statistics.median(log_alone), 1),
        }


def fill(path: Path, size: int, body_size: int) -> int:
    """Write a log of about *size* bytes, let its views be built, and close it; return the number of messages."""
    count = 0
    body = bytes(body_size)
    segment = max(size // SEGMENTS, (body_size + RECORD_MORE) * BATCH)
    settings: dict[str, Any] = {LOG_SETTING: segment}
    with reput.open(path, **settings) as store:
        while store.appended < size - (body_size + RECORD_MORE) * BATCH * 2:
            store.put_batch(
                [
                    reput.Message("bench", body, tags="tag", keys=[f"key-{number}"], queue_id=number % QUEUES)
                    for number in range(count, count + BATCH)
                ]
            )
            count += BATCH
        for view in VIEWS:
            store.wait_for(view, store.appended, WAIT_S)
    return count


def open_once(store: Path, *, kill: bool = False) -> dict[str, float]:
    """Run the program on *store* and return the milliseconds from its start to each of its steps.

    Args:
        kill: kill it once it can use the store; otherwise it closes the store.
    """
    begin = time.monotonic()
    program = subprocess.Popen(
        [*PROGRAM, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=user_environment(),
        # The group's log lines about its owner's death are expected.
        stderr=subprocess.DEVNULL if kill else None,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        line = program.stdout.readline()
        if kill:
            program.send_signal(signal.SIGKILL)
        program.stdin.close()
        code = program.wait(WAIT_S)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    if not line or code != (-signal.SIGKILL if kill else 0):
        raise RuntimeError(f"the program that opens the store failed: exit_code={code} store={store}")
    return {step: (at - begin) * MILLISECONDS for step, at in json.loads(line).items()}


def openings(found: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of the steps, and the range of the total, in ms."""
    whole = [steps["usable"] for steps in found]
    return {
        "usable_ms": round(statistics.median(whole), 1),
        "usable_min_ms": round(min(whole), 1),
        "usable_max_ms": round(max(whole), 1),
        **{
            f"{step}_ms": round(statistics.median(steps[step] for steps in found), 1) for step in ("imported", "opened")
        },
    }


def check(store: Path) -> float:
    """Run `reput check` and return MB of the log per second, including the start of the process."""
    begin = time.monotonic()
    done = subprocess.run(
        [*REPUT, "check", str(store), "--format", "json"],
        stdout=subprocess.PIPE,
        env=user_environment(),
        timeout=WAIT_S,
        check=False,
    )
    seconds = time.monotonic() - begin
    report = json.loads(done.stdout)
    if not report["ok"]:
        raise AssertionError(f"the store failed its check: store={store} report={report}")
    return int(report["bytes"]) / 1e6 / seconds
