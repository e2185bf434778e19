"""Tasks that are cancelled while a client waits: nothing is left that goes on, and nothing stands still."""

from __future__ import annotations

import asyncio

import pytest

import reput
from reput import Message
from reput.client import group_session
from reput.client.sender import Sender


class Hanging:
    """Stands for a coroutine function that waits for an answer which does not come."""

    def __init__(self):
        self.begun = asyncio.Event()

    async def __call__(self, *args, **options):
        self.begun.set()
        await asyncio.Event().wait()

    async def cancel(self, coroutine):
        """Run a coroutine until it waits here, and cancel it."""
        task = asyncio.create_task(coroutine)
        await self.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_consumer_whose_start_is_cancelled_has_no_queues(client, address, monkeypatch):
    """A pull that went on would make it a member of the group again, and nobody would handle its messages."""
    client.put_batch([Message("orders", b"%d" % number, queue_id=number) for number in range(4)])
    committed, hanging = group_session.QueueRequests.committed, Hanging()

    async def hang_later(requests, queue):
        return await (hanging() if queue.queue_id == 2 else committed(requests, queue))

    monkeypatch.setattr(group_session.QueueRequests, "committed", hang_later)

    async def main():
        async with reput.connect(address) as other:
            await hanging.cancel(other.aconsumer("billing", "orders"))
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("whole", [True, False])
def test_a_consumer_whose_close_is_cancelled_leaves_the_group(client, address, monkeypatch, whole):
    """Otherwise its heartbeats would keep queues that nobody reads."""
    client.put(Message("orders", b"x"))
    hanging = Hanging()

    async def main():
        other = reput.connect(address)
        consumer = await other.aconsumer("billing", "orders")
        assert await consumer.areceive(20) is not None
        monkeypatch.setattr(group_session.GroupSession, "commit", hanging)
        await hanging.cancel((other if whole else consumer).aclose())
        assert consumer.closed
        assert other.closed == whole
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await other.aclose()

    asyncio.run(main())


def test_a_client_whose_close_is_cancelled_has_no_connections(address, monkeypatch):
    """Those of its tasks end, and the thread of its blocking methods."""
    hanging = Hanging()

    async def main():
        client = reput.connect(address)
        await asyncio.to_thread(client.put, Message("orders", b"x"))
        await client.aput(Message("orders", b"y"))
        thread = client._sessions.background().thread.thread
        drain = Sender.drain
        here = client._sessions.here().sender
        monkeypatch.setattr(Sender, "drain", lambda sender: hanging() if sender is here else drain(sender))
        await hanging.cancel(client.aclose())
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not thread.is_alive()

    asyncio.run(main())


def test_a_queue_whose_seek_is_cancelled_goes_on(address, monkeypatch):
    """It has moved; only the commit was not waited for."""
    hanging = Hanging()

    async def main():
        async with reput.connect(address) as client:
            for number in range(3):
                await client.aput(Message("orders", b"%d" % number, queue_id=0))
            async with await client.aconsumer("billing", "orders") as consumer:
                for _ in range(3):
                    consumer.ack(await consumer.areceive(20))
                monkeypatch.setattr(group_session.GroupSession, "commit_queue", hanging)
                await hanging.cancel(consumer.aseek("orders", 0, 1))
                monkeypatch.undo()
                record = await consumer.areceive(20)
                assert record is not None
                assert record.body == b"1"

    asyncio.run(main())
