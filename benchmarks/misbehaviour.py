"""What misbehaving dispatchers cost a put, compared with an unrelated program that uses as much processor time.

A misbehaving dispatcher may cost its share of the processors and nothing else. Each kind has two alternating runs, both
with the same steady rate of puts and with consume queue and index attached::

    the dispatcher, killed again and again, crashing, stopped, ten times too slow, leaking, or shouting
    no such dispatcher, but a program that burns the processor time that the group used beyond a calm run

The comparison uses the medians of the 99th percentiles of `put`. The program is as unrelated to the writer as the group
is: it has its own session, to which the scheduler gives its own share. Faults from outside come at a random moment
between two puts: immediately before each put, they would distort the measured put itself.

    python -m benchmarks.misbehaviour --seconds 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import reput
from reput.bench.dispatch import installed
from reput.bench.machine import machine_facts, percentiles, processor_time
from reput.bench.scratch import scratch_directory
from reput.embedded.store import Store
from reput.process.owner.process_group import ProcessGroup

__all__ = ["KINDS", "main", "measure_misbehaviour"]

VIEWS = ("consume_queue", "index")
KINDS = ("kill", "crash_loop", "stop", "slow", "leak", "shout")
ROUNDS = 5
SEED = 4711
KILL_EVERY_S = 0.1
STARTED_WAIT_S = 30.0
LOOK_S = 0.002
BURN_SLICE_S = 0.01
# Duration of the first, unmeasured puts: one group has just started one process more than the other.
WARM_UP_S = 0.3

# The module's name contains the kind, one of KINDS: `reput_bench_` plus the kind.
PLUGIN_SOURCE = """
import time

from reput_hooks import CommitLogDispatcher, DispatcherDescription, hookimpl

KIND = __name__.removeprefix("reput_bench_")
# Ten times as long as it takes until the next record comes.
SLOW_S = 10 / {rate}
LEAK_BYTES = 1 << 16
SHOUT = "rubbish" * 10
SHOUTS = 100


class Misbehaving(CommitLogDispatcher):
    def __init__(self):
        self.leaked = []

    def dispatch(self, batch):
        if KIND == "crash_loop":
            raise ValueError("this dispatcher crashes at each batch")
        if KIND == "slow":
            end = time.perf_counter() + SLOW_S * len(batch)
            while time.perf_counter() < end:
                pass
        if KIND == "shout":
            for _ in range(SHOUTS * len(batch)):
                print(SHOUT)
        if KIND == "leak":
            self.leaked.append(b"x" * LEAK_BYTES * len(batch))


@hookimpl
def reput_create_dispatcher(context):
    return Misbehaving()


@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(reads="appended")
"""


def plugin_source(rate: int) -> str:
    """Return the source of a dispatcher that misbehaves at this rate of records per second."""
    return PLUGIN_SOURCE.replace("{rate}", str(rate))


BURNER = """
import sys, time
share, slice_s = float(sys.argv[1]), float(sys.argv[2])
print(flush=True)
while True:
    end = time.process_time() + share * slice_s
    begin = time.perf_counter()
    while time.process_time() < end:
        pass
    time.sleep(max(0.0, slice_s - (time.perf_counter() - begin)))
"""


class Puts(NamedTuple):
    """The puts of one run: messages per second, and seconds."""

    rate: int
    seconds: float
    body: bytes


def measure_misbehaviour(
    directory: Path | None = None, *, rate: int = 1_000, seconds: float = 1.0, body_size: int = 1024
) -> dict[str, Any]:
    """Measure every kind.

    Args:
        directory: where scratch stores are made and removed; None: the system's temporary directory.
        rate: puts per second.
        seconds: duration of one run; each kind has ten runs.
    """
    with scratch_directory(directory) as scratch:
        facts = {"bench": "misbehaviour", "machine": machine_facts(scratch), "body_size": body_size}
        with installed(scratch / "plugins", dict.fromkeys(KINDS, plugin_source(rate))):
            return facts | compare_kinds(scratch, Puts(rate, seconds, bytes(body_size)))


def compare_kinds(scratch: Path, plan: Puts) -> dict[str, Any]:
    """Return the percentiles of every kind and of its burner."""
    with open_group(scratch / "calm", VIEWS) as store:
        calm = run_puts(store, plan)
    kinds: list[dict[str, Any]] = []
    for kind in KINDS:
        puts: list[float] = []
        beside: list[float] = []
        burnt: list[float] = []
        for number in range(ROUNDS):
            path = scratch / f"{kind}-{number}"
            # The order alternates, because each run leaves work to the disk that slows the next one; the first round
            # determines how much to burn.
            if number % 2:
                beside.append(run_beside_burner(path, burnt[-1], plan)["p99_us"])
            run = run_beside_fault(path.with_name(f"{path.name}-fault"), kind, plan)
            puts.append(run["p99_us"])
            burnt.append(max(0.0, (run["group_cpu_s"] - calm["group_cpu_s"]) / plan.seconds))
            if not number % 2:
                beside.append(run_beside_burner(path, burnt[-1], plan)["p99_us"])
        p99, reference_p99 = statistics.median(puts), statistics.median(beside)
        kinds.append(
            {
                "kind": kind,
                "put_p99_us": p99,
                "beside_burner_p99_us": reference_p99,
                "difference_percent": round((p99 / reference_p99 - 1) * 100, 1),
                "processor_share": round(statistics.median(burnt), 3),
            }
        )
    return {
        "rate": plan.rate,
        "seconds": plan.seconds,
        "rounds": ROUNDS,
        "calm_put_p99_us": calm["p99_us"],
        "kinds": kinds,
        "difference_percent_max": max(row["difference_percent"] for row in kinds),
    }


def run_beside_fault(path: Path, kind: str, plan: Puts) -> dict[str, float]:
    """Put beside the misbehaving dispatcher."""
    with open_group(path, (*VIEWS, kind)) as store:
        run = run_puts(store, plan, begin_misbehaving(store, kind))
        end_process(store, kind)
        return run


def run_beside_burner(path: Path, share: float, plan: Puts) -> dict[str, float]:
    """Put beside an unrelated program that takes *share* of one processor."""
    with open_group(path, VIEWS) as store, burning(share):
        return run_puts(store, plan)


@contextlib.contextmanager
def open_group(path: Path, dispatchers: tuple[str, ...]) -> Iterator[Store]:
    """Open a new store and wait until all its dispatchers have started."""
    with reput.open(path, dispatchers=dispatchers) as store:
        deadline = time.monotonic() + STARTED_WAIT_S
        while any(row.pid is None or row.progress is None for row in store.status().dispatchers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"dispatchers do not start: store={path}")
            time.sleep(LOOK_S)
        yield store


def run_puts(store: Store, plan: Puts, act: Callable[[], None] | None = None) -> dict[str, float]:
    """Put at a steady rate; return the put times after the warm-up, and the group's processor time meanwhile.

    *act* is called repeatedly, at random moments between two puts.
    """
    put_steadily(store, plan._replace(seconds=WARM_UP_S), act)
    cpu_before = group_cpu_s(store)
    took = put_steadily(store, plan, act)
    return {**percentiles(took), "group_cpu_s": group_cpu_s(store) - cpu_before}


def put_steadily(store: Store, plan: Puts, act: Callable[[], None] | None) -> list[float]:
    """Put according to *plan*, and return how many seconds each put took."""
    clock, message, moments = time.perf_counter, reput.Message, random.Random(SEED)
    took: list[float] = []
    begin = clock()
    for number in range(int(plan.rate * plan.seconds)):
        due = begin + number / plan.rate
        sleep_until(due - moments.random() / plan.rate)
        if act is not None:
            act()
        sleep_until(due)
        called = clock()
        store.put(message("bench", plan.body, tags="tag", keys=[f"key-{number}"]))
        took.append(clock() - called)
    return took


def sleep_until(moment: float) -> None:
    """Sleep until the performance counter reaches *moment*."""
    wait = moment - time.perf_counter()
    if wait > 0:
        time.sleep(wait)


def group_cpu_s(store: Store) -> float:
    """Return the processor time of supervisor and dispatchers so far, including ended ones."""
    group = store._engine.group
    assert isinstance(group, ProcessGroup)
    assert group.process is not None
    supervisor = group.process.pid
    total = processor_time(supervisor, with_children=True)
    for pid in store.pids():
        if pid not in (os.getpid(), supervisor):
            # It may have just ended; from the next call on it is included in its supervisor's time.
            with contextlib.suppress(OSError):
                total += processor_time(pid)
    return total


def begin_misbehaving(store: Store, kind: str) -> Callable[[], None] | None:
    """Inject the faults that the dispatcher cannot cause itself; return the action to repeat."""
    if kind == "stop":
        send(store, kind, signal.SIGSTOP)
    if kind != "kill":
        return None
    due = time.monotonic()

    def kill() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + KILL_EVERY_S
            send(store, kind, signal.SIGKILL)

    return kill


def send(store: Store, name: str, number: signal.Signals) -> None:
    """Send a signal to the process of a dispatcher, if one runs."""
    group = store._engine.group
    assert isinstance(group, ProcessGroup)
    pid = group.cell(name).pid
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_process(store: Store, name: str) -> None:
    """End a dispatcher that would not drain, so that no close waits for it."""
    group = store._engine.group
    assert isinstance(group, ProcessGroup)
    group.request("pause", name)
    send(store, name, signal.SIGKILL)


@contextlib.contextmanager
def burning(share: float) -> Iterator[None]:
    """Run an unrelated program that takes *share* of one processor; above 1, several programs."""
    shares = [min(1.0, share - whole) for whole in range(int(share) + 1)]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", BURNER, str(part), str(BURN_SLICE_S)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for part in shares
        if part > 0
    ]
    try:
        for program in programs:
            assert program.stdout is not None
            program.stdout.readline()
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
            assert program.stdout is not None
            program.stdout.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.misbehaviour", description="Measure puts beside misbehaving dispatchers."
    )
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="duration of each of the sixty runs")
    parser.add_argument("--rate", type=int, default=1_000, metavar="R", help="puts per second")
    parser.add_argument("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    asked = parser.parse_args(arguments)
    print(json.dumps(measure_misbehaviour(asked.directory, rate=asked.rate, seconds=asked.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
