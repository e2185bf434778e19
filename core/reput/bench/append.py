"""How fast messages are put while their views keep up.

"Attached" means: consume queue and index run, each message is a new one with a tag and a key, no view ever lags more
than 8 MiB, and the measured time includes catching up.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import reput
from reput.bench.machine import group_memory, machine_facts, percentiles
from reput.bench.scratch import scratch_directory
from reput.embedded.store import Store

__all__ = ["Opener", "measure_append", "scratch_store"]

# `reput.open`, or the same for another store with the methods that are measured.
Opener = Callable[..., AbstractContextManager[Any]]

LAG_MAX = 8 << 20
# How often the lag is checked, and the lag at which the producer waits, so that it stays below the bound.
LOOK_EVERY = 256
WAIT_ABOVE = 7 << 20
VIEWS = ("consume_queue", "index")
SAMPLE_EVERY = 16


def measure_append(
    directory: Path | None = None,
    *,
    count: int = 1_000_000,
    body_size: int = 1024,
    batch: int = 64,
    latency_rate: int = 1_000,
    latency_seconds: float = 10.0,
    open_store: Opener = reput.open,
) -> dict[str, Any]:
    """Measure `put`, `put_batch` of *batch*, and the time from put to readable in an open loop.

    Args:
        directory: where a scratch store is created and removed; None: the system's temporary directory.
        count: messages per run; there are two runs.
        open_store: opens what is measured.
    """
    with scratch_directory(directory) as scratch:
        report: dict[str, Any] = {"bench": "append", "machine": machine_facts(scratch), "body_size": body_size}
        with scratch_store(scratch, open_store) as store:
            report["put"] = put_one_by_one(store, count, bytes(body_size))
            report["memory"] = group_memory(store.pids())
        with scratch_store(scratch, open_store) as store:
            report["put_batch"] = put_in_batches(store, count, bytes(body_size), batch)
        with scratch_store(scratch, open_store) as store:
            report["put_to_readable"] = put_to_readable(store, latency_rate, latency_seconds, bytes(body_size))
        return report


@contextmanager
def scratch_store(directory: Path, open_store: Opener, **settings: Any) -> Iterator[Store]:
    """Open a new store, and remove it afterwards, so that the next run does not pay for the memory of its pages."""
    path = directory / "store"
    with open_store(path, **settings) as store:
        yield store
    shutil.rmtree(path)


class Lag:
    """Keeps the lag of the views below the bound, and records it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.highest = 0
        self.waits = 0

    def look(self) -> None:
        """Wait while a view lags too much."""
        appended = self.store.appended
        for view in VIEWS:
            behind = appended - (self.store.progress(view) or 0)
            self.highest = max(self.highest, behind)
            if behind > WAIT_ABOVE:
                self.waits += 1
                self.store.wait_for(view, appended - WAIT_ABOVE, timeout=60)

    def finish(self) -> None:
        """Wait until every view has caught up."""
        for view in VIEWS:
            self.store.wait_for(view, self.store.appended, timeout=60)


def put_one_by_one(store: Store, count: int, body: bytes) -> dict[str, Any]:
    """Put *count* messages, one call each."""
    lag = Lag(store)
    put, message, clock = store.put, reput.Message, time.perf_counter
    sampled: list[float] = []
    store.wait_for("consume_queue", store.appended, timeout=60)
    begin = clock()
    for number in range(count):
        if number % LOOK_EVERY == 0:
            lag.look()
        if number % SAMPLE_EVERY:
            put(message("bench", body, tags="tag", keys=[f"key-{number}"]))
        else:
            at = clock()
            put(message("bench", body, tags="tag", keys=[f"key-{number}"]))
            sampled.append(clock() - at)
    put_end = clock()
    lag.finish()
    end = clock()
    return {
        "count": count,
        "attached_per_s": round(count / (end - begin)),
        "put_per_s": round(count / (put_end - begin)),
        "caught_up_after_ms": round((end - put_end) * 1e3, 1),
        "lag_max_bytes": lag.highest,
        "lag_within_bound": lag.highest <= LAG_MAX,
        "waits": lag.waits,
        **percentiles(sampled),
    }


def put_in_batches(store: Store, count: int, body: bytes, batch: int) -> dict[str, Any]:
    """Put *count* messages, *batch* per call."""
    lag = Lag(store)
    message, clock = reput.Message, time.perf_counter
    store.wait_for("consume_queue", store.appended, timeout=60)
    begin = clock()
    for first in range(0, count, batch):
        if first // batch % 4 == 0:
            lag.look()
        store.put_batch(
            [message("bench", body, tags="tag", keys=[f"key-{number}"]) for number in range(first, first + batch)]
        )
    put_end = clock()
    lag.finish()
    end = clock()
    stored = (count + batch - 1) // batch * batch
    return {
        "count": stored,
        "batch": batch,
        "attached_per_s": round(stored / (end - begin)),
        "put_per_s": round(stored / (put_end - begin)),
        "lag_max_bytes": lag.highest,
        "lag_within_bound": lag.highest <= LAG_MAX,
        "waits": lag.waits,
    }


def put_to_readable(store: Store, rate: int, seconds: float, body: bytes) -> dict[str, Any]:
    """Put at a fixed rate and measure the time from each put's return until its message is readable.

    ``from_call_p50_us`` and similar figures count from the put's call: a dispatcher that gets the putting thread's
    processor works before the put returns.
    """
    clock = time.perf_counter
    store.wait_for("consume_queue", store.appended, timeout=60)
    visible: list[float] = []
    from_call: list[float] = []
    late = 0
    begin = clock()
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        wait = due - clock()
        if wait > 0:
            time.sleep(wait)
        else:
            late += 1
        called = clock()
        result = store.put(reput.Message("bench", body, tags="tag", keys=[f"key-{number}"]))
        returned = clock()
        store.wait_for("consume_queue", result.next_commit_log_offset, timeout=10)
        found = store.get("bench", result.queue_id, result.queue_offset, 1)
        readable = clock()
        visible.append(readable - returned)
        from_call.append(readable - called)
        if [record.queue_offset for record in found] != [result.queue_offset]:
            raise AssertionError(
                f"message is not readable although its view includes it: queue_offset={result.queue_offset}"
            )
    return {
        "rate": rate,
        "count": len(visible),
        "late_count": late,
        **percentiles(visible),
        **{f"from_call_{name}": value for name, value in percentiles(from_call).items()},
    }
