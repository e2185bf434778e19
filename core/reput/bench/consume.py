"""How fast messages are consumed in the program that puts them, and the cost of waiting consumers.

Rates are for one consumer that acknowledges each message. "Put to received" is measured in another task, from the
return (and separately from the call) of the put to the return of the consumer's call; "put to woken" from before the
put to the call of the waiting pull. The first put to a queue is reported separately, because its wait includes
creating the queue's files.
"""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reput
from reput.bench.machine import machine_facts, percentiles
from reput.bench.scratch import scratch_directory
from reput.consume.pull.pull_service import PullRequest
from reput.consume.registry.subscription import subscribe
from reput.store.config.topic_config_manager import TopicConfig

if TYPE_CHECKING:
    from reput.consume.groups.consumer import Consumer

__all__ = ["measure_consume"]

PUT_BATCH = 64
# One in this many messages has the wanted tag.
WANTED_ONE_IN = 100
PUTS_PER_S = 1000
WAITING_QUEUES = 1000
WAITING_EACH = 10
HOLD_S = 3600.0
WAIT_S = 60.0
# Messages that are due in an hour, while others become due one by one.
DELAYED_WAITING = 100_000
DELAYED_COUNT = 500
DELAYED_PER_S = 200
DELAY_LEVELS = "1s 1h"
DUE_MS = 1000


def measure_consume(
    directory: Path | None = None,
    *,
    count: int = 300_000,
    body_size: int = 1024,
    wake_ups: int = 3000,
    delayed: int = DELAYED_WAITING,
) -> dict[str, Any]:
    """Measure consuming *count* messages, *wake_ups* wake-ups of pulls, and deliveries beside *delayed* others."""
    body = bytes(body_size)
    with scratch_directory(directory) as scratch:
        with reput.open(scratch / "store", dispatchers=["consume_queue"]) as store:
            for first in range(0, count, PUT_BATCH):
                store.put_batch(
                    [
                        reput.Message("bench", body, tags="no" if number % WANTED_ONE_IN else "yes")
                        for number in range(first, min(first + PUT_BATCH, count))
                    ]
                )
            store.wait_for("consume_queue", store.appended, timeout=120)
            with store.consumer("all", "bench") as consumer:
                everything = seconds_for(consumer, count)
            with store.consumer("few", "bench", "yes") as consumer:
                few = seconds_for(consumer, -(-count // WANTED_ONE_IN))
            received, from_call = asyncio.run(put_to_received(store, body, wake_ups))
            memory, woken_first, woken = held_pulls(store, body, wake_ups)
        with reput.open(scratch / "delays", dispatchers=["consume_queue"], message_delay_level=DELAY_LEVELS) as store:
            late = delivered_late(store, body, delayed)
            return {
                "bench": "consume",
                "machine": machine_facts(scratch),
                "count": count,
                "body_size": body_size,
                "consumed_per_s": round(count / everything),
                "units_passed_by_tag_per_s": round(count / few),
                "put_to_received": {
                    **percentiles(received),
                    **{f"from_call_{name}": value for name, value in percentiles(from_call).items()},
                },
                "held_pulls": WAITING_QUEUES * WAITING_EACH,
                "bytes_per_held_pull": memory,
                "put_to_woken": percentiles(woken),
                "put_to_woken_by_first": percentiles(woken_first),
                "delayed_waiting": delayed,
                "delivered_late": percentiles(late),
            }


def seconds_for(consumer: Consumer, count: int) -> float:
    """Return how long consuming *count* messages takes."""
    begin = time.perf_counter()
    for _ in range(count):
        record = consumer.receive(WAIT_S)
        assert record is not None
        consumer.ack(record)
    return time.perf_counter() - begin


async def put_to_received(store: reput.Store, body: bytes, count: int) -> tuple[list[float], list[float]]:
    """Return how long each of *count* messages took to reach another task, at a steady rate of puts.

    From the put's return, and from its call: a dispatcher on the putting thread's processor works in between.
    """
    called: list[float] = []
    returned: list[float] = []
    received: list[float] = []
    async with store.consumer("live", "live") as consumer:

        async def receive() -> None:
            for _ in range(count):
                record = await consumer.areceive(WAIT_S)
                assert record is not None
                received.append(time.perf_counter())
                consumer.ack(record)

        task = asyncio.create_task(receive())
        for _ in range(count):
            await asyncio.sleep(1 / PUTS_PER_S)
            called.append(time.perf_counter())
            store.put(reput.Message("live", body))
            returned.append(time.perf_counter())
        await asyncio.wait_for(task, WAIT_S)
    return (
        [at - before for at, before in zip(received, returned, strict=True)],
        [at - before for at, before in zip(received, called, strict=True)],
    )


def held_pulls(store: reput.Store, body: bytes, count: int) -> tuple[int, list[float], list[float]]:
    """Hold pulls on many queues.

    Returns:
        bytes per pull; for each pull, how long the first put to its queue took to wake it, including the creation of
        the queue's files; how long *count* further puts took.
    """
    services = store._engine.services
    services.topics.create_or_update(
        TopicConfig(topic_name="held", read_queue_nums=WAITING_QUEUES, write_queue_nums=WAITING_QUEUES)
    )
    subscription = subscribe("held")
    woken = threading.Semaphore(0)
    woken_at: list[float] = []

    def wake(answer: object) -> None:
        woken_at.append(time.perf_counter())
        woken.release()

    def hold(queue_id: int, queue_offset: int) -> None:
        request = PullRequest(
            group="held", topic="held", queue_id=queue_id, queue_offset=queue_offset, subscription=subscription
        )
        assert services.hold_service.pull(request, HOLD_S, wake) is None

    for queue_id in range(WAITING_QUEUES):
        # State of a queue that exists with or without a waiting pull.
        store.queue_range("held", queue_id)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(WAITING_QUEUES * WAITING_EACH):
        hold(number % WAITING_QUEUES, 0)
    memory = (tracemalloc.get_traced_memory()[0] - before) // (WAITING_QUEUES * WAITING_EACH)
    tracemalloc.stop()
    taken: list[float] = []
    for number in range(WAITING_QUEUES + count):
        queue_id, queue_offset = number % WAITING_QUEUES, number // WAITING_QUEUES
        woken_at.clear()
        begin = time.perf_counter()
        store.put(reput.Message("held", body, queue_id=queue_id))
        for _ in range(WAITING_EACH):
            assert woken.acquire(timeout=WAIT_S)
        taken += [at - begin for at in woken_at]
        for _ in range(WAITING_EACH):
            hold(queue_id, queue_offset + 1)
    first_count = WAITING_QUEUES * WAITING_EACH
    return memory, taken[:first_count], taken[first_count:]


def delivered_late(store: reput.Store, body: bytes, count: int) -> list[float]:
    """Return for each of some delayed messages how late it was received, while *count* others wait."""
    for first in range(0, count, PUT_BATCH):
        waiting = min(PUT_BATCH, count - first)
        store.put_batch([reput.Message("delayed", body, delay_level=2)] * waiting)
    store.wait_for("consume_queue", store.appended, timeout=WAIT_S)
    late: list[float] = []

    def receive() -> None:
        for _ in range(DELAYED_COUNT):
            record = consumer.receive(WAIT_S)
            assert record is not None
            late.append(max(0.0, time.time() - (record.born_timestamp + DUE_MS) / 1000))
            consumer.ack(record)

    with store.consumer("delayed", "delayed") as consumer:
        thread = threading.Thread(target=receive)
        thread.start()
        pace = threading.Event()
        for _ in range(DELAYED_COUNT):
            store.put(reput.Message("delayed", body, delay_level=1))
            pace.wait(1 / DELAYED_PER_S)
        thread.join()
    return late
