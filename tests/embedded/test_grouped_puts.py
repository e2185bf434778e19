"""Puts of coroutines with SYNC_FLUSH are stored together and answered separately."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import reput
from reput.embedded.grouped_puts import FORCED_GROUPS_MAX, GROUP_COUNT_MAX
from reput.errors import MessageIllegal, StoreFull, StoreReadOnly
from reput_hooks import hookimpl

LIMIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    """A store without views, whose puts wait for the disk."""
    with reput.open(
        tmp_path, mode="inline", dispatchers=[], flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000
    ) as opened:
        yield opened


def message(number, **fields):
    """Return a message whose body is its number."""
    return reput.Message("orders", b"%d" % number, **fields)


def run(coroutine):
    """Run *coroutine* in a new loop, within the time limit."""
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))


def bodies(store):
    """Return the bodies in the log, in order."""
    return [record.body for record in store.records()]


def test_a_turn_of_the_loop_is_stored_in_the_order_of_its_puts(store):
    """Each result is like that of a separate put, and is below the durable position when it is returned."""
    # The first groups are forced while the other messages of the turn are put.
    count = (FORCED_GROUPS_MAX + 2) * GROUP_COUNT_MAX + 5

    async def put(number):
        result = await store.aput(message(number))
        assert result.next_commit_log_offset <= store._engine.writer.durable
        return result

    async def main():
        return await asyncio.gather(*(put(number) for number in range(count)))

    results = run(main())
    assert [result.queue_offset for result in results] == list(range(count))
    assert [result.commit_log_offset for result in results[1:]] == [
        result.next_commit_log_offset for result in results[:-1]
    ]
    assert {result.status.value for result in results} == {"PUT_OK"}
    assert bodies(store) == [b"%d" % number for number in range(count)]


def test_a_long_turn_is_forced_while_the_next_one_puts(store):
    """The flusher begins before the loop continues; a short turn does not delay the loop."""
    begun = []
    begin_flush = store._engine.writer.begin_flush
    store._engine.writer.begin_flush = lambda patience: begun.append(store.appended) or begin_flush(patience)

    async def main(count):
        return await asyncio.gather(*(store.aput(message(number)) for number in range(count)))

    run(main(GROUP_COUNT_MAX))
    assert begun == []
    results = run(main(GROUP_COUNT_MAX + 1))
    assert begun == [results[-1].next_commit_log_offset]


def test_large_messages_make_small_groups(store):
    """A group's size in bytes is limited, too: other threads put in between."""
    locks = []
    append_each = store._engine.writer.appender.append_each
    store._engine.writer.appender.append_each = lambda messages, batch: (
        locks.append(len(batch)) or append_each(messages, batch)
    )

    async def main():
        await asyncio.gather(*(store.aput(reput.Message("orders", bytes(600_000))) for _ in range(5)))

    run(main())
    assert locks == [2, 2, 1]


def test_a_message_that_is_refused_refuses_only_itself(store):
    """The other messages of its turn are stored."""

    async def main():
        return await asyncio.gather(
            store.aput(message(0)),
            store.aput(message(1, queue_id=-1)),
            store.aput(message(2)),
            store.aput("no message"),
            return_exceptions=True,
        )

    first, second, third, fourth = run(main())
    assert (first.queue_offset, third.queue_offset) == (0, 1)
    assert isinstance(second, MessageIllegal)
    assert isinstance(fourth, MessageIllegal)
    assert bodies(store) == [b"0", b"2"]


def test_a_message_without_room_refuses_only_itself(store):
    """If the messages do not fit together, as many as possible are stored one by one."""
    room = store._engine.writer.commit_log.room

    def small_room(size):
        if size > 1000:
            raise StoreFull("no room")
        return room(size)

    store._engine.writer.commit_log.room = small_room
    large = reput.Message("orders", bytes(2000))

    async def main():
        puts = (store.aput(each) for each in (message(0), large, message(2), large))
        return await asyncio.gather(*puts, return_exceptions=True)

    outcomes = run(main())
    assert [isinstance(outcome, StoreFull) for outcome in outcomes] == [False, True, False, True]
    assert outcomes[1] is not outcomes[3]
    assert bodies(store) == [b"0", b"2"]


def test_who_is_cancelled_in_the_same_turn_stores_nothing(store):
    """The other puts are stored; a task that is cancelled later has stored its message, and the others are answered."""

    async def main():
        early, late, other = (asyncio.ensure_future(store.aput(message(number))) for number in range(3))
        asyncio.get_running_loop().call_soon(early.cancel)
        while store._engine.writer.appended == 0:
            await asyncio.sleep(0)
        late.cancel()
        result = await other
        return early.cancelled(), late.cancelled() or late.done(), result.queue_offset

    assert run(main()) == (True, True, 1)
    assert bodies(store) == [b"1", b"2"]


def test_several_loops_put_into_one_store(store):
    """Each in its own thread, beside threads that put without a loop."""

    async def main(first):
        results = []
        for turn in range(5):
            numbers = range(first + turn * 20, first + turn * 20 + 20)
            results += await asyncio.gather(*(store.aput(message(number)) for number in numbers))
        return [result.queue_offset for result in results]

    with ThreadPoolExecutor(5) as pool:
        loops = [pool.submit(run, main(first)) for first in (0, 100, 200)]
        thread = pool.submit(lambda: [store.put(message(number)).queue_offset for number in range(300, 330)])
        offsets = sum((loop.result(LIMIT_S) for loop in loops), thread.result(LIMIT_S))
    assert sorted(offsets) == list(range(330))
    assert sorted(int(body) for body in bodies(store)) == list(range(330))


def test_one_thread_may_run_one_loop_after_the_other(store):
    """The next loop has its own waits."""

    async def main(number):
        return (await store.aput(message(number))).queue_offset

    assert [run(main(number)) for number in range(3)] == [0, 1, 2]


def test_a_loop_that_ends_with_puts_in_flight_harms_nobody(store):
    """The disk answers after the loop has ended."""
    answer = threading.Event()
    mapping = store._engine.writer.commit_log.current.mapping
    force = mapping.force

    def slow():
        assert answer.wait(LIMIT_S)
        force()

    mapping.force = slow

    async def main():
        task = asyncio.ensure_future(store.aput(message(0)))
        while store._engine.writer.appended == 0:
            await asyncio.sleep(0)
        task.cancel()

    run(main())
    answer.set()
    assert store.put(message(1)).queue_offset == 1
    assert bodies(store) == [b"0", b"1"]


def test_a_disk_that_does_not_answer_in_time_is_told(tmp_path):
    """Each put gets its own status, as with `put`."""
    answer = threading.Event()
    with reput.open(
        tmp_path, mode="inline", dispatchers=[], flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20
    ) as store:
        mapping = store._engine.writer.commit_log.current.mapping
        write_forced = mapping.write_forced

        def slow(data, at):
            assert answer.wait(LIMIT_S)
            write_forced(data, at)

        mapping.write_forced = slow

        async def main():
            results = await asyncio.gather(*(store.aput(message(number)) for number in range(3)))
            answer.set()
            return results

        results = run(main())
        assert [result.status.value for result in results] == ["FLUSH_DISK_TIMEOUT"] * 3
        assert [result.queue_offset for result in results] == [0, 1, 2]


def test_a_failed_force_refuses_everybody_in_flight(tmp_path):
    """Later puts fail, too; no message is reported as safe."""
    store = reput.open(tmp_path, mode="inline", dispatchers=[], flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)

    def refuse(data, at):
        raise OSError(5, "Input/output error")

    store._engine.writer.commit_log.current.mapping.write_forced = refuse

    async def main():
        return [
            await asyncio.gather(*(store.aput(message(number)) for number in range(3)), return_exceptions=True)
            for _ in range(2)
        ]

    first, second = run(main())
    assert [type(outcome) for outcome in first + second] == [StoreReadOnly] * 6
    assert store._engine.writer.durable == 0
    store.close()


def test_a_publication_that_fails_is_told_to_those_who_put(store):
    """No task waits for ever because of a defect elsewhere."""

    def refuse(*_):
        raise RuntimeError("a defect")

    store._engine.writer.appender.publisher.publish = refuse

    async def main():
        puts = (store.aput(message(number)) for number in range(3))
        return await asyncio.gather(*puts, return_exceptions=True)

    assert [str(outcome) for outcome in run(main())] == ["a defect"] * 3


def test_hooks_see_each_of_the_messages(tmp_path):
    """Before it is stored, when they may refuse it, and afterwards."""
    seen = []

    class Hooks:
        @hookimpl
        def reput_before_put(self, message):
            if message.body == b"1":
                raise PermissionError("not this one")

        @hookimpl
        def reput_after_put(self, message, result):
            seen.append((message.body, result.queue_offset))

    with reput.open(
        tmp_path,
        mode="inline",
        dispatchers=[],
        hooks=[Hooks()],
        flush_disk_type="SYNC_FLUSH",
        sync_flush_timeout=60_000,
    ) as hooked:

        async def main():
            puts = (hooked.aput(message(number)) for number in range(3))
            return await asyncio.gather(*puts, return_exceptions=True)

        outcomes = run(main())
    assert isinstance(outcomes[1], PermissionError)
    assert seen == [(b"0", 0), (b"2", 1)]
