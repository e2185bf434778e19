"""A program that opens a store and reports when it is usable: ``python -m reput.bench.usable_store STORE``.

It prints one JSON line of times on the machine's monotonic clock, in seconds: when this module began, when `reput` was
imported, when the store was open, and when its last message had been read and a new one put. Then it waits for the end
of its input and closes the store; a measurement that kills it does so before that.
"""

from __future__ import annotations

import time

began = time.monotonic()

import json  # noqa: E402
import sys  # noqa: E402

import reput  # noqa: E402

TOPIC = "bench"
VIEW_WAIT_S = 120.0


def use(path: str) -> None:
    """Open the store, read the last message of each queue, put one, and print the times."""
    message = reput.Message(TOPIC, b"usable")
    imported = time.monotonic()
    with reput.open(path) as store:
        opened = time.monotonic()
        store.wait_for("consume_queue", store.appended, VIEW_WAIT_S)
        for queue_id in store.queue_ids(TOPIC):
            _, following = store.queue_range(TOPIC, queue_id)
            found = store.get(TOPIC, queue_id, following - 1, 1).records
            if [record.queue_offset for record in found] != [following - 1]:
                raise AssertionError(f"the last message of a queue is missing: queue_id={queue_id}")
        store.put(message)
        usable = time.monotonic()
        print(json.dumps({"began": began, "imported": imported, "opened": opened, "usable": usable}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    use(sys.argv[1])
