"""How consumers wait: in threads, in tasks, and until their end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading

import pytest

import reput
from consume.groups.consuming import WAIT_S, bodies_of, offsets, put
from delivering import wait_until
from reput.consume.groups.consumer_group import ConsumerGroup
from reput.consume.pull import loop_arrivals
from reput.errors import ConfigError, StoreClosed


@pytest.fixture
def directory(tmp_path):
    """The store's directory."""
    return tmp_path / "store"


@pytest.fixture
def store(directory):
    """A store whose dispatchers run on a thread of the test."""
    with reput.open(directory, mode="inline", mapped_file_size_commit_log=1 << 16) as opened:
        yield opened


def test_a_task_that_waits_keeps_its_consumer(store):
    """Even if the program refers to neither: a waiting task of a temporary consumer continues."""
    bodies = []

    async def work() -> None:
        async with store.consumer("billing", "orders") as consumer:
            async for record in consumer:
                consumer.acknowledge(record)
                bodies.append(record.body)
                if record.body == b"last":
                    return

    async def begin() -> None:
        asyncio.create_task(work())  # noqa: RUF006
        await asyncio.sleep(0)
        gc.collect()
        put(store, "first", "last")
        async with asyncio.timeout(WAIT_S):
            while b"last" not in bodies:
                await asyncio.sleep(0.001)
            assert not any(member.tasks for member in store._engine.services.consumer_groups["billing"].members)

    asyncio.run(begin())
    assert bodies == [b"first", b"last"]


def test_a_consumer_waits_for_a_message(store):
    """A put wakes it."""
    group = None

    def put_when_it_waits() -> None:
        wait_until(lambda: group.thread_count == 1)
        put(store, "late")

    with store.consumer("billing", "orders") as consumer:
        group = store._engine.services.consumer_groups["billing"]
        thread = threading.Thread(target=put_when_it_waits)
        thread.start()
        assert bodies_of(consumer, 1) == ["late"]
        thread.join()


def test_a_topic_may_come_later_than_its_consumer(store):
    """So may additional queues."""
    with store.consumer("billing", "orders", begin="latest") as consumer:
        put(store, "first", queue_id=0)
        assert bodies_of(consumer, 1) == ["first"]
        put(store, "second", queue_id=5)
        assert bodies_of(consumer, 1) == ["second"]


def test_tasks_receive_too(store):
    """Without blocking the loop."""

    async def main() -> list[str]:
        bodies = []
        async with store.consumer("billing", "orders") as consumer:
            assert await consumer.areceive(timeout=0.01) is None

            async def later() -> None:
                while not store._engine.services.consumer_groups["billing"].members[0].tasks:
                    await asyncio.sleep(0.001)
                put(store, "a", "b", "c")

            task = asyncio.create_task(later())
            async for record in consumer:
                bodies.append(record.body.decode())
                consumer.acknowledge(record)
                if len(bodies) == 3:
                    break
            await task
        return bodies

    assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == ["a", "b", "c"]


@pytest.mark.parametrize("timeout", [0, -1, 0.0])
def test_who_does_not_wait_is_told_at_once(store, timeout):
    """Threads and tasks; an invalid time limit is refused, and an infinite one is no limit."""
    with store.consumer("billing", "orders") as consumer:
        assert consumer.receive(timeout) is None
        assert asyncio.run(consumer.areceive(timeout)) is None
        thread = threading.Timer(0.05, put, (store, "a", "b"))
        thread.start()
        assert consumer.receive(float("inf")).body == b"a"
        thread.join()
        store.wait_for("consume_queue", store.appended, WAIT_S)
        for wrong in ("1", True, float("nan")):
            with pytest.raises(ConfigError, match="timeout="):
                consumer.receive(wrong)
            with pytest.raises(ConfigError, match="timeout="):
                asyncio.run(consumer.areceive(wrong))
        assert consumer.receive(0).body == b"b"


def test_a_task_that_gives_up_loses_nothing(store):
    """Regardless of when it is cancelled, each message is delivered exactly once."""

    async def work(consumer):
        bodies = []
        for number in range(40):
            task = asyncio.create_task(consumer.areceive(WAIT_S))
            for _ in range(number % 3):
                await asyncio.sleep(0)
            put(store, str(number))
            store.wait_for("consume_queue", store.appended, WAIT_S)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(found, asyncio.CancelledError):
                consumer.acknowledge(found)
                bodies.append(int(found.body))
        while len(bodies) < 40:
            found = await consumer.areceive(WAIT_S)
            consumer.acknowledge(found)
            bodies.append(int(found.body))
        return bodies

    with store.consumer("billing", "orders") as consumer:
        assert asyncio.run(work(consumer)) == list(range(40))
        assert not store._engine.services.consumer_groups["billing"].members[0].tasks


def test_a_loop_may_be_left_early(store):
    """Its messages are still in flight, and the next loop continues after them, also in another event loop."""
    put(store, "a", "b", "c")

    async def first(consumer):
        async for record in consumer:
            return record
        return None

    with store.consumer("billing", "orders") as consumer:
        records = [asyncio.run(first(consumer)) for _ in range(3)]
        assert [record.body for record in records] == [b"a", b"b", b"c"]
        for record in reversed(records):
            consumer.acknowledge(record)
    assert store._engine.services.managers.offsets.query_offset("billing", "orders", 0) == 3


def test_whoever_waits_is_told_of_the_consumers_end(store):
    """A thread, and tasks of two loops, one of which ended without closing; later waits end, too."""
    consumer = store.consumer("billing", "orders")
    told = []
    waiting = threading.Barrier(3)

    def wait_in_a_loop():
        async def work():
            task = asyncio.create_task(consumer.areceive())
            await asyncio.sleep(0)
            waiting.wait(WAIT_S)
            with pytest.raises(StoreClosed) as closed:
                await task
            told.append(str(closed.value))

        asyncio.run(work())

    def wait_in_the_thread():
        waiting.wait(WAIT_S)
        with pytest.raises(StoreClosed) as closed:
            consumer.receive()
        told.append(str(closed.value))

    ended = asyncio.new_event_loop()
    store._engine.services.consumer_groups["billing"].members[0].tasks.append((ended, ended.create_future()))
    ended.close()
    threads = [threading.Thread(target=target) for target in (wait_in_a_loop, wait_in_the_thread)]
    for thread in threads:
        thread.start()
    waiting.wait(WAIT_S)
    consumer.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert told == ["the consumer is closed: group='billing'"] * 2
    with pytest.raises(StoreClosed, match="the consumer is closed"):
        consumer.receive(timeout=0)
    with pytest.raises(StoreClosed, match="the consumer is closed"):
        asyncio.run(consumer.areceive(timeout=0))
    assert list(consumer) == []


def test_a_consumer_that_acknowledges_nothing_waits(store, caplog):
    """It logs this once, and continues after an acknowledgement."""
    put(store, *"abcd")
    with store.consumer("billing", "orders", in_flight_max=2) as consumer:
        first = consumer.receive(WAIT_S)
        consumer.receive(WAIT_S)
        assert consumer.receive(timeout=0.01) is None
        assert caplog.text.count("waits for acknowledgements") == 1
        consumer.acknowledge(first)
        assert consumer.receive(WAIT_S).body == b"c"


def test_the_loop_of_a_consumer_ends_with_the_store(directory):
    """Waiting consumers are woken, and acknowledged messages are committed."""
    with reput.open(directory, mode="inline") as store:
        put(store, "a")
        consumer = store.consumer("billing", "orders")
        bodies: list[bytes] = []

        def work() -> None:
            for record in consumer:
                bodies.append(record.body)
                consumer.acknowledge(record)
                read.set()

        read = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        assert read.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert bodies == [b"a"]
    assert offsets(directory, "billing") == {0: 1}


def test_a_view_that_goes_back_before_it_is_read_keeps_no_consumer_waiting(store, monkeypatch):
    """Its builder was killed right after showing the message; the next builder shows it again."""
    reader = store._engine.services.group_reader
    get, results = reader.get, []

    def note(*arguments):
        results.append(get(*arguments))
        return results[-1]

    def read_later(*arguments):
        return results.pop() if results else get(*arguments)

    with store.consumer("billing", "orders") as consumer:
        put(store, "a")
        assert bodies_of(consumer, 1) == ["a"]
        monkeypatch.setattr(reader, "get", note)
        assert consumer.receive(0) is None
        del results[:-1]
        assert results
        monkeypatch.setattr(reader, "get", read_later)
        put(store, "b")
        assert bodies_of(consumer, 1) == ["b"]
        assert not results


@pytest.mark.processes
def test_a_killed_dispatcher_holds_a_consumer_up_for_a_moment(directory):
    """Every message comes once, in order, while the queue's builder is killed repeatedly."""
    with reput.open(directory, dispatchers=["consume_queue"]) as store, store.consumer("billing", "orders") as consumer:
        for number in range(12):
            put(store, str(number))
            if number % 4 == 1:
                (row,) = store.status().dispatchers
                if row.pid is not None:
                    os.kill(row.pid, signal.SIGKILL)
            assert bodies_of(consumer, 1) == [str(number)]
    assert offsets(directory, "billing") == {0: 12}


@pytest.mark.processes
def test_a_loop_whose_tasks_alone_wait_needs_no_thread(directory, monkeypatch):
    """It learns of messages itself; a thread that starts to wait is still notified."""
    told_by = []
    grown = ConsumerGroup.grown

    def note(self, queues):
        told_by.append(threading.current_thread().name)
        grown(self, queues)

    monkeypatch.setattr(ConsumerGroup, "grown", note)
    # A loop hands long waits over to the thread.
    monkeypatch.setattr(loop_arrivals, "WAIT_S", WAIT_S)

    async def receive_one(store, consumer, text):
        task = asyncio.create_task(consumer.areceive(WAIT_S))
        while not store._engine.services.consumer_groups["billing"].members[0].tasks:
            # It looks in its queues first.
            await asyncio.sleep(0)
        put(store, text)
        record = await task
        consumer.acknowledge(record)
        return record.body.decode()

    def put_later(store, consumer, text):
        def is_waited_for():
            # A consumer that is about to wait holds the lock until it waits.
            group = store._engine.services.consumer_groups["billing"]
            with group.lock:
                return group.thread_count == 1

        wait_until(is_waited_for)
        put(store, text)

    with reput.open(directory, dispatchers=["consume_queue"]) as store, store.consumer("billing", "orders") as consumer:
        # The first put makes the topic's queues known.
        assert asyncio.run(receive_one(store, consumer, "first")) == "first"
        told_by.clear()
        assert asyncio.run(receive_one(store, consumer, "second")) == "second"
        assert set(told_by) == {"MainThread"}
        thread = threading.Thread(target=put_later, args=(store, consumer, "third"))
        thread.start()
        assert bodies_of(consumer, 1) == ["third"]
        thread.join()
        assert told_by[-1] == "reput-hold"
