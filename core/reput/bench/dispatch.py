"""What dispatchers cost the writer, how soon they see what was put, and how soon they are back after a kill.

paused        processor time of the putting thread per put, with 1, 4 and 16 dispatchers attached that are paused
put_to_readable   open loop: from a put's return until its message can be got, through the consume queue's process
backstop      puts at random intervals, and how many wake-ups by the back-stop found work: each is a bug
restart       from the kill -9 of the consume queue's process, under puts, until it has caught up again
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reput
from reput.bench.append import put_to_readable
from reput.bench.machine import machine_facts, percentiles
from reput.opened_store import Store
from reput.process.group import ProcessGroup

__all__ = ["measure_dispatch"]

VIEW = "consume_queue"
PAUSED_COUNTS = (1, 4, 16)
ROUNDS = 9
TIMEOUT_S = 60.0
LOOK_S = 0.005
# Mean of the random intervals between puts, seconds: readers park and wake at each of these rates.
INTERVAL_MEANS = (0.0, 20e-6, 200e-6, 2e-3)
RESTART_BATCH = 64
SEED = 4711

IDLE_PLUGIN = """
from reput_hooks import CommitLogDispatcher, DispatcherDescription, hookimpl


class Idle(CommitLogDispatcher):
    def dispatch(self, batch):
        pass


@hookimpl
def reput_create_dispatcher(context):
    return Idle()


@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(reads="appended")
"""


def measure_dispatch(
    directory: Path | None = None,
    *,
    count: int = 20_000,
    body_size: int = 1024,
    restarts: int = 20,
    latency_rate: int = 1_000,
    latency_seconds: float = 10.0,
) -> dict[str, Any]:
    """Measure all four.

    Args:
        directory: where scratch stores are made and removed; None: the system's place for such.
        count: puts a round with paused dispatchers, and puts at random intervals.
        restarts: kills.
    """
    scratch = Path(tempfile.mkdtemp(prefix="reput-bench-", dir=directory))
    body = bytes(body_size)
    try:
        report: dict[str, Any] = {"bench": "dispatch", "machine": machine_facts(scratch), "body_size": body_size}
        with idle_dispatchers(scratch / "plugins", max(PAUSED_COUNTS)) as names:
            report["paused"] = put_past_paused(scratch, names, count, body)
        with reput.open(scratch / "latency") as store:
            report["put_to_readable"] = put_to_readable(store, latency_rate, latency_seconds, body)
        with reput.open(scratch / "backstop", dispatchers=[VIEW]) as store:
            report["backstop"] = put_at_random(store, count, body)
        with reput.open(scratch / "restart") as store:
            report["restart"] = kill_under_puts(store, restarts, body)
        return report
    finally:
        shutil.rmtree(scratch)


@contextlib.contextmanager
def idle_dispatchers(folder: Path, count: int) -> Iterator[list[str]]:
    """Install *count* dispatchers that do nothing, for as long as this lasts, and give their names."""
    names = [f"idle_{number}" for number in range(count)]
    metadata = folder / "reput_bench_idle-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: reput_bench_idle\nVersion: 1.0\n")
    points = [f"{name} = reput_bench_idle" for name in names]
    (metadata / "entry_points.txt").write_text("\n".join(["[reput.dispatchers]", *points, ""]))
    (folder / "reput_bench_idle.py").write_text(IDLE_PLUGIN)
    sys.path.append(str(folder))
    try:
        yield names
    finally:
        sys.path.remove(str(folder))


def put_past_paused(scratch: Path, names: list[str], count: int, body: bytes) -> dict[str, Any]:
    """Put the same into stores with more and more dispatchers that are paused, in turns."""
    with contextlib.ExitStack() as opened:
        stores = {
            number: opened.enter_context(reput.open(scratch / f"paused-{number}", dispatchers=names[:number]))
            for number in PAUSED_COUNTS
        }
        for number, store in stores.items():
            for name in names[:number]:
                pause(store, name)
        cpu: dict[int, list[float]] = {number: [] for number in stores}
        for _ in range(ROUNDS):
            for number, store in stores.items():
                begin = time.thread_time()
                for _ in range(count):
                    store.put(reput.Message("bench", body))
                cpu[number].append((time.thread_time() - begin) / count)
    medians = {number: statistics.median(found) for number, found in cpu.items()}
    fewest = medians[min(medians)]
    return {
        "rounds": ROUNDS,
        "puts_a_round": count,
        "attached": [
            {
                "dispatchers": number,
                "put_cpu_us": round(median * 1e6, 2),
                "difference_percent": round((median / fewest - 1) * 100, 1),
            }
            for number, median in medians.items()
        ],
    }


def group_of(store: Store) -> ProcessGroup:
    """Return the processes of a store that was opened with some."""
    assert isinstance(store.group, ProcessGroup)
    return store.group


def pause(store: Store, name: str) -> None:
    """Have one dispatcher end, and return when it has."""
    group_of(store).request("pause", name)
    waiting = threading.Event()
    deadline = time.monotonic() + TIMEOUT_S
    while next(row for row in store.status().dispatchers if row.name == name).state != "PAUSED":
        if time.monotonic() > deadline:
            raise TimeoutError(f"dispatcher does not pause: dispatcher={name}")
        waiting.wait(LOOK_S)


def put_at_random(store: Store, count: int, body: bytes) -> dict[str, Any]:
    """Put at random intervals, some of which are longer than the reader takes to park."""
    intervals = random.Random(SEED)
    for number in range(count):
        mean = INTERVAL_MEANS[number * len(INTERVAL_MEANS) // count]
        if mean:
            time.sleep(intervals.expovariate(1 / mean))
        store.put(reput.Message("bench", body))
    store.wait_for(VIEW, store.appended, TIMEOUT_S)
    (row,) = store.status().dispatchers
    group = group_of(store)
    return {
        "puts": count,
        "batches": group.cell(VIEW).batch_count,
        "found_work": row.backstop_count,
        "found_work_in_owner": group.memory.header.backstop_count,
    }


def kill_under_puts(store: Store, restarts: int, body: bytes) -> dict[str, Any]:
    """Kill the process of the consume queue again and again, and take the time until all that was put is readable."""
    took: list[float] = []
    cpu_ms: list[int] = []
    for _ in range(restarts):
        store.put_batch([reput.Message("bench", body, keys=["k"]) for _ in range(RESTART_BATCH)])
        store.wait_for(VIEW, store.appended, TIMEOUT_S)
        victim = group_of(store).cell(VIEW).pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        begin = time.perf_counter()
        store.put_batch([reput.Message("bench", body, keys=["k"]) for _ in range(RESTART_BATCH)])
        store.wait_for(VIEW, store.appended, TIMEOUT_S)
        took.append(time.perf_counter() - begin)
        cpu_ms.append(processor_time_ms(group_of(store).cell(VIEW).pid))
    return {"kills": restarts, **percentiles(took), "process_cpu_ms": statistics.median(cpu_ms)}


def processor_time_ms(pid: int | None) -> int:
    """Return the processor time that a process has taken since it was made."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")
