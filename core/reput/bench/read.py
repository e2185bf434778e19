"""How fast messages are read back from the page cache.

in order   32 at a time; the body of each record is accessed, as a consumer does
at random  one at a time, by queue offset: from the call to its return, without accessing the record
by key     one at a time: until the record is decoded, whose key must be compared
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import reput
from reput.bench.append import Opener, scratch_store
from reput.bench.machine import machine_facts, percentiles
from reput.bench.scratch import scratch_directory

__all__ = ["measure_read"]

PUT_BATCH = 64
READ_COUNT = 32
SAMPLE_COUNT = 20_000


def measure_read(
    directory: Path | None = None,
    *,
    count: int = 600_000,
    keys: int = 2,
    body_size: int = 1024,
    open_store: Opener = reput.open,
) -> dict[str, Any]:
    """Measure reads of a live store of *count* records with *keys* keys each, in the writer's process.

    Args:
        directory: where a scratch store is created and removed; None: the system's temporary directory.
        open_store: opens what is measured.
    """
    body = bytes(body_size)
    clock = time.perf_counter
    choose = random.Random(7)
    with scratch_directory(directory) as scratch, scratch_store(scratch, open_store) as store:
        for first in range(0, count, PUT_BATCH):
            store.put_batch(
                [
                    reput.Message("bench", body, tags="tag", keys=[f"key-{number}-{key}" for key in range(keys)])
                    for number in range(first, min(first + PUT_BATCH, count))
                ]
            )
        for view in ("consume_queue", "index"):
            store.wait_for(view, store.appended, timeout=120)
        begin = clock()
        at = body_bytes = 0
        while at < count:
            for record in store.get("bench", 0, at, READ_COUNT):
                body_bytes += len(record.body)
                at += 1
        in_order = count / (clock() - begin)
        if body_bytes != count * body_size:
            raise AssertionError(f"bodies are missing: body_bytes={body_bytes} expected={count * body_size}")
        one: list[float] = []
        for _ in range(SAMPLE_COUNT):
            queue_offset = choose.randrange(count)
            start = clock()
            store.get("bench", 0, queue_offset, 1)
            one.append(clock() - start)
        by_key: list[float] = []
        for _ in range(SAMPLE_COUNT):
            key = f"key-{choose.randrange(count)}-{choose.randrange(keys)}"
            start = clock()
            found = store.query("bench", key)
            by_key.append(clock() - start)
            if len(found) != 1:
                raise AssertionError(f"key is not found once: key={key} found={len(found)}")
        return {
            "bench": "read",
            "machine": machine_facts(scratch),
            "count": count,
            "body_size": body_size,
            "index_entries": count * keys,
            "in_order_per_s": round(in_order),
            "one_at_random": percentiles(one),
            "by_key": percentiles(by_key),
        }
