"""How fast messages are put with SYNC_FLUSH, where each put waits for the disk: group commit.

threads    many threads, each of which puts one message after the other
in flight  one event loop with many tasks, each of which awaits one `aput` after the other
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reput
from reput.bench.append import Opener, scratch_store
from reput.bench.machine import machine_facts, percentiles
from reput.bench.scratch import scratch_directory
from reput.embedded.store import Store

__all__ = ["measure_sync"]

# Before the measurement: the first pages, and code that Python specialises.
WARM_UP_SHARE = 10


def measure_sync(
    directory: Path | None = None,
    *,
    count: int = 100_000,
    body_size: int = 1024,
    threads: int = 64,
    in_flight: int = 1024,
    open_store: Opener = reput.open,
) -> dict[str, Any]:
    """Measure both.

    Args:
        directory: where a scratch store is created and removed; None: the system's temporary directory.
        count: messages per run; there are two runs.
        open_store: opens what is measured.
    """
    body = bytes(body_size)
    with scratch_directory(directory) as scratch:
        report: dict[str, Any] = {"bench": "sync", "machine": machine_facts(scratch), "body_size": body_size}
        with scratch_store(scratch, open_store, flush_disk_type="SYNC_FLUSH") as store:
            put_with_threads(store, threads, count // WARM_UP_SHARE, body)
            report["put"] = put_with_threads(store, threads, count, body)
        with scratch_store(scratch, open_store, flush_disk_type="SYNC_FLUSH") as store:
            asyncio.run(put_in_flight(store, in_flight, count // WARM_UP_SHARE, body))
            report["aput"] = asyncio.run(put_in_flight(store, in_flight, count, body))
        return report


def put_with_threads(store: Store, threads: int, count: int, body: bytes) -> dict[str, Any]:
    """Put *count* messages from *threads* threads that begin together."""
    took: list[list[float]] = [[] for _ in range(threads)]
    # Each number of the shared iterator goes to exactly one thread.
    numbers = iter(range(count))
    together = threading.Barrier(threads + 1)
    producers = [
        threading.Thread(target=put_some, args=(store, numbers, body, together, taken), daemon=True) for taken in took
    ]
    for producer in producers:
        producer.start()
    together.wait()
    begin = time.perf_counter()
    for producer in producers:
        producer.join()
    seconds = time.perf_counter() - begin
    sampled = [taken for thread in took for taken in thread]
    if len(sampled) != count:
        raise RuntimeError(f"benchmark threads ended before all messages were put: count={count} put={len(sampled)}")
    return {"threads": threads, "count": count, "per_s": round(count / seconds), **percentiles(sampled)}


def put_some(
    store: Store, numbers: Iterator[int], body: bytes, together: threading.Barrier, taken: list[float]
) -> None:
    """Put a message for each remaining number."""
    clock = time.perf_counter
    together.wait()
    for number in numbers:
        begin = clock()
        store.put(reput.Message("bench", body, tags="tag", keys=[f"key-{number}"]))
        taken.append(clock() - begin)


async def put_in_flight(store: Store, in_flight: int, count: int, body: bytes) -> dict[str, Any]:
    """Put *count* messages from *in_flight* tasks of one event loop."""
    numbers = itertools.count()
    taken: list[float] = []
    clock = time.perf_counter

    async def put_some() -> None:
        while (number := next(numbers)) < count:
            began = clock()
            await store.aput(reput.Message("bench", body, tags="tag", keys=[f"key-{number}"]))
            taken.append(clock() - began)

    begin = clock()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(put_some())
    seconds = clock() - begin
    return {"in_flight": in_flight, "count": count, "per_s": round(count / seconds), **percentiles(taken)}
