"""What dispatchers cost the writer, how soon they see new records, and how soon they are back after a kill.

paused        processor time of the putting thread per put, with 1, 4 and 16 paused dispatchers attached
put_to_readable   open loop: from a put's return until its message is readable, through the consume queue's process
backstop      puts at random intervals, and how many back-stop wake-ups found work: each one is a bug
full_speed    how far the views lag behind unthrottled puts, and the memory of their processes then
restart       from the kill -9 of the consume queue's process, during puts, until it has caught up again
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reput
from reput.bench.append import put_to_readable
from reput.bench.machine import machine_facts, percentiles, processor_time
from reput.bench.scratch import scratch_directory
from reput.embedded.store import Store
from reput.process.owner.process_group import ProcessGroup

__all__ = ["installed", "measure_dispatch"]

VIEW = "consume_queue"
PAUSED_COUNTS = (1, 4, 16)
ROUNDS = 9
TIMEOUT_S = 60.0
LOOK_S = 0.005
# Mean of the random intervals between puts, in seconds; readers park and wake at each of these rates.
INTERVAL_MEANS = (0.0, 20e-6, 200e-6, 2e-3)
RESTART_BATCH = 64
FULL_SPEED_ROUNDS = 10
FULL_SPEED_BATCH = 64
FULL_SPEED_LOOK = 256
WARM_UP_PUTS = 20_000
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
    backstop_puts: int | None = None,
    latency_rate: int = 1_000,
    latency_seconds: float = 10.0,
) -> dict[str, Any]:
    """Run all these measurements.

    Args:
        directory: where scratch stores are created and removed; None: the system's temporary directory.
        count: puts per round with paused dispatchers; ten times as many are put at full speed.
        restarts: kills.
        backstop_puts: puts at random intervals; None: as many as *count*.
    """
    body = bytes(body_size)
    with scratch_directory(directory) as scratch:
        report: dict[str, Any] = {"bench": "dispatch", "machine": machine_facts(scratch), "body_size": body_size}
        with installed(scratch / "plugins", {f"idle_{number}": IDLE_PLUGIN for number in range(max(PAUSED_COUNTS))}):
            names = [f"idle_{number}" for number in range(max(PAUSED_COUNTS))]
            report["paused"] = put_past_paused(scratch, names, count, body)
        with reput.open(scratch / "latency") as store:
            report["put_to_readable"] = put_to_readable(store, latency_rate, latency_seconds, body)
        with reput.open(scratch / "backstop", dispatchers=[VIEW]) as store:
            report["backstop"] = put_at_random(store, backstop_puts or count, body)
        shutil.rmtree(scratch / "backstop")
        with reput.open(scratch / "full_speed") as store:
            report["full_speed"] = put_at_full_speed(store, FULL_SPEED_ROUNDS * count, body)
        shutil.rmtree(scratch / "full_speed")
        with reput.open(scratch / "restart") as store:
            report["restart"] = kill_under_puts(store, restarts, body)
        return report


@contextlib.contextmanager
def installed(folder: Path, sources: dict[str, str]) -> Iterator[None]:
    """Install a dispatcher for each name in *sources*, and remove them afterwards."""
    metadata = folder / "reput_bench-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: reput_bench\nVersion: 1.0\n")
    points = [f"{name} = reput_bench_{name}" for name in sources]
    (metadata / "entry_points.txt").write_text("\n".join(["[reput.dispatchers]", *points, ""]))
    for name, source in sources.items():
        (folder / f"reput_bench_{name}.py").write_text(source)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def put_past_paused(scratch: Path, names: list[str], count: int, body: bytes) -> dict[str, Any]:
    """Put the same into stores with increasing numbers of paused dispatchers, in turns."""
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
    """Return the process group of a store in mode "processes"."""
    assert isinstance(store._engine.group, ProcessGroup)
    return store._engine.group


def pause(store: Store, name: str) -> None:
    """Pause one dispatcher, and return when it has stopped."""
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


def put_at_full_speed(store: Store, count: int, body: bytes) -> dict[str, Any]:
    """Put without a pause, one by one and in batches; the lag of the views is only observed.

    The first backlog, during which dispatchers load numpy, is not counted.
    """
    names = [row.name for row in store.status().dispatchers]
    put_and_look(store, names, min(count, WARM_UP_PUTS), FULL_SPEED_BATCH, body)
    return {
        "put": put_and_look(store, names, count, 1, body),
        "put_batch": put_and_look(store, names, count, FULL_SPEED_BATCH, body),
        "anonymous_bytes": {row.name: row.rss_bytes for row in store.status().dispatchers if row.rss_bytes is not None},
    }


def put_and_look(store: Store, names: list[str], count: int, batch: int, body: bytes) -> dict[str, Any]:
    """Put *count* messages, *batch* per call, and return the largest lag of the views called *names*."""
    lag_highest = dict.fromkeys(names, 0)
    look_every = max(1, FULL_SPEED_LOOK // batch)
    begin = time.perf_counter()
    for number in range(0, count, batch):
        store.put_batch([reput.Message("bench", body, tags="tag", keys=[f"key-{number}"]) for _ in range(batch)])
        if number // batch % look_every == 0:
            appended = store.appended
            for name in names:
                lag_highest[name] = max(lag_highest[name], appended - (store.progress(name) or 0))
    put_per_s = count / (time.perf_counter() - begin)
    for name in names:
        store.wait_for(name, store.appended, TIMEOUT_S)
    return {"puts": count, "put_per_s": round(put_per_s), "lag_max_bytes": lag_highest}


def kill_under_puts(store: Store, restarts: int, body: bytes) -> dict[str, Any]:
    """Kill the process of the consume queue repeatedly, and measure the time until all messages are readable."""
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
        pid = group_of(store).cell(VIEW).pid
        assert pid is not None
        cpu_ms.append(round(processor_time(pid) * 1000))
    return {"kills": restarts, **percentiles(took), "process_cpu_ms": statistics.median(cpu_ms)}
