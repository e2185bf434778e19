"""No coroutine blocks its event loop: other tasks go on while the disk does not answer and another thread reads."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import reput
from reput.in_thread import in_thread
from reput.store.config.topic_config_manager import TopicConfig

LIMIT_S = 60.0
TURNS = 20


async def receive(store):
    async with await store.aconsumer("billing", "orders") as consumer:
        record = await consumer.areceive(LIMIT_S)
        await consumer.anack(record)
        await consumer.acommit()
        await consumer.aseek("orders", 0, 0)
        await consumer.arewind()
        consumer.ack(await anext(consumer))


async def transact(store):
    transactions = await store.atransactions()
    half = await transactions.aput_half("shop", reput.Message("orders", b"half"))
    await transactions.arollback(half)
    await transactions.acommit(await transactions.aput_half("shop", reput.Message("orders", b"half")))


async def administer(store):
    administration = await store.aadministration()
    await administration.acreate_topic("invoices", 2)
    await administration.atopic_names()
    await administration.atopic_stats("orders")
    async with await store.aconsumer("shipping", "orders") as consumer:
        await consumer.acommit()
    await administration.agroup_progress("shipping")
    await administration.aprogress_of_groups()
    await administration.areset_offsets("shipping", "orders", "earliest")
    await administration.aclean_offsets()
    await administration.adelete_group("shipping")
    await administration.adelete_topic("invoices")


async def work(store):
    def handler(record):
        worker.stop()

    worker = store.worker(handler, "orders", group="working")
    await worker.arun()
    running = asyncio.create_task(store.arun(handler, "orders", group="idle"))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def rebuild(store):
    with pytest.raises(reput.DispatcherError, match="inline mode cannot rebuild"):
        await store.arebuild("index")


async def leave(store):
    async with store:
        pass
    await store.aclose()


CALLS = {
    "aput": lambda store: store.aput(reput.Message("orders", b"x")),
    "aput_batch": lambda store: store.aput_batch([reput.Message("orders", b"x")]),
    "aflush": lambda store: store.aflush(),
    "await_durable": lambda store: store.await_durable(store.appended),
    "await_for": lambda store: store.await_for("index", store.appended, LIMIT_S),
    "aget": lambda store: store.aget("orders"),
    "aquery": lambda store: store.aquery("orders", key="k"),
    "atopics": lambda store: store.atopics(),
    "aqueue_ids": lambda store: store.aqueue_ids("orders"),
    "aqueue_range": lambda store: store.aqueue_range("orders"),
    "arecords": lambda store: anext(store.arecords()),
    "astatus": lambda store: store.astatus(),
    "aclean": lambda store: store.aclean(),
    "arebuild": rebuild,
    "adelete_topic": lambda store: store.adelete_topic("orders"),
    "aconsumer": receive,
    "atransactions": transact,
    "aadministration": administer,
    "arun": work,
    "aclose": leave,
}


class Obstacle:
    """A disk that forces nothing, and a thread that reads for ever; until `end`."""

    def __init__(self, store, monkeypatch):
        self.ended = threading.Event()
        self.read_lock = store._engine.read_lock
        for name in ("fsync", "fdatasync", "pwritev"):
            monkeypatch.setattr(os, name, self.delayed(getattr(os, name)))
        assert self.read_lock.acquire(timeout=LIMIT_S)

    def delayed(self, call):
        def waiting(*arguments):
            assert self.ended.wait(LIMIT_S)
            return call(*arguments)

        return waiting

    def end(self):
        self.ended.set()
        self.read_lock.release()


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("name", CALLS)
def test_other_tasks_go_on_while_a_coroutine_waits_for_disk_and_readers(tmp_path, monkeypatch, name, flush_disk_type):
    """A coroutine that waited in the loop's thread would wait for ever: the loop itself ends the obstacle."""
    store = reput.open(
        tmp_path / "store", mode="inline", flush_disk_type=flush_disk_type, message_delay_level="1s " * 18
    )
    store.administration.update_topic(TopicConfig(topic_name="orders"))
    store.put_batch([reput.Message("orders", b"%d" % number, keys=["k"]) for number in range(3)])
    store.wait_for("index", store.appended, LIMIT_S)
    store.wait_for("consume_queue", store.appended, LIMIT_S)

    async def main():
        obstacle = Obstacle(store, monkeypatch)
        task = asyncio.ensure_future(CALLS[name](store))
        for _ in range(TURNS):
            await asyncio.sleep(0.001)
        obstacle.end()
        await asyncio.wait_for(task, LIMIT_S)

    with store:
        asyncio.run(main())


def test_every_coroutine_of_a_store_is_tried():
    """A new one is added above."""
    coroutines = {
        name
        for name, value in inspect.getmembers(reput.Store)
        if (inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)) and not name.startswith("_")
    }
    assert coroutines | {"arecords"} == set(CALLS)


def test_a_call_of_a_cancelled_task_begins_and_ends():
    """Also if it still waits for a thread of the executor."""
    begun, may_end, called = threading.Event(), threading.Event(), threading.Event()

    def occupy():
        begun.set()
        assert may_end.wait(LIMIT_S)

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        occupied = asyncio.ensure_future(in_thread(occupy))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(in_thread(called.set))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert not called.is_set()
        may_end.set()
        await occupied

    asyncio.run(main())
    assert called.is_set()
