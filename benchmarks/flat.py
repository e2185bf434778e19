"""Whether puts and gets cost the same with few and with many queues and segments.

Two stores are open at the same time, one with few and one with many. They alternate within the same second; the report
has the median over the rounds of the ratio of the calling thread's processor time.

queues    10 and 10,000 queues of one topic; each message goes to a random queue, and each get reads a random one
segments  1 and 100 segments; each get reads a random message

    python -m benchmarks.flat --queues 100 --segments 3 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count as count_from
from pathlib import Path
from typing import Any

import reput
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory
from reput.embedded.store import Store

__all__ = ["main", "measure_flat"]

VIEW = "consume_queue"
SEED = 11
BATCH = 64
SEGMENT_SIZE = 1 << 20
# Approximate size of a record without its body; only used for the number of messages per segment.
RECORD_MORE = 100
BODY_SIZE = 150
VIEW_WAIT_S = 300.0


def measure_flat(
    directory: Path | None = None,
    *,
    queues: tuple[int, int] = (10, 10_000),
    segments: tuple[int, int] = (1, 100),
    rounds: int = 31,
    calls: int = 400,
) -> dict[str, Any]:
    """Measure queues and segments.

    Args:
        directory: where scratch stores are created and removed; None: the system's temporary directory.
        queues, segments: few and many.
        rounds: turns of each store.
        calls: puts, and gets, per round.
    """
    with scratch_directory(directory) as scratch:
        return {
            "bench": "flat",
            "machine": machine_facts(scratch),
            "body_size": BODY_SIZE,
            "rounds": rounds,
            "calls_a_round": calls,
            "queues": compare(scratch, queues, rounds, calls, queues_of=lambda number: number, segments_of=lambda _: 1),
            "segments": compare(
                scratch, segments, rounds, calls, queues_of=lambda _: 1, segments_of=lambda number: number
            ),
        }


def compare(
    scratch: Path,
    numbers: tuple[int, int],
    rounds: int,
    calls: int,
    *,
    queues_of: Callable[[int], int],
    segments_of: Callable[[int], int],
) -> dict[str, Any]:
    """Return the costs of puts and gets in the store with few and the store with many, in turns."""
    with ExitStack() as opened:
        sides = []
        for number in numbers:
            path = scratch / f"store-{number}"
            opened.callback(shutil.rmtree, path)
            settings: dict[str, Any] = {}
            if segments_of(max(numbers)) > 1:
                settings["mapped_file_size_commit_log"] = SEGMENT_SIZE
            store = opened.enter_context(reput.open(path, dispatchers=[VIEW], **settings))
            sides.append(Side(store, queues_of(number), segments_of(number)))
        for side in sides:
            side.fill()
        puts: list[list[float]] = []
        gets: list[list[float]] = []
        for turn in range(rounds + 1):
            # The order alternates; the first round only warms up.
            order = sides if turn % 2 else sides[::-1]
            put = {side: side.put(calls) for side in order}
            get = {side: side.get(calls) for side in order}
            if turn:
                puts.append([put[side] for side in sides])
                gets.append([get[side] for side in sides])
        return {"numbers": list(numbers), "put": costs(puts), "get": costs(gets)}


def costs(found: list[list[float]]) -> dict[str, Any]:
    """Return the medians of few and many in microseconds of processor time, and the median of the rounds' ratios."""
    few, many = (statistics.median(side) for side in zip(*found, strict=True))
    return {
        "few_cpu_us": round(few * 1e6, 2),
        "many_cpu_us": round(many * 1e6, 2),
        "many_to_few": round(statistics.median(row[1] / row[0] for row in found), 3),
    }


class Side:
    """One store, with a number of queues and a minimum number of segments."""

    def __init__(self, store: Store, queues: int, segments: int) -> None:
        self.store = store
        self.queues = queues
        self.segments = segments
        self.body = bytes(BODY_SIZE)
        self.choose = random.Random(SEED)
        self.numbers = count_from()
        self.ends = [0] * queues

    def message(self, queue_id: int) -> reput.Message:
        return reput.Message("bench", self.body, keys=[f"key-{next(self.numbers)}"], queue_id=queue_id)

    def fill(self) -> None:
        """Put to every queue, and until there are enough segments; read each queue once."""
        least = max(self.queues, (self.segments - 1) * SEGMENT_SIZE // (BODY_SIZE + RECORD_MORE), BATCH)
        for first in range(0, least, BATCH):
            batch = [self.message(number % self.queues) for number in range(first, first + BATCH)]
            for result in self.store.put_batch(batch):
                self.ends[result.queue_id] = result.queue_offset + 1
        self.wait()
        for queue_id in range(self.queues):
            self.store.get("bench", queue_id, 0, 1)

    def wait(self) -> None:
        """Wait until everything is readable."""
        self.store.wait_for(VIEW, self.store.appended, VIEW_WAIT_S)

    def put(self, calls: int) -> float:
        """Return the processor time of a put, in seconds."""
        messages = [self.message(self.choose.randrange(self.queues)) for _ in range(calls)]
        put = self.store.put
        begin = time.thread_time()
        results = [put(message) for message in messages]
        seconds = (time.thread_time() - begin) / calls
        for result in results:
            self.ends[result.queue_id] = result.queue_offset + 1
        self.wait()
        return seconds

    def get(self, calls: int) -> float:
        """Return the processor time of a get of one message, in seconds.

        Each queue was read since the last put: a queue's end is determined once, so its share of a get's cost depends
        on the number of gets per queue, not on the number of queues.
        """
        wanted = list(self.places(calls))
        get = self.store.get
        for queue_id, _ in wanted:
            get("bench", queue_id, 0, 1)
        begin = time.thread_time()
        found = [get("bench", queue_id, queue_offset, 1) for queue_id, queue_offset in wanted]
        seconds = (time.thread_time() - begin) / calls
        if any(len(result.records) != 1 for result in found):
            raise AssertionError(f"a message is missing: queues={self.queues} segments={self.segments}")
        return seconds

    def places(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield queue id and queue offset of random messages."""
        for _ in range(count):
            queue_id = self.choose.randrange(self.queues)
            yield queue_id, self.choose.randrange(self.ends[queue_id])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flat", description="Compare the costs of put and get in small and large stores."
    )
    parser.add_argument("--queues", type=int, default=10_000, metavar="Q", help="queues of the store with many")
    parser.add_argument("--segments", type=int, default=100, metavar="S", help="segments of the store with many")
    parser.add_argument("--rounds", type=int, default=31, metavar="N", help="rounds per store")
    parser.add_argument("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    asked = parser.parse_args(arguments)
    report = measure_flat(asked.directory, queues=(10, asked.queues), segments=(1, asked.segments), rounds=asked.rounds)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
