"""What a broker's other connections cost a well-behaved client: thousands that are idle, and some that misbehave.

    client, 1,000 puts a second ──▶ broker ◀── idle connections, or a process that breaks the protocol

Slices with and without the neighbours alternate, so that other load on the machine counts on both sides.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import reput
from reput.bench.abuser import ACTIVE, PAUSED, connected
from reput.bench.machine import group_memory, percentiles
from reput.bench.user_command import user_environment

if TYPE_CHECKING:
    from reput.bench.measured_broker import MeasuredBroker
    from reput.client.client import Client

__all__ = ["measure_abuse", "measure_idle"]

WAIT_S = 60.0
PER_S = 1_000
IDLE_CONNECTIONS = 2_000
# Slices without neighbours, and as many with them, in turns.
SLICES = 4


async def measure_idle(served: MeasuredBroker, slice_s: float) -> dict[str, Any]:
    """Measure what connections without requests take, and how many fewer messages are put beside them.

    Args:
        slice_s: seconds of one slice.
    """
    before = group_memory(served.pids())["anonymous_bytes"]
    client = reput.connect(served.name_server)
    try:
        await put_for(client, slice_s)
        alone, beside, memory = [], [], 0
        for _ in range(SLICES):
            alone.append(await put_for(client, slice_s))
            with idle_connections(served.broker):
                # A request behind them is answered when all are accepted.
                await client.aput(reput.Message("warm", b"behind"))
                memory = group_memory(served.pids())["anonymous_bytes"] - before
                beside.append(await put_for(client, slice_s))
        alone_per_s, beside_per_s = statistics.median(alone), statistics.median(beside)
        return {
            "connections": IDLE_CONNECTIONS,
            "anonymous_bytes": memory,
            "one_by_one_per_s": round(beside_per_s),
            "loss_percent": round(100 * (1 - beside_per_s / alone_per_s), 1),
        }
    finally:
        await client.aclose()


async def put_for(client: Client, seconds: float) -> float:
    """Put one message after the other; return how many in a second."""
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        await client.aput(reput.Message("singles", b"beside"))
        count += 1
    return count / (time.perf_counter() - begin)


@contextmanager
def idle_connections(broker: str) -> Iterator[None]:
    """Hold connections that send nothing."""
    sockets = []
    try:
        for _ in range(IDLE_CONNECTIONS):
            sockets.append(connected(broker))
        yield
    finally:
        for idle in sockets:
            idle.close()


async def measure_abuse(served: MeasuredBroker, slice_s: float) -> dict[str, Any]:
    """Measure the puts of a client beside a process that breaks the protocol in many ways.

    Args:
        slice_s: seconds of one slice.
    """
    abuser = subprocess.Popen(
        [sys.executable, "-m", "reput.bench.abuser", served.broker], stdin=subprocess.PIPE, env=user_environment()
    )
    assert abuser.stdin is not None
    client = reput.connect(served.name_server)
    try:
        await put_steadily(client, slice_s)
        alone: list[float] = []
        beside: list[float] = []
        for number in range(2 * SLICES):
            abuser.stdin.write(ACTIVE if number % 2 else PAUSED)
            abuser.stdin.flush()
            (beside if number % 2 else alone).extend(await put_steadily(client, slice_s))
        without, with_abuse = percentiles(alone), percentiles(beside)
        return {
            "per_s": PER_S,
            "alone": without,
            "beside": with_abuse,
            "p99_percent": round(100 * (with_abuse["p99_us"] / without["p99_us"] - 1), 1),
        }
    finally:
        await client.aclose()
        abuser.stdin.close()
        abuser.wait(WAIT_S)


async def put_steadily(client: Client, seconds: float) -> list[float]:
    """Put at a steady rate; return the seconds that each put took."""
    taken = []

    async def put() -> None:
        at = time.perf_counter()
        await client.aput(reput.Message("steady", b"beside"))
        taken.append(time.perf_counter() - at)

    begin = time.perf_counter()
    puts = []
    for number in range(round(PER_S * seconds)):
        delay = begin + number / PER_S - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        puts.append(asyncio.create_task(put()))
    await asyncio.gather(*puts)
    return taken
