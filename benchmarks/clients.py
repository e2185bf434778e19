"""Brokers through their own Python clients: reput, NATS JetStream, Redis Streams, under the same loops.

                     promise of a put's answer
                     --flush async                                 --flush sync: on the disk
    reput            ASYNC_FLUSH: on the disk within 0.5 s         SYNC_FLUSH
    NATS JetStream   its default: on the disk within 2 min         sync_interval: always
    Redis Streams    appendfsync everysec: on the disk within 1 s  appendfsync always

With all of them, a killed server loses nothing that was answered. Client and server share the machine's cores. Each
message is acknowledged: reput commits the offset of a queue, NATS and Redis get one acknowledgement per message. What
is not installed is left out, and the report says so.

    python -m benchmarks.clients NATS --flush sync --count 2000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import reput
from reput.bench.machine import group_memory, machine_facts
from reput.bench.measured_broker import serving
from reput.bench.scratch import scratch_directory
from reput.bench.serve import WARM_UP, end_to_end, put_in_flight, put_one_by_one, receive

__all__ = ["BROKERS", "LeftOut", "main"]

IN_FLIGHT = 256
# Of the consumers of NATS and Redis: messages that are fetched and acknowledged at once, and held by the program.
FETCH, HELD_MAX = 256, 10_000
READY_S, STOP_S = 30.0, 60.0
TOPICS = ("warm", "orders", "singles", "steady")


class LeftOut(Exception):
    """A broker cannot be measured here."""


class Served(NamedTuple):
    """A running broker: its client, with the methods of reput's that are measured, and its processes."""

    client: Any
    pids: list[int]


class Received(NamedTuple):
    """A message, and what its acknowledgement needs."""

    body: bytes
    handle: Any


class Consumer:
    """Hands out what arrives, and acknowledges in groups; like reput's consumer.

    Args:
        acknowledge: sends the acknowledgements of the given handles.
    """

    def __init__(self, acknowledge: Callable[[list[Any]], Awaitable[None]]) -> None:
        self.arrived: asyncio.Queue[Received] = asyncio.Queue(HELD_MAX)
        self.acknowledge = acknowledge
        self.handles: list[Any] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Awaitable[None]) -> None:
        """Run *work* beside the consumer, until it ends or the consumer is closed."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def areceive(self, timeout: float) -> Received | None:
        try:
            return self.arrived.get_nowait()
        except asyncio.QueueEmpty:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self.arrived.get(), timeout)
        return None

    def ack(self, record: Received) -> None:
        self.handles.append(record.handle)
        if len(self.handles) == FETCH:
            self.begin(self.acknowledge(self.handles))
            self.handles = []

    async def aclose(self) -> None:
        await self.acknowledge(self.handles)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class NatsClient:
    """JetStream through nats-py: a stream in a file for each topic."""

    def __init__(self, nats: Any, connection: Any) -> None:
        self.nats = nats
        self.stream = connection.jetstream()

    async def aput(self, message: reput.Message) -> None:
        await (await self.stream.publish_async(message.topic, message.body))

    async def aconsumer(self, group: str, topic: str, *, begin: str = "earliest", in_flight_max: int = 0) -> Consumer:
        async def acknowledge(messages: list[Any]) -> None:
            for message in messages:
                await message.ack()

        consumer = Consumer(acknowledge)

        async def arrive(message: Any) -> None:
            await consumer.arrived.put(Received(message.data, message))

        policy = self.nats.js.api.DeliverPolicy.NEW if begin == "latest" else self.nats.js.api.DeliverPolicy.ALL
        config = self.nats.js.api.ConsumerConfig(max_ack_pending=HELD_MAX, deliver_policy=policy)
        await self.stream.subscribe(topic, durable=group, cb=arrive, manual_ack=True, config=config)
        return consumer


class RedisClient:
    """Streams through redis-py: each put in flight has a connection of the pool."""

    def __init__(self, connections: Any) -> None:
        self.connections = connections

    async def aput(self, message: reput.Message) -> None:
        await self.connections.xadd(message.topic, {"body": message.body})

    async def aconsumer(self, group: str, topic: str, *, begin: str = "earliest", in_flight_max: int = 0) -> Consumer:
        await self.connections.xgroup_create(topic, group, "$" if begin == "latest" else "0", mkstream=True)

        async def acknowledge(handles: list[Any]) -> None:
            if handles:
                await self.connections.xack(topic, group, *handles)

        async def arrive() -> None:
            while True:
                found = await self.connections.xreadgroup(group, "bench", {topic: ">"}, count=FETCH, block=1_000)
                for _, entries in found or ():
                    for handle, fields in entries:
                        await consumer.arrived.put(Received(fields[b"body"], handle))

        consumer = Consumer(acknowledge)
        consumer.begin(arrive())
        return consumer


@asynccontextmanager
async def reput_served(scratch: Path, *, synchronous: bool) -> AsyncIterator[Served]:
    flush = f"flushDiskType={'SYNC' if synchronous else 'ASYNC'}_FLUSH"
    with serving(scratch / "store", scratch / "log", "--set", flush) as served:
        client = reput.connect(served.name_server)
        try:
            yield Served(client, served.pids())
        finally:
            await client.aclose()


@asynccontextmanager
async def nats_served(scratch: Path, *, synchronous: bool) -> AsyncIterator[Served]:
    nats, program = installed("nats", "nats-server")
    sync = ", sync_interval: always" if synchronous else ""
    config = scratch / "nats.conf"
    config.write_text(f'listen: "127.0.0.1:0"\njetstream {{ store_dir: "{scratch / "store"}"{sync} }}\n')
    checked = subprocess.run([program, "-t", "-c", config], capture_output=True, text=True, check=False)
    if checked.returncode != 0:
        raise LeftOut(f"this nats-server cannot force each message: said={checked.stderr.strip()!r}")
    port = free_port()
    with running([program, "-c", str(config), "-p", str(port)], port, scratch / "log") as pid:
        connection = await nats.connect(f"nats://127.0.0.1:{port}")
        try:
            client = NatsClient(nats, connection)
            for topic in TOPICS:
                await client.stream.add_stream(name=topic, subjects=[topic])
            yield Served(client, [pid])
        finally:
            await connection.close()


@asynccontextmanager
async def redis_served(scratch: Path, *, synchronous: bool) -> AsyncIterator[Served]:
    redis, program = installed("redis.asyncio", "redis-server")
    port = free_port()
    options = {"bind": "127.0.0.1", "port": str(port), "dir": str(scratch), "save": "", "appendonly": "yes"}
    options["appendfsync"] = "always" if synchronous else "everysec"
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    with running([program, *words], port, scratch / "log") as pid:
        pool = redis.BlockingConnectionPool(port=port, max_connections=IN_FLIGHT, timeout=None)
        connections = redis.Redis.from_pool(pool)
        try:
            yield Served(RedisClient(connections), [pid])
        finally:
            await connections.aclose()


Serve = Callable[..., AbstractAsyncContextManager[Served]]
BROKERS: dict[str, Serve] = {"reput": reput_served, "NATS": nats_served, "Redis": redis_served}


def installed(module: str, program: str) -> tuple[Any, str]:
    """Return a client's module and a server's path; one beside the interpreter comes first.

    Raises:
        LeftOut: one of them is missing.
    """
    path = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        raise LeftOut(f"its server is not installed: program={program}")
    try:
        return importlib.import_module(module), path
    except ImportError:
        raise LeftOut(f"its Python client is not installed: module={module}") from None


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[int]:
    """Run a server in a ``with`` block, and yield its process id once it accepts connections."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server is not ready: command={command} said={log.read_text()[-200:]!r}")
            time.sleep(0.01)
        yield process.pid
    finally:
        process.terminate()
        process.wait(STOP_S)


async def measure_client(broker: str, scratch: Path, *, synchronous: bool, count: int, body: bytes) -> dict[str, Any]:
    """Measure one broker on a scratch store."""
    async with BROKERS[broker](scratch, synchronous=synchronous) as (client, pids):
        await put_in_flight(client, "warm", min(WARM_UP, count), body, IN_FLIGHT)
        return {
            "one_by_one": await put_one_by_one(client, body),
            "aput": await put_in_flight(client, "orders", count, body, IN_FLIGHT),
            "received": await receive(client, "orders", count),
            "end_to_end": await end_to_end(client, body),
            "memory": group_memory(pids),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients", description="Measure a broker through its own Python client."
    )
    parser.add_argument("broker", choices=BROKERS)
    parser.add_argument("--flush", choices=("async", "sync"), default="async", help="what a put's answer promises")
    parser.add_argument("--count", type=int, default=100_000, metavar="N", help="messages of each rate")
    parser.add_argument("--size", type=int, default=1024, metavar="B", help="body size in bytes")
    asked = parser.parse_args(arguments)
    synchronous = asked.flush == "sync"
    with scratch_directory(None) as scratch:
        report: dict[str, Any] = {"bench": "clients", "machine": machine_facts(scratch), "body_size": asked.size}
        report["synchronous"] = synchronous
        try:
            report |= asyncio.run(
                measure_client(
                    asked.broker, scratch, synchronous=synchronous, count=asked.count, body=bytes(asked.size)
                )
            )
        except LeftOut as reason:
            report["left_out"] = f"{asked.broker} is not measured, --flush {asked.flush}: {reason}"
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
