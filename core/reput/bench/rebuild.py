"""How fast consume queue and index are rebuilt from a log, side by side, each in its own process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import reput
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory
from reput.process.owner.offline_rebuild import rebuild
from reput.settings import Settings

__all__ = ["fill_log", "measure_rebuild"]

BATCH = 64
VIEWS = ("consume_queue", "index")


def measure_rebuild(
    directory: Path | None = None, *, count: int = 1_000_000, queues: int = 4, keys: int = 2, body_size: int = 1024
) -> dict[str, Any]:
    """Measure the rebuild of both views of a log of *count* records with *keys* keys each, over *queues* queues.

    Counted from the start of the processes until both views are durable.
    """
    with scratch_directory(directory) as scratch:
        store, target = scratch / "store", scratch / "target"
        fill_log(store, count, queues, keys, body_size)
        begin = time.perf_counter()
        rows = list(rebuild(store, VIEWS, target, Settings()))
        seconds = time.perf_counter() - begin
        return {
            "bench": "rebuild",
            "machine": machine_facts(scratch),
            "count": count,
            "queues": queues,
            "keys": keys,
            "body_size": body_size,
            "seconds": round(seconds, 3),
            "records_per_s": round(count / seconds),
            "views": [{"view": row.view, "records": row.records, "seconds": round(row.seconds, 3)} for row in rows],
        }


def fill_log(directory: Path, count: int, queues: int, keys: int, body_size: int) -> None:
    """Write a log of *count* records without any view."""
    body = bytes(body_size)
    with reput.open(directory, dispatchers=[], mode="inline") as store:
        for first in range(0, count, BATCH):
            store.put_batch(
                [
                    reput.Message(
                        "bench",
                        body,
                        tags="tag",
                        keys=[f"key-{number}-{key}" for key in range(keys)],
                        queue_id=number % queues,
                    )
                    for number in range(first, min(first + BATCH, count))
                ]
            )
