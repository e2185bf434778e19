"""Coroutine twins of a store's methods: their results, and the effect of cancelling a task."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

import reput
from delivering import wait_until
from reput.closing_block import ClosingBlock
from reput.embedded.opened_store import OpenedStore
from reput.worker.running import RunsWorkers

LIMIT_S = 60.0
# Blocking calls with a twin, by name.
TWINS = {
    OpenedStore: ("close", "get", "query", "records", "status", "topics", "queue_ids", "queue_range"),
    reput.Store: (
        "clean",
        "close",
        "consumer",
        "delete_topic",
        "flush",
        "put",
        "put_batch",
        "rebuild",
        "run",
        "wait_durable",
        "wait_for",
    ),
}


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in TWINS.items() for name in names])
def test_a_twin_takes_the_same_arguments(owner, name):
    """Names and defaults are the same; only the prefix differs."""
    twin = "await_" + name.removeprefix("wait_") if name.startswith("wait_") else "a" + name
    assert (
        inspect.signature(getattr(owner, twin)).parameters.keys()
        == inspect.signature(getattr(owner, name)).parameters.keys()
    )
    assert inspect.signature(getattr(owner, twin)) == inspect.signature(getattr(owner, name)).replace(
        return_annotation=inspect.signature(getattr(owner, twin)).return_annotation
    )


def test_every_coroutine_of_a_store_has_a_blocking_namesake():
    """There is no other convention."""
    for owner, names in TWINS.items():
        coroutines = {
            name
            for base in (ClosingBlock, RunsWorkers, owner)
            for name, value in vars(base).items()
            if issubclass(owner, base) and not name.startswith("_") and inspect.iscoroutinefunction(value)
        }
        twins = {"await_" + name.removeprefix("wait_") if name.startswith("wait_") else "a" + name for name in names}
        properties = {
            "a" + name
            for name, value in vars(owner).items()
            if isinstance(value, property) and "a" + name in coroutines
        }
        assert coroutines == (twins - {"arecords"}) | properties


def test_a_property_whose_first_use_reads_files_has_a_twin(tmp_path):
    """It returns the same object."""

    async def main():
        async with await reput.aopen(tmp_path / "store", mode="inline") as store:
            assert await store.atransactions() is store.transactions
            assert await store.aadministration() is store.administration

    asyncio.run(main())


def test_a_task_does_all_that_a_thread_does(tmp_path):
    """From opening to closing, while another task runs."""

    async def main():
        async with await reput.aopen(tmp_path / "store", mode="inline") as store:
            (first,) = await store.aput_batch([reput.Message("orders", b"0", keys=["k"])])
            second = await store.aput(reput.Message("orders", b"1"))
            assert await store.aflush() == second.next_commit_log_offset == store.durable
            await store.await_durable(second.next_commit_log_offset)
            for view in ("consume_queue", "index"):
                await store.await_for(view, second.next_commit_log_offset, LIMIT_S)
            assert [record.body for record in await store.aget("orders")] == [b"0", b"1"]
            assert [record.message_id for record in await store.aquery("orders", "k")] == [first.message_id]
            assert [record.body async for record in store.arecords()] == [b"0", b"1"]
            assert await store.aqueue_range("orders") == (0, 2)
            assert await store.atopics() == {"orders": [0]}
            assert (await store.astatus()).writer.appended == store.appended
            with pytest.raises(reput.DispatcherError, match="a store in inline mode cannot rebuild views"):
                await store.arebuild("index")
            async with await store.aconsumer("billing", "orders") as consumer:
                consumer.ack(await consumer.areceive(LIMIT_S))
            assert await store.aclean()
            assert await store.adelete_topic("orders") == store.appended
        assert store.closed

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_task_that_is_cancelled_while_a_store_opens_leaves_it_closed(tmp_path):
    """Another task may open it immediately."""

    async def main():
        opening = asyncio.create_task(reput.aopen(tmp_path / "store", mode="inline"))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with await reput.aopen(tmp_path / "store", mode="inline"):
            pass

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


@pytest.mark.parametrize("settings", [{}, {"flush_disk_type": "SYNC_FLUSH"}, {"transient_store_pool_enable": True}])
def test_a_put_wakes_whoever_follows_the_log(tmp_path, settings):
    """Threads and tasks get each record, and the end when the store is closed; afterwards puts have no extra cost."""
    sizes = {"mapped_file_size_commit_log": 1 << 20}
    store = reput.open(tmp_path / "store", mode="inline", dispatchers=["consume_queue"], **sizes, **settings)
    growth = store._engine.growth
    by_thread, by_task = [], []

    async def follow():
        async for record in store.arecords(follow=True):
            by_task.append(record.body)

    def follow_in_thread():
        by_thread.extend(record.body for record in store.records(follow=True))

    threads = [threading.Thread(target=follow_in_thread), threading.Thread(target=lambda: asyncio.run(follow()))]
    for thread in threads:
        thread.start()
    for number in range(20):
        wait_until(lambda: growth.waiting_count == 2)
        store.put(reput.Message("orders", b"%d" % number))
    store.flush()
    wait_until(lambda: len(by_task) == 20)
    wait_until(lambda: growth.waiting_count == 2)
    store.close()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert by_thread == by_task == [b"%d" % number for number in range(20)]
    assert growth.follower_count == 0


def test_a_task_that_follows_the_log_can_be_cancelled(tmp_path):
    """No thread continues to wait for it."""

    async def main():
        async with await reput.aopen(tmp_path / "store", mode="inline") as store:
            store.put(reput.Message("orders", b"0"))
            seen = asyncio.Event()

            async def follow():
                async for _ in store.arecords(follow=True):
                    seen.set()

            following = asyncio.create_task(follow())
            await seen.wait()
            while not store._engine.growth.waiting_count:
                await asyncio.sleep(0)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
            assert store._engine.growth.follower_count == 0

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_store_is_opened_with_a_settings_object(tmp_path):
    """Keywords override it."""
    settings = reput.Settings(mapped_file_size_commit_log=4096, max_message_size=1000)
    with reput.open(tmp_path, mode="inline", settings=settings, max_message_size=500) as store:
        assert store.settings.mapped_file_size_commit_log == 4096
        with pytest.raises(reput.MessageIllegal, match="max_message_size=500"):
            store.put(reput.Message("orders", bytes(600)))
    with pytest.raises(reput.ConfigError, match=r"settings must be a reput\.Settings: settings=\{\}"):
        reput.open(tmp_path, settings={})
