"""How fast frames pass through the ring: to one reader process, to many, and to a sleeping one.

The writer's figures are the processor time of its thread, so that they show the cost of publishing regardless of other
load. Readers run in their own processes, started like a supervisor, by exec with the descriptors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reput.bench.machine import machine_facts, percentiles
from reput.errors import RingClosed, RingLapped
from reput.process.frames.frame import batch_frame, decode_frame
from reput.ring import ProgressWaiter, RingMemory, RingReader, RingWriter
from reput_hooks import DispatchColumns
from reput_hooks.dispatch import ROW

__all__ = ["main", "measure_ring"]

REQUESTS_PER_FRAME = 64
# A frame of one put: about 200 bytes with a tag, a key and a unique key.
SMALL_FRAME = bytes(200)
FRAMES_PER_ROUND = 4_000
READERS_MAX = 16


def measure_ring(*, requests: int = 4_000_000, rounds: int = 40, wake_ups: int = 3_000) -> dict[str, Any]:
    """Measure the ring between real processes.

    Args:
        requests: number of requests for the throughput to one reader.
        rounds: how often each number of readers is measured, in turns.
        wake_ups: frames published to a sleeping reader.
    """
    return {
        "bench": "ring",
        "machine": machine_facts(Path.cwd()),
        "to_one_reader": measure_throughput(requests),
        "publish": measure_publishing(rounds),
        "wake": measure_wake_ups(wake_ups),
    }


def open_ring(slot_count: int, capacity: int = 8 << 20) -> tuple[RingMemory, RingWriter]:
    memory = RingMemory.create(capacity, slot_count)
    return memory, RingWriter(memory, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)


@contextmanager
def readers(role: str, memory: RingMemory, slots: range) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run a process of *role* for each of *slots*, until the end of the block."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ring", "--role", role, json.dumps(memory.descriptors), str(slot)],
            pass_fds=memory.descriptors,
        )
        for slot in slots
    ]
    try:
        for process, slot in zip(processes, slots, strict=True):
            wait_until_attached(memory, slot, process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_until_attached(memory: RingMemory, slot: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until *process* has joined the ring as the reader of *slot*.

    Raises:
        RuntimeError: it ended.
    """
    while memory.view(slot).progress is None:
        if process.poll() is not None:
            raise RuntimeError(f"a reader of the benchmark ended: exit_code={process.returncode}")
        time.sleep(0.0005)


def make_columns(request_count: int) -> DispatchColumns:
    """Return the requests of one `put_batch`: one queue, with a unique key and a key each."""
    text = b"7F0000010000071C39D08F5A2B3C0000" + b"order-000017"
    rows = b"".join(
        ROW.pack(1024 * number, number, 0, 1_700_000_000_000, 0, 1024, 0, 0, len(text), 32, 12, -1, -1)
        for number in range(request_count)
    )
    return DispatchColumns([("orders", 3)], rows, text * request_count)


def measure_throughput(requests: int) -> dict[str, Any]:
    """Encode, publish, read and decode frames of 64 requests, without losing any.

    The writer waits for a reader that is half the ring behind; in a real store a lapped reader would catch up.
    """
    memory, writer = open_ring(1)
    waiter = ProgressWaiter(memory)
    columns = make_columns(REQUESTS_PER_FRAME)
    frame_size = len(batch_frame(1, 0, 1, 0, 0, columns))
    frames_ahead = memory.capacity // 2 // frame_size
    frame_count = requests // REQUESTS_PER_FRAME
    with readers("counting", memory, range(1)):
        started = time.perf_counter()
        for number in range(1, frame_count + 1):
            writer.publish(batch_frame(1, number - 1, number, 0, number, columns), number, number)
            if number % 64 == 0 and number > frames_ahead:
                waiter.wait(0, number - frames_ahead, 60)
        waiter.wait(0, frame_count, 60)
        seconds = time.perf_counter() - started
        view = memory.view(0)
        counted, lapped, backstop = view.counters["requests"], view.lapped_count, view.backstop_count
    waiter.close()
    memory.close()
    return {
        "requests": counted,
        "requests_per_frame": REQUESTS_PER_FRAME,
        "frame_bytes": frame_size,
        "seconds": round(seconds, 3),
        "requests_per_second": round(counted / seconds),
        "frames_per_second": round(counted / REQUESTS_PER_FRAME / seconds),
        "lapped": lapped,
        "backstop": backstop,
    }


def measure_publishing(rounds: int) -> dict[str, Any]:
    """Measure the writer's processor time per frame, with readers in different states, in turns.

    Running readers never park; a paused reader is attached but does not read; a stopped one was stopped while parked,
    so that its parked flag is set. Compared runs take place within the same seconds.
    """
    memory, writer = open_ring(READERS_MAX)
    cost: dict[str, list[float]] = {name: [] for name in ("alone", "running_1", "running_16", "paused_16", "parked_16")}

    def publish_round(name: str) -> None:
        before = time.thread_time_ns()
        for _ in range(FRAMES_PER_ROUND):
            writer.publish(SMALL_FRAME, 1, 1)
        cost[name].append((time.thread_time_ns() - before) / FRAMES_PER_ROUND)

    publish_round("alone")
    cost["alone"].clear()
    for _ in range(rounds):
        publish_round("alone")
    with readers("running", memory, range(READERS_MAX)) as processes:
        for _ in range(rounds):
            for name, count in (("running_1", 1), ("running_16", READERS_MAX)):
                for process in processes[1:]:
                    process.send_signal(signal.SIGCONT if count > 1 else signal.SIGSTOP)
                publish_round(name)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        for _ in range(rounds):
            publish_round("paused_16")
    with readers("parking", memory, range(READERS_MAX)) as processes:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        for _ in range(rounds):
            publish_round("parked_16")
    memory.close()
    figures: dict[str, Any] = {f"{name}_ns": round(statistics.median(values)) for name, values in cost.items()}
    figures["running_16_to_1"] = ratio(cost["running_16"], cost["running_1"])
    figures["paused_16_to_alone"] = ratio(cost["paused_16"], cost["alone"])
    figures["frames_per_second"] = round(1e9 / statistics.median(cost["alone"]))
    figures["frame_bytes"] = len(SMALL_FRAME)
    return figures


def ratio(values: list[float], others: list[float]) -> float:
    return round(statistics.median(values) / statistics.median(others), 3)


def measure_wake_ups(wake_ups: int) -> dict[str, Any]:
    """Publish to a sleeping reader, about a thousand frames per second, at random intervals.

    ``to_reader``: from before `publish` until the reader has the frame. ``to_owner``: until the owner, which also
    sleeps, sees the progress that the reader then publishes. ``publish_and_wake_ns`` is processor time of the writer.
    """
    memory, writer = open_ring(1)
    waiter = ProgressWaiter(memory)
    chance = random.Random(1)
    to_reader: list[float] = []
    to_owner: list[float] = []
    cost_ns: list[int] = []
    with readers("parking", memory, range(1)):
        for number in range(1, wake_ups + 1):
            time.sleep(chance.expovariate(1000))
            cost_before, started = time.thread_time_ns(), time.monotonic_ns()
            writer.publish(SMALL_FRAME, number, number)
            cost_ns.append(time.thread_time_ns() - cost_before)
            waiter.wait(0, number, 10)
            to_owner.append((time.monotonic_ns() - started) / 1e9)
            to_reader.append(((memory.view(0).heartbeat_ns or 0) - started) / 1e9)
        backstop = memory.view(0).backstop_count + memory.header.backstop_count
    waiter.close()
    memory.close()
    return {
        "to_reader": percentiles(to_reader),
        "to_owner": percentiles(to_owner),
        "publish_and_wake_ns": round(statistics.median(cost_ns)),
        "backstop": backstop,
    }


def read_counting(reader: RingReader, memory: RingMemory, slot: int) -> None:
    """Decode all frames and count their requests; park between them."""
    cell = memory.open_cell(slot)
    counter = cell.counter("requests")
    cell.set_progress(0, None)
    while True:
        frames = reader.read()
        if frames:
            decoded = [decode_frame(frame) for frame in frames]
            counter.value += sum(len(frame.columns) for frame in decoded)
            cell.set_progress(decoded[-1].end, None)
        else:
            reader.park()


def read_running(reader: RingReader, memory: RingMemory, slot: int) -> None:
    """Read all frames and never park."""
    memory.open_cell(slot).set_progress(0, None)
    while True:
        try:
            reader.read()
        except RingLapped:
            reader.join()


def read_parking(reader: RingReader, memory: RingMemory, slot: int) -> None:
    """Read all frames, report when and up to where, and park."""
    cell = memory.open_cell(slot)
    cell.set_progress(0, None)
    while True:
        try:
            frames = reader.read()
        except RingLapped:
            reader.join()
            continue
        if frames:
            cell.beat()
            cell.set_progress(reader.header.appended or 0, None)
        reader.park()


ROLES = {"counting": read_counting, "running": read_running, "parking": read_parking}


def read(role: str, descriptors: str, slot: int) -> None:
    """Run a reader of the benchmark until it is killed or the ring is closed."""
    memory = RingMemory.from_descriptors(json.loads(descriptors))
    cell = memory.open_cell(slot)
    cell.clear(f"bench-{slot}")
    try:
        ROLES[role](RingReader(memory, cell), memory, slot)
    except RingClosed:
        os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as one JSON object, or run a reader of the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ring", description="Measure frames between processes, through the ring."
    )
    parser.add_argument("--requests", type=int, default=4_000_000, metavar="N", help="requests to one reader")
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="rounds per number of readers")
    parser.add_argument("--wake-ups", type=int, default=3_000, metavar="N", help="frames sent to a sleeping reader")
    parser.add_argument("--role", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.role is not None:
        role, descriptors, slot = asked.role
        read(role, descriptors, int(slot))
        return 0
    print(json.dumps(measure_ring(requests=asked.requests, rounds=asked.rounds, wake_ups=asked.wake_ups)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
