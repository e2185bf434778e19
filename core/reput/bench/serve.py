"""How fast a broker on this machine serves the Python client, and what its processes take.

    reput serve, a group of processes ◀── remoting on the loopback ──▶ one event loop: producer and consumer

Every message crosses the network twice and is stored in between. Client and broker share the machine's cores, so the
rates are those of the pair.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reput
from reput.bench.machine import group_memory, machine_facts, percentiles
from reput.bench.measured_broker import MeasuredBroker, serving
from reput.bench.scratch import scratch_directory
from reput.bench.serve_neighbours import measure_abuse, measure_idle

if TYPE_CHECKING:
    from reput.client.client import Client

__all__ = ["end_to_end", "measure_serve", "put_in_flight", "put_one_by_one", "receive"]

BATCH = 32
WAIT_S = 60.0
WARM_UP = 2_000
# Of one message after the other, and of messages at a steady rate.
ONE_BY_ONE = 3_000
PER_S = 1_000
# With so many messages, and more, a slice beside other connections takes a second.
SLICE_COUNT = 20_000


def measure_serve(
    directory: Path | None = None, *, count: int = 200_000, body_size: int = 1024, in_flight: int = 256
) -> dict[str, Any]:
    """Measure a broker on a scratch store.

    Args:
        directory: where the scratch store is created and removed; None: the system's temporary directory.
        count: messages of each measurement of a rate.
        in_flight: tasks that put at the same time.
    """
    with scratch_directory(directory) as scratch:
        report: dict[str, Any] = {"bench": "serve", "machine": machine_facts(scratch), "body_size": body_size}
        # The first start compiles modules that an installation has compiled.
        with serving(scratch / "first", scratch / "log"):
            pass
        with serving(scratch / "store", scratch / "log") as served:
            report["ready_ms"] = round(served.ready_ms, 1)
            report |= asyncio.run(measure_client(served, count, bytes(body_size), in_flight))
            report["memory"] = group_memory(served.pids())
            slice_s = min(1.0, count / SLICE_COUNT)
            report["idle"] = asyncio.run(measure_idle(served, slice_s))
            report["abuse"] = asyncio.run(measure_abuse(served, slice_s))
        return report


async def measure_client(served: MeasuredBroker, count: int, body: bytes, in_flight: int) -> dict[str, Any]:
    """Measure with one client in one loop."""
    client = reput.connect(served.name_server)
    try:
        await put_in_flight(client, "warm", WARM_UP, body, in_flight)
        return {
            "aput": await put_in_flight(client, "orders", count, body, in_flight),
            "aput_batch": await put_batches(client, "orders", count, body),
            "one_by_one": await put_one_by_one(client, body),
            "received": await receive(client, "orders", count + count // BATCH * BATCH),
            "end_to_end": await end_to_end(client, body),
        }
    finally:
        await client.aclose()


async def put_in_flight(client: Client, topic: str, count: int, body: bytes, in_flight: int) -> dict[str, Any]:
    """Put from *in_flight* tasks, each of which awaits one put after the other."""
    numbers = iter(range(count))

    async def produce() -> None:
        for _ in numbers:
            await client.aput(reput.Message(topic, body))

    begin = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(in_flight)))
    return {"in_flight": in_flight, "per_s": round(count / (time.perf_counter() - begin))}


async def put_batches(client: Client, topic: str, count: int, body: bytes) -> dict[str, Any]:
    """Put batches, one after the other."""
    begin = time.perf_counter()
    for _ in range(count // BATCH):
        await client.aput_batch([reput.Message(topic, body) for _ in range(BATCH)])
    return {"batch": BATCH, "per_s": round(count // BATCH * BATCH / (time.perf_counter() - begin))}


async def put_one_by_one(client: Client, body: bytes) -> dict[str, Any]:
    """Put one message after the other, and time each."""
    taken = []
    for _ in range(ONE_BY_ONE):
        begin = time.perf_counter()
        await client.aput(reput.Message("singles", body))
        taken.append(time.perf_counter() - begin)
    return {"per_s": round(ONE_BY_ONE / sum(taken)), **percentiles(taken)}


async def receive(client: Client, topic: str, count: int) -> dict[str, Any]:
    """Receive what was put, and acknowledge each message."""
    consumer = await client.aconsumer("bench", topic, in_flight_max=10_000)
    try:
        first = await consumer.areceive(WAIT_S)
        begin = time.perf_counter()
        received = 1
        while received < count:
            record = await consumer.areceive(WAIT_S)
            if record is None:
                raise RuntimeError(f"messages are missing: received={received} count={count}")
            consumer.ack(record)
            received += 1
        seconds = time.perf_counter() - begin
        assert first is not None
        consumer.ack(first)
        return {"count": received, "per_s": round(received / seconds)}
    finally:
        await consumer.aclose()


async def end_to_end(client: Client, body: bytes) -> dict[str, Any]:
    """Put at a steady rate, and time from a put's call until another task has its message."""
    count = 5 * PER_S
    taken: list[float] = []
    called: dict[bytes, float] = {}
    await client.aput(reput.Message("steady", body))
    consumer = await client.aconsumer("steady", "steady", begin="latest")

    async def consume() -> None:
        while len(taken) < count:
            record = await consumer.areceive(WAIT_S)
            now = time.perf_counter()
            if record is None:
                raise RuntimeError(f"messages are missing: received={len(taken)} count={count}")
            at = called.pop(record.body, None)
            if at is not None:
                taken.append(now - at)
            consumer.ack(record)

    async def put(number: int) -> None:
        marked = b"%d" % number + body
        called[marked] = time.perf_counter()
        await client.aput(reput.Message("steady", marked))

    consuming = asyncio.create_task(consume())
    # The consumer has its queues, and waits.
    await asyncio.wait_for(consumer.areceive(1.0), 5.0)
    begin = time.perf_counter()
    puts = []
    for number in range(count):
        # The loop wakes up to a millisecond late; a put that is late makes up for it at once.
        delay = begin + number / PER_S - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        puts.append(asyncio.create_task(put(number)))
    await asyncio.gather(*puts)
    await asyncio.wait_for(consuming, WAIT_S)
    await consumer.aclose()
    return {"per_s": PER_S, **percentiles(taken)}
