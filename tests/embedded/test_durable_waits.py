"""Coroutines that wait for the disk are resumed together, each once, and none waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

import reput
from reput.embedded.durable_waits import DurableWaits
from reput.errors import StoreClosed, StoreError

LIMIT_S = 60.0


class Log:
    """A log that is forced by hand; *asked* are the offsets requested from the flusher."""

    def __init__(self) -> None:
        self.durable = 0
        self.asked: list[int] = []
        self.calls: list[tuple[int, object]] = []

    def call_when_durable(self, offset, done):
        self.asked.append(offset)
        self.calls.append((offset, done))

    def force(self, durable, *, failed=False):
        """Become durable up to *durable*, and call the waits for that, from another thread."""
        self.durable = durable
        ready = [done for offset, done in self.calls if failed or offset <= durable]
        self.calls = [(offset, done) for offset, done in self.calls if not failed and offset > durable]
        thread = threading.Thread(target=lambda: [done() for done in ready])
        thread.start()
        thread.join()


async def turns(count=5):
    """Let the loop run its ready tasks."""
    for _ in range(count):
        await asyncio.sleep(0)


def run(test):
    """Run *test* with a log and the waits on it."""

    async def main():
        log = Log()
        await asyncio.wait_for(test(log, DurableWaits(log, asyncio.get_running_loop())), LIMIT_S)

    asyncio.run(main())


def test_many_waits_are_one_question():
    """The flusher is asked for the first one, and one force resumes all that it covers."""

    async def test(log, waits):
        tasks = [asyncio.ensure_future(waits.wait(offset)) for offset in range(100, 1100, 100)]
        await turns()
        assert log.asked == [100]
        log.force(500)
        await turns()
        assert [task.done() for task in tasks] == [True] * 5 + [False] * 5
        assert log.asked == [100, 600]
        log.force(1000)
        await asyncio.gather(*tasks)
        assert log.asked == [100, 600]

    run(test)


def test_whoever_comes_out_of_order_is_let_go_too():
    """Offsets come from puts of several threads."""

    async def test(log, waits):
        later = asyncio.ensure_future(waits.wait(900))
        await turns()
        earlier = asyncio.ensure_future(waits.wait(200))
        await turns()
        log.force(900)
        await asyncio.gather(earlier, later)

    run(test)


def test_whoever_waits_for_an_offset_far_ahead_keeps_nobody():
    """That offset may never be reached; the flusher is also asked for earlier ones, once for each."""

    async def test(log, waits):
        later = asyncio.ensure_future(waits.wait(900))
        await turns()
        earlier = asyncio.ensure_future(waits.wait(200))
        await turns()
        waits.ask_for(200)
        assert log.asked == [900, 200]
        log.force(200)
        await earlier
        assert not later.done()
        log.force(900)
        await later
        assert log.asked == [900, 200]

    run(test)


def test_who_was_cancelled_is_not_missed():
    """The other waits are resumed."""

    async def test(log, waits):
        first, second = (asyncio.ensure_future(waits.wait(offset)) for offset in (100, 200))
        await turns()
        first.cancel()
        await turns()
        log.force(200)
        await second
        assert first.cancelled()

    run(test)


def test_a_log_that_fails_lets_go_of_all():
    """The resumed waits check the log's state themselves."""

    async def test(log, waits):
        tasks = [asyncio.ensure_future(waits.wait(offset)) for offset in (100, 200)]
        await turns()
        log.force(0, failed=True)
        await asyncio.gather(*tasks)

    run(test)


def test_a_thousand_puts_in_flight_are_on_disk_when_they_return(tmp_path):
    """Each result is below the durable position; a few forces cover all of them."""

    async def main():
        with reput.open(
            tmp_path, mode="inline", dispatchers=[], flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000
        ) as store:

            async def put(number):
                result = await store.aput(reput.Message("orders", str(number).encode()))
                assert store._engine.writer.durable >= result.next_commit_log_offset
                return result.queue_offset

            offsets = await asyncio.wait_for(asyncio.gather(*(put(number) for number in range(1000))), LIMIT_S)
            assert sorted(offsets) == list(range(1000))

    asyncio.run(main())


def test_a_store_that_is_closed_lets_nobody_wait(tmp_path):
    """Messages put before are on disk by then; later puts are refused."""

    async def main():
        store = reput.open(
            tmp_path, mode="inline", dispatchers=[], flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000
        )
        task = asyncio.ensure_future(store.aput(reput.Message("orders", b"x")))
        await turns(2)
        await asyncio.get_running_loop().run_in_executor(None, store.close)
        await asyncio.wait_for(task, LIMIT_S)
        with pytest.raises(StoreClosed):
            await store.aput(reput.Message("orders", b"x"))
        with pytest.raises(StoreError):
            await asyncio.wait_for(store.await_durable(store._engine.writer.appended + 1), LIMIT_S)

    asyncio.run(main())
