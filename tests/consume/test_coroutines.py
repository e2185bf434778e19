"""Coroutines: a method that may wait has a twin with the prefix ``a``, which lets other tasks of the loop run."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

import reput
from reput.consume.administration.administration import Administration
from reput.consume.delivery.transaction_service import TransactionService
from reput.consume.groups.consumer import Consumer

WAIT_S = 60.0


@pytest.mark.parametrize("face", [Administration, Consumer, TransactionService])
def test_a_coroutine_is_the_twin_of_a_method(face):
    """It has the method's name with the prefix, the same arguments, and the same result."""
    coroutines = {
        name: value
        for name, value in vars(face).items()
        if inspect.iscoroutinefunction(value) and not name.startswith("_")
    }
    assert coroutines
    for name, coroutine in coroutines.items():
        assert name.startswith("a")
        assert inspect.signature(coroutine) == inspect.signature(getattr(face, name[1:])), name


def test_leaving_a_consumer_lets_other_tasks_run(tmp_path, monkeypatch):
    """The close waits for another task of the loop, which a blocking call would never let run."""
    close = Consumer.close
    allowed = threading.Event()

    def close_when_allowed(consumer):
        assert allowed.wait(WAIT_S)
        close(consumer)

    async def work(store):
        consumer = store.consumer("billing", "orders")
        async with consumer:
            monkeypatch.setattr(Consumer, "close", close_when_allowed)
            asyncio.get_running_loop().call_later(0.01, allowed.set)
        return consumer.closed

    with reput.open(tmp_path / "store", mode="inline") as store:
        assert asyncio.run(work(store))
        monkeypatch.undo()


def test_a_task_consumes_and_moves_its_group(tmp_path):
    """Using only the twins."""

    async def work(store):
        async with store.consumer("billing", "orders") as consumer:
            first = await consumer.areceive(WAIT_S)
            await consumer.anack(first, -1)
            await consumer.arewind()
            again = await consumer.areceive(WAIT_S)
            consumer.ack(again)
            await consumer.aseek("orders", 0, 0)
            last = await consumer.areceive(WAIT_S)
            consumer.ack(last)
            await consumer.acommit()
        await store.administration.acreate_topic("invoices", 3)
        rows = await store.administration.atopic_stats("invoices")
        (progress,) = await store.administration.agroup_progress("billing")
        return [first.body, again.body, last.body], len(rows), progress.consumer_offset

    with reput.open(tmp_path / "store", mode="inline") as store:
        store.put(reput.Message("orders", b"a"))
        assert asyncio.run(work(store)) == ([b"a"] * 3, 3, 1)
        store.wait_for("consume_queue", store.appended, WAIT_S)
        assert [record.body for record in store.get("%DLQ%billing")] == [b"a"]


def test_a_task_settles_transactions(tmp_path):
    """One is committed, one rolled back."""

    async def work(transactions):
        halves = [await transactions.aput_half("shop", reput.Message("orders", b"%d" % number)) for number in range(2)]
        await transactions.arollback(halves[0])
        return await transactions.acommit(halves[1])

    with reput.open(tmp_path / "store", mode="inline") as store:
        result = asyncio.run(work(store.transactions))
        store.wait_for("consume_queue", result.next_commit_log_offset, WAIT_S)
        assert [record.body for record in store.get("orders")] == [b"1"]
