"""How soon a store can be used, from the command on; and how fast its log is checked.

Each opening is a process of its own, as a user's program is one: from before it is started until it has opened the
store, read the last message of each queue through the views, and put one. The log has its usual number of segments for
its size (four, as the store that RocketMQ is measured with), and lies in the page cache.

clean    after the store was closed
killed   after `kill -9` of the process, with the last snapshot of the queues' offsets taken away: so every record of
         the log is checked whole, as after a kill in the first seconds of a store that was filled fast
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
# What a put of this benchmark takes in the log besides its body is below this.
RECORD_MORE = 256
WAIT_S = 300.0
MILLISECONDS = 1e3


def measure_open(
    directory: Path | None = None, *, size: int = 1 << 30, body_size: int = 1024, rounds: int = 3
) -> dict[str, Any]:
    """Measure openings after a close and after a kill, and checks, of a log of *size* bytes.

    Args:
        directory: where a scratch store is made and removed; None: the system's place for such.
        rounds: openings of each kind, in turns, and checks; what is reported is the median, of openings also the least
            and the most.
    """
    with scratch_directory(directory) as scratch:
        store = scratch / "store"
        count = fill(store, size, body_size)
        log_bytes = sum(segment.stat().st_size for segment in (store / "commitlog").iterdir())
        # Once unmeasured: the first start of a program may have to compile it.
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
    """Write a log of about *size* bytes, let its views be built, and close it; return how many messages that were."""
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
    """Run the program on *store* and return the milliseconds from its start until each of its steps.

    Args:
        kill: it is killed when it can use the store; otherwise it closes it.
    """
    begin = time.monotonic()
    program = subprocess.Popen(
        [*PROGRAM, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=user_environment(),
        # What the group has to say of its owner's death is no news.
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
    """Return the medians of the steps, and how far the whole varied, in ms."""
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
    """Run `reput check` and return MB of the log a second, the start of the process included."""
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
        raise AssertionError(f"the store is not sound: store={store} report={report}")
    return int(report["bytes"]) / 1e6 / seconds
