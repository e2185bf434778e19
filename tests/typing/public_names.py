"""The types that a checker infers for a program that uses reput. mypy checks this file; it is never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import reput
from reput.filter import SqlFilter, parse


def opening(path: str, read_only: bool) -> None:
    """The type of `open` depends on *read_only*, and it has every setting."""
    assert_type(reput.open(path), reput.Store)
    assert_type(reput.open(path, read_only=True), reput.ReadOnlyStore)
    assert_type(reput.open(path, read_only=read_only), reput.Store | reput.ReadOnlyStore)
    reput.open(path, settings=reput.Settings(flush_disk_type="SYNC_FLUSH"), max_message_size=1 << 20)
    reput.open(path, flush_disk_type="SOMETIMES")  # type: ignore[call-overload]
    reput.open(path, flush_disk_typ="SYNC_FLUSH")  # type: ignore[call-overload]
    reput.open(path, dispatchers=["index"], mode="inline", hooks=[], lock_timeout=None)
    reput.open(path, mode="threads")  # type: ignore[call-overload]
    reput.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def using(store: reput.Store) -> None:
    """Methods of a store."""
    message = reput.Message("orders", b"two shirts", tags="paid", keys=["order-17"], properties={"k": "v"})
    assert_type(store.put(message), reput.PutMessageResult)
    assert_type(store.put_batch([message]), list[reput.PutMessageResult])
    assert_type(store.get("orders"), reput.GetMessageResult)
    assert_type([record.body for record in store.get("orders")], list[bytes])
    assert_type(store.query("orders", key="order-17"), list[reput.Record])
    assert_type(store.records(follow=True), Iterator[reput.Record])
    assert_type(store.arecords(follow=True), AsyncIterator[reput.Record])
    assert_type(store.progress("index"), int | None)
    assert_type(store.status(), reput.GroupStatus)
    assert_type(store.statistics(), reput.StoreStatistics)
    assert_type(store.transactions, reput.TransactionService)
    assert_type(store.administration, reput.Administration)
    assert_type(parse("price > 10"), SqlFilter)
    with store as opened:
        assert_type(opened, reput.Store)


def consuming(store: reput.Store) -> None:
    """Consumers and workers, with functions and coroutine functions."""
    with store.consumer("billing", "orders", "paid || shipped") as consumer:
        assert_type(consumer, reput.Consumer)
        assert_type(consumer.receive(timeout=1.0), reput.Record | None)

    def handle(record: reput.Record) -> None:
        print(record.body)

    async def ahandle(record: reput.Record) -> str:
        return record.topic

    assert_type(store.run(handle, "orders", group="billing"), reput.WorkerStatistics)
    assert_type(store.worker(ahandle, ["orders", "mails"], group="billing", order="queue"), reput.Worker)
    store.run(print, "orders")  # type: ignore[call-arg]
    store.run(handle, "orders", group="billing", order="random")  # type: ignore[arg-type]


async def waiting(path: str, store: reput.Store) -> None:
    """Coroutine twins return what their namesakes return."""
    assert_type(await reput.aopen(path), reput.Store)
    assert_type(await reput.aopen(path, read_only=True), reput.ReadOnlyStore)
    await reput.aopen(path, mode="inline", flush_disk_type="SYNC_FLUSH")
    await reput.aopen(path, lock_timeout="soon")  # type: ignore[call-overload]
    assert_type(await store.aput(reput.Message("orders", b"x")), reput.PutMessageResult)
    assert_type(await store.aget("orders"), reput.GetMessageResult)
    assert_type(await store.aflush(), int)
    assert_type(await store.atransactions(), reput.TransactionService)
    assert_type(await store.aadministration(), reput.Administration)
    async with await store.aconsumer("billing", "orders") as consumer:
        assert_type(consumer, reput.Consumer)
        async for record in consumer:
            assert_type(record, reput.Record)
    async with store as opened:
        assert_type(opened, reput.Store)


async def through_brokers(client: reput.Client) -> None:
    """What a client and administration give has public types."""
    assert_type(client.transactions, reput.Transactions)
    administration = await client.aadministration()
    assert_type(administration, reput.ClusterAdministration)
    assert_type(await administration.abrokers(), list[reput.BrokerRow])
    assert_type(await client.aqueue_range("orders"), tuple[int, int])
    async for row in administration.dead_letters("billing").aredrive(dry_run=True):
        assert_type(row, reput.RedrivenLetter)
    copy = await reput.afollow("127.0.0.1:10912", "copy", begin="latest", flush_disk_type="SYNC_FLUSH")
    assert_type(copy, reput.FollowingStore)
    await reput.afollow("127.0.0.1:10912", "copy", begin="soon")  # type: ignore[arg-type]
