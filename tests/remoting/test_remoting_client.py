"""Connections by address: one attempt at a time, whose end is that of all who wait for it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from remoting.asking import in_loop
from reput.remoting.remoting_client import RemotingClient, Unreachable


@in_loop
async def test_those_who_wait_for_a_peer_share_one_attempt():
    """One after the other, the last of them would wait for all time limits."""
    attempts = []

    class Counting(RemotingClient):
        async def connect(self, address):
            attempts.append(address)
            await asyncio.sleep(0)
            return await super().connect(address)

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    client = Counting()
    for count in (1, 2):
        errors = await asyncio.gather(*(client.connection(address) for _ in range(10)), return_exceptions=True)
        assert {type(error) for error in errors} == {Unreachable}
        assert len(attempts) == count
    await client.close()


@in_loop
async def test_an_attempt_ends_with_its_client():
    """Also if the task that has begun it does not wait any more."""
    begun = asyncio.Event()

    async def greet(address, connection):
        begun.set()
        await asyncio.Event().wait()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = RemotingClient(greet=greet)
        waiting = asyncio.ensure_future(client.connection("{}:{}".format(*silent.getsockname())))
        await begun.wait()
        waiting.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not client.connecting
        assert asyncio.all_tasks() == {asyncio.current_task()}
