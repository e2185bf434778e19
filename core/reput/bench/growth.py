"""How costs grow with the size of a store: each cost at several sizes, compared with the law that it must obey.

Stores of several sizes are open at the same time and take turns; a ratio is the median of the rounds' ratios.

topics     each with its own queue: put, get, open, close, `reput status` and `reput topic list` beside the program
groups     waiting for the next message of one queue: put, close, status
delayed    messages that are due in two hours: put, get, open, close, status
chain      messages with one key: put, open, close, and queries for the newest and the oldest 32 of them

A *flat* cost may be at most a certain multiple as high in the largest store as in the smallest. A *linear* cost may
grow at most by a certain multiple of the store's growth, from the second-largest size to the largest.

Puts, gets and queries are measured as processor time of the calling thread; commands as processor time of their
process, including its start; open and close as the caller's waiting time.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

import reput
from reput.bench.figures import yes_or_no
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment
from reput.consume.pull.pull_service import PullRequest
from reput.consume.registry.subscription import subscribe
from reput.embedded.opened_store import TIMESTAMP_MAX
from reput.embedded.store import Store
from reput.errors import ConfigError
from reput.store.config.topic_config_manager import TopicConfig

__all__ = ["GROWTH_COLUMNS", "Law", "growth_rows", "measure_growth", "sizes_up_to"]

VIEWS = ("consume_queue", "index")
SEED = 11
BATCH = 64
BODY = bytes(100)
TOPIC = "bench"
KEY = "key"
QUERY_COUNT = 32
QUERIES = 2
WARM_UP_ROUNDS = 1
MS_FROM_US = 10_000
# The last of the default levels: two hours.
DELAY_LEVEL = 18
WAIT_S = 600.0
# It takes long to wait for all groups that a put wakes.
CALLS_WITH_GROUPS = 4
# Calls are short, and the speed of a busy machine varies: they have this many turns per round.
CALL_TURNS = 6
# The index stores times in whole seconds.
INDEX_TIME_S = 1.1
GROWTH_COLUMNS = ("grows", "what", "sizes", "costs", "unit", "ratio", "law", "kept")


class Law(msgspec.Struct, frozen=True):
    """The law for a cost: at most *times* as high, or if linear, at most *times* the growth in size."""

    times: float
    is_linear: bool = False

    def text(self) -> str:
        """Return the law as text."""
        return f"{'linear' if self.is_linear else 'flat'}, ≤ {self.times:g}"

    def places(self, count: int) -> tuple[int, int]:
        """Return which two of *count* sizes are compared."""
        return (max(count - 2, 0) if self.is_linear else 0), count - 1

    def is_kept(self, ratio: float, few: int, many: int) -> bool:
        """Whether costs of two sizes with this *ratio* obey the law."""
        return ratio <= self.times * (many / few if self.is_linear else 1.0)


FLAT = Law(1.2)
# For costs that include a process or follow work that has emptied the caches: they vary more.
FLAT_ROUGHLY = Law(1.5)
LINEAR = Law(1.2, is_linear=True)
LAWS: dict[str, dict[str, Law]] = {
    "topics": {
        "put": FLAT,
        "get": FLAT,
        "open": LINEAR,
        "close": LINEAR,
        "status": LINEAR,
        "topic list": LINEAR,
    },
    "groups": {"put": FLAT_ROUGHLY, "close": LINEAR, "status": LINEAR},
    "delayed": {"put": FLAT, "get": FLAT, "open": LINEAR, "close": FLAT_ROUGHLY, "status": FLAT_ROUGHLY},
    "chain": {
        "put": FLAT,
        "query newest": FLAT,
        "query oldest": LINEAR,
        "open": FLAT_ROUGHLY,
        "close": FLAT_ROUGHLY,
    },
}

# Per kind: the smaller sizes, the default largest one, and that of --full.
SIZES = {
    "topics": ((10, 1000), 1000, 20_000),
    "groups": ((10, 100), 500, 5000),
    "delayed": ((10, 1000), 50_000, 1_000_000),
    # Even the smallest has as many messages as a query requests.
    "chain": ((100, 1000), 50_000, 500_000),
}
assert SIZES.keys() == LAWS.keys()


def sizes_up_to(full: bool, only: Sequence[str] = (), **largest: int | None) -> dict[str, list[int]]:
    """Return the sizes to measure per kind, up to *largest* of each, else the default one or that of *full*.

    Raises:
        ConfigError: *only* has an unknown kind.
    """
    if unknown := [grows for grows in only if grows not in SIZES]:
        raise ConfigError(f"unknown part: only={unknown[0]!r} known={','.join(SIZES)}", "Name one of the known ones.")
    found = {}
    for grows in only or SIZES:
        smaller, usual, fullest = SIZES[grows]
        most = largest.get(grows) or (fullest if full else usual)
        found[grows] = [*(size for size in smaller if size < most), most]
    return found


def measure_growth(
    directory: Path | None = None,
    *,
    sizes: Mapping[str, Sequence[int]],
    rounds: int = 5,
    calls: int = 400,
) -> dict[str, Any]:
    """Measure the stores of each kind.

    Args:
        directory: where scratch stores are created and removed; None: the system's temporary directory.
        sizes: ascending sizes per kind; other kinds are skipped.
        rounds: turns of each store.
        calls: puts, and gets, per turn, of which a round has several.
    """
    rows: list[dict[str, Any]] = []
    with scratch_directory(directory) as scratch:
        for grows, numbers in sizes.items():
            rows += compare(scratch / grows, grows, numbers, rounds, calls)
        return {
            "bench": "growth",
            "machine": machine_facts(scratch),
            "rounds": rounds,
            "calls_a_turn": calls,
            "rows": rows,
        }


def compare(path: Path, grows: str, sizes: Sequence[int], rounds: int, calls: int) -> Iterable[dict[str, Any]]:
    """Yield a row for each cost of stores of these *sizes*, which take turns."""
    found: dict[str, list[list[float]]] = {what: [] for what in LAWS[grows]}
    with ExitStack() as opened:
        sides = [Side(path / str(size), grows, size, calls) for size in sizes]
        for side in sides:
            opened.callback(side.end)
            side.begin()
        # Openings come last: the cold caches after an opening would distort the cost of puts.
        for step, turns in ((Side.call, rounds * CALL_TURNS), (Side.ask, rounds), (Side.open_again, rounds)):
            for turn in range(WARM_UP_ROUNDS + turns):
                order = sides if turn % 2 else sides[::-1]
                costs = {side: step(side, LAWS[grows]) for side in order}
                if turn >= WARM_UP_ROUNDS:
                    for what in costs[sides[0]]:
                        found[what].append([costs[side][what] for side in sides])
    for what, rows in found.items():
        yield row_of(grows, what, sizes, rows)


def row_of(grows: str, what: str, sizes: Sequence[int], rounds: list[list[float]]) -> dict[str, Any]:
    """Return one cost at each of *sizes*, in microseconds, and whether it obeys its law."""
    law = LAWS[grows][what]
    few, many = law.places(len(sizes))
    ratio = statistics.median(row[many] / row[few] for row in rounds)
    return {
        "grows": grows,
        "what": what,
        "sizes": list(sizes),
        "costs_us": [round(statistics.median(side) * 1e6, 2) for side in zip(*rounds, strict=True)],
        "compared": [sizes[few], sizes[many]],
        "ratio": round(ratio, 3),
        "law": law.text(),
        "kept": law.is_kept(ratio, sizes[few], sizes[many]),
    }


def growth_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a report as text, under `GROWTH_COLUMNS`."""
    return [row_for_people(row) for row in report["rows"]]


def row_for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row with its numbers as text, long times in milliseconds."""
    in_ms = max(row["costs_us"]) >= MS_FROM_US
    few, many = row["compared"]
    return {
        **row,
        "sizes": " ".join(f"{size:,}" for size in row["sizes"]),
        "costs": " ".join(f"{cost / 1000 if in_ms else cost:,.1f}" for cost in row["costs_us"]),
        "unit": "ms" if in_ms else "µs",
        "ratio": f"{row['ratio']:.3g} ({many:,} to {few:,})",
        "kept": yes_or_no(row["kept"]),
    }


class Side:
    """One store of one size, and the cost of calls to it."""

    def __init__(self, path: Path, grows: str, size: int, calls: int) -> None:
        self.path = path
        self.topics = [f"{TOPIC}-{number}" for number in range(size if grows == "topics" else 1)]
        self.groups = size if grows == "groups" else 0
        self.delayed = size if grows == "delayed" else 0
        self.chain = size if grows == "chain" else 0
        self.calls = CALLS_WITH_GROUPS if self.groups else calls
        self.choose = random.Random(SEED)
        self.keys = [KEY] if self.chain else []
        self.oldest = 0
        self.woken = threading.Semaphore(0)
        self.store: Store | None = None

    @property
    def opened(self) -> Store:
        """The open store."""
        assert self.store is not None
        return self.store

    def begin(self) -> None:
        """Create the store in its full size."""
        self.path.parent.mkdir(exist_ok=True)
        self.store = reput.open(self.path)
        [first] = self.store.put_batch([self.message(self.topics[0])])
        if self.chain:
            self.settle()
            self.oldest = self.store.get(self.topics[0], 0, first.queue_offset, 1).records[0].store_timestamp
            time.sleep(INDEX_TIME_S)
        # Each topic has a message for a get.
        self.put_all(self.message(topic) for topic in self.topics)
        self.put_all(self.message(self.topics[0]) for _ in range(self.chain))
        self.put_all(reput.Message(TOPIC, BODY, delay_level=DELAY_LEVEL) for _ in range(self.delayed))
        self.settle()

    def put_all(self, messages: Iterable[reput.Message]) -> None:
        """Put *messages* in batches."""
        remaining = iter(messages)
        while batch := list(islice(remaining, BATCH)):
            self.opened.put_batch(batch)

    def message(self, topic: str) -> reput.Message:
        return reput.Message(topic, BODY, keys=self.keys, queue_id=0)

    def settle(self) -> None:
        """Wait until everything is readable and the groups wait."""
        for view in VIEWS:
            self.opened.wait_for(view, self.opened.appended, WAIT_S)
        if self.groups:
            self.hold()

    def end(self) -> None:
        """Close the store if it is open."""
        if self.store is not None:
            self.store.close()

    def call(self, wanted: Iterable[str]) -> dict[str, float]:
        """Return the cost of each of *wanted* that is a call of a thread, in seconds."""
        steps: dict[str, Callable[[], float]] = {
            "put": self.put,
            "get": self.get,
            "query newest": lambda: self.query(TIMESTAMP_MAX),
            "query oldest": lambda: self.query(self.oldest),
        }
        return {what: step() for what, step in steps.items() if what in wanted}

    def ask(self, wanted: Iterable[str]) -> dict[str, float]:
        """Return the cost of each of *wanted* that is a command, in seconds."""
        commands = {"status": ("status",), "topic list": ("topic", "list")}
        return {what: self.command(*verb) for what, verb in commands.items() if what in wanted}

    def open_again(self, wanted: Iterable[str]) -> dict[str, float]:
        """Close and open the store; return the cost of each of *wanted* among these, in seconds."""
        costs = {"close": self.close(), "open": self.open()}
        return {what: cost for what, cost in costs.items() if what in wanted}

    def put(self) -> float:
        """Return the processor time of a put to a random topic."""
        messages = [self.message(self.choose.choice(self.topics)) for _ in range(self.calls)]
        taken = []
        put = self.opened.put
        for message in messages:
            begin = time.thread_time()
            put(message)
            taken.append(time.thread_time() - begin)
            if self.groups:
                self.follow_up()
        self.opened.wait_for("consume_queue", self.opened.appended, WAIT_S)
        return statistics.median(taken)

    def get(self) -> float:
        """Return the processor time of a get of one message; each queue was read since the last put."""
        wanted = [self.choose.choice(self.topics) for _ in range(self.calls)]
        get = self.opened.get
        taken = []
        for topic in wanted:
            get(topic, 0, 0, 1)
        for topic in wanted:
            begin = time.thread_time()
            found = get(topic, 0, 0, 1)
            taken.append(time.thread_time() - begin)
            if len(found.records) != 1:
                raise AssertionError(f"a message is missing: topic={topic}")
        return statistics.median(taken)

    def query(self, end: int) -> float:
        """Return the processor time of a query for the key's newest messages that were stored up to *end*."""
        self.opened.wait_for("index", self.opened.appended, WAIT_S)
        taken = []
        for _ in range(QUERIES):
            begin = time.thread_time()
            found = self.opened.query(self.topics[0], KEY, QUERY_COUNT, end=end)
            taken.append(time.thread_time() - begin)
            if not found:
                raise AssertionError(f"a message is missing: key={KEY}")
        return statistics.median(taken)

    def command(self, *verb: str) -> float:
        """Return the processor time of a command on this store, while this program has it open."""
        arguments = [*REPUT, *verb, str(self.path)]
        program = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env=user_environment())
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
        if program.returncode:
            raise RuntimeError(f"a command failed: command={' '.join(verb)} exit_code={program.returncode}")
        return usage.ru_utime + usage.ru_stime

    def close(self) -> float:
        """Return how long a close takes."""
        begin = time.perf_counter()
        self.opened.close()
        self.store = None
        return time.perf_counter() - begin

    def open(self) -> float:
        """Return how long an opening takes; restore the waiting groups."""
        begin = time.perf_counter()
        self.store = reput.open(self.path)
        taken = time.perf_counter() - begin
        self.settle()
        return taken

    # Waiting groups.

    def hold(self) -> None:
        """Make each group wait for the next message of the first topic."""
        services = self.opened._engine.services
        topic = self.topics[0]
        services.topics.create_or_update(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
        subscription = subscribe(topic)
        _, queue_offset = self.opened.queue_range(topic, 0)
        for number in range(self.groups):
            request = PullRequest(
                group=f"group-{number}", topic=topic, queue_id=0, queue_offset=queue_offset, subscription=subscription
            )
            if services.hold_service.pull(request, WAIT_S, lambda answer: self.woken.release()) is not None:
                raise AssertionError(f"a group does not wait: group={number} queue_offset={queue_offset}")

    def follow_up(self) -> None:
        """Wait until each group is woken, and make all wait for the next message."""
        for _ in range(self.groups):
            if not self.woken.acquire(timeout=WAIT_S):
                raise AssertionError(f"a waiting group was not woken: groups={self.groups}")
        self.hold()
