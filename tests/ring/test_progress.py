"""Waiting in the owner until a dispatcher's view is readable."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from reput.errors import RingError
from reput.ring import Cell, ProgressWaiter, RingMemory, RingReader, RingWriter, WaitOutcome
from reput.ring import cell as cell_module
from reput.ring import progress as progress_module
from reput.ring.layout import ASKED_NS, AWAITED, CELL_WORDS, NEVER, RESTING

SOON = 60.0  # seconds; what is woken comes at once, what is not fails the test


@pytest.fixture
def cell(other: RingMemory) -> Cell:
    cell = other.open_cell(1)
    cell.clear("consume_queue")
    return cell


@pytest.fixture
def waiter(memory: RingMemory) -> Iterator[ProgressWaiter]:
    waiter = ProgressWaiter(memory)
    yield waiter
    waiter.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def until(condition: Callable[[], bool]) -> None:
    """Wait for *condition*, which another thread will fulfil."""
    ticker = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        ticker.wait(0.001)
    raise AssertionError("the condition did not come true")


def test_progress_that_was_made_is_not_waited_for(waiter: ProgressWaiter, cell: Cell):
    """An offset at or below the progress is reached at once, even with a time-out of 0."""
    cell.set_progress(10, 1)
    assert waiter.wait(1, 10, 0) is WaitOutcome.REACHED
    assert waiter.wait(1, 0) is WaitOutcome.REACHED
    assert asyncio.run(waiter.wait_async(1, 10, 0)) is WaitOutcome.REACHED


def test_waiting_has_a_limit(waiter: ProgressWaiter, cell: Cell, memory: RingMemory):
    """If the progress does not come, or is unknown, the wait times out without counting a bug."""
    assert waiter.wait(1, 0, 0.001) is WaitOutcome.TIMEOUT
    assert asyncio.run(waiter.wait_async(1, 0, 0.001)) is WaitOutcome.TIMEOUT
    cell.set_progress(9, 1)
    assert waiter.wait(1, 10, 0.25) is WaitOutcome.TIMEOUT
    assert asyncio.run(waiter.wait_async(1, 10, 0.25)) is WaitOutcome.TIMEOUT
    assert memory.header.backstop_count == 0


def test_threads_wait_for_offsets_of_their_own(
    waiter: ProgressWaiter, cell: Cell, threads: ThreadPoolExecutor, memory: RingMemory
):
    """Each is woken by the progress that it needs, in whatever order they came."""
    cell.set_progress(0, 0)
    waits: dict[int, Future[WaitOutcome]] = {}
    for offset in (30, 10, 20, 10, 40):
        waits[offset] = threads.submit(waiter.wait, 1, offset, SOON)
        until(lambda: memory.words[AWAITED + 1] == min(waits))
    for reached in (10, 20, 35):
        cell.set_progress(reached, 1)
        assert all(waits[offset].result(SOON) is WaitOutcome.REACHED for offset in waits if offset <= reached)
        assert not any(waits[offset].done() for offset in waits if offset > reached)
    cell.set_progress(40, 1)
    assert waits[40].result(SOON) is WaitOutcome.REACHED
    until(lambda: memory.words[AWAITED + 1] == NEVER)


def test_a_thread_that_leads_and_leaves_is_followed_by_another(
    waiter: ProgressWaiter, cell: Cell, threads: ThreadPoolExecutor, memory: RingMemory
):
    """The thread that polls may give up or finish; the remaining ones are still woken by the eventfd."""
    cell.set_progress(0, 0)
    leader = threads.submit(waiter.wait, 1, 50, 0.05)
    # On a busy machine it may have given up before its wait is seen.
    until(lambda: memory.words[AWAITED + 1] == 50 or leader.done())
    followers = [threads.submit(waiter.wait, 1, offset, SOON) for offset in (60, 70)]
    assert leader.result(SOON) is WaitOutcome.TIMEOUT
    for offset, follower in zip((60, 70), followers, strict=True):
        cell.set_progress(offset, 1)
        assert follower.result(SOON) is WaitOutcome.REACHED
    assert memory.header.backstop_count == 0


@pytest.mark.slow
@pytest.mark.newest_python
def test_thousands_of_tasks_cost_one_reader_of_the_loop(waiter: ProgressWaiter, cell: Cell, memory: RingMemory):
    """One eventfd and one timer wake all tasks of an event loop, which keeps no state of them afterwards."""
    cell.set_progress(0, 0)
    readers: list[int] = []

    async def main() -> list[WaitOutcome]:
        loop = asyncio.get_running_loop()
        add_reader, remove_reader = loop.add_reader, loop.remove_reader
        loop.add_reader = lambda fd, *rest: (readers.append(fd), add_reader(fd, *rest))  # type: ignore[method-assign]
        loop.remove_reader = lambda fd: (readers.append(-fd), remove_reader(fd))  # type: ignore[method-assign]
        tasks = [asyncio.ensure_future(waiter.wait_async(1, 1 + number // 2, SOON)) for number in range(3000)]
        await asyncio.sleep(0)
        cell.set_progress(700, 1)
        await asyncio.gather(*tasks[:1400])
        assert not any(task.done() for task in tasks[1400:])
        cell.set_progress(1500, 1)
        return await asyncio.gather(*tasks)

    assert set(asyncio.run(main())) == {WaitOutcome.REACHED}
    assert readers == [memory.progress_descriptors[1], -memory.progress_descriptors[1]]
    assert memory.header.backstop_count == 0


def test_tasks_of_two_loops_and_threads_wait_together(
    waiter: ProgressWaiter, cell: Cell, threads: ThreadPoolExecutor, memory: RingMemory
):
    """The waiter that notices the progress serves all others."""
    cell.set_progress(0, 0)

    async def wait_all(first: int) -> list[WaitOutcome]:
        return await asyncio.gather(*(waiter.wait_async(1, first + number, SOON) for number in range(100)))

    loops = [threads.submit(lambda first=first: asyncio.run(wait_all(first))) for first in (1, 51)]
    waits = [threads.submit(waiter.wait, 1, offset, SOON) for offset in (75, 150)]
    for progress in range(1, 151):
        cell.set_progress(progress, progress)
    for loop in loops:
        assert set(loop.result(SOON)) == {WaitOutcome.REACHED}
    assert [wait.result(SOON) for wait in waits] == [WaitOutcome.REACHED] * 2
    assert memory.header.backstop_count == 0


def test_a_cancelled_task_leaves_nothing_behind(waiter: ProgressWaiter, cell: Cell):
    """A client that disconnects ends its wait."""
    cell.set_progress(0, 0)

    async def main() -> None:
        tasks = [asyncio.ensure_future(waiter.wait_async(1, 5)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        cell.set_progress(5, 1)
        assert await asyncio.gather(*tasks[1:]) == [WaitOutcome.REACHED] * 2
        assert waiter._gates[1]._loops == {}

    asyncio.run(main())


def test_waits_that_were_given_up_do_not_pile_up(waiter: ProgressWaiter, cell: Cell):
    """Long polls on an idle store come and go for days."""
    cell.set_progress(0, 0)

    async def main() -> None:
        keeper = asyncio.ensure_future(waiter.wait_async(1, 1))
        await asyncio.sleep(0)
        for _ in range(500):
            task = asyncio.ensure_future(waiter.wait_async(1, 10))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(waiter._gates[1]._heap) < 200
        cell.set_progress(1, 1)
        assert await keeper is WaitOutcome.REACHED

    asyncio.run(main())


def test_another_view_ends_the_wait_for_the_former_one(
    waiter: ProgressWaiter, cell: Cell, threads: ThreadPoolExecutor, memory: RingMemory
):
    """Waiters for a replaced view are notified, in threads and tasks; waiters for the new one are not."""
    cell.set_progress(0, 0)
    former = memory.view(1).generation
    wait = threads.submit(waiter.wait, 1, 10, SOON)
    until(lambda: memory.words[AWAITED + 1] == 10)

    async def main() -> list[WaitOutcome]:
        tasks = [asyncio.ensure_future(waiter.wait_async(1, 20, SOON)) for _ in range(2)]
        await asyncio.sleep(0)
        cell.raise_generation()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [WaitOutcome.GENERATION] * 2
    assert wait.result(SOON) is WaitOutcome.GENERATION
    assert waiter.wait(1, 10, SOON, generation=former) is WaitOutcome.GENERATION
    wait = threads.submit(waiter.wait, 1, 10, SOON)
    until(lambda: memory.words[AWAITED + 1] == 10)
    cell.set_progress(10, 1)
    assert wait.result(SOON) is WaitOutcome.REACHED


def test_closing_ends_every_wait(memory: RingMemory, cell: Cell, threads: ThreadPoolExecutor):
    """When it returns, threads have left, tasks are resumed, and later callers do not wait."""
    waiter = ProgressWaiter(memory)
    # Objects dropped by other tests are closed eventually, which must not happen in between.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    cell.set_progress(0, 0)
    waits = [threads.submit(waiter.wait, 1, offset) for offset in (10, 20, 30)]
    until(lambda: waiter._gates[1]._thread_count == 3)

    async def main() -> list[WaitOutcome]:
        tasks = [asyncio.ensure_future(waiter.wait_async(1, 15)) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.to_thread(waiter.close)
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [WaitOutcome.CLOSED] * 2
    assert [wait.result(SOON) for wait in waits] == [WaitOutcome.CLOSED] * 3
    assert waiter.wait(1, 10) is WaitOutcome.CLOSED
    assert waiter.wait(1, 0) is WaitOutcome.REACHED
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_the_owner_waits_through_the_header(other: RingMemory):
    """A process that cannot write the header cannot announce its wait."""
    with pytest.raises(RingError, match="only the process that created the ring"):
        ProgressWaiter(other)


def test_a_wake_up_that_a_dispatcher_forgot_is_counted(waiter: ProgressWaiter, cell: Cell, memory: RingMemory):
    """If a dispatcher announces progress without waking, the back-stop of threads and tasks detects it."""
    cell.set_progress(0, 0)
    # The new view has woken all waiters. That wake-up would end the first poll, which then finds the progress itself.
    os.eventfd_read(memory.progress_descriptors[1])
    cell._progress_descriptor = os.eventfd(0)

    def forget(offset: int) -> None:
        until(lambda: memory.words[AWAITED + 1] == offset)
        # Between a waiter's checks: after the one that follows the announcement, and never during the back-stop's
        # check.
        with waiter._gates[1]._mutex:
            cell.set_progress(offset, 1)

    with ThreadPoolExecutor(1) as threads:
        forgetting = threads.submit(forget, 1)
        assert waiter.wait(1, 1, SOON) is WaitOutcome.REACHED
        forgetting.result()
        assert memory.header.backstop_count == 1
        forgetting = threads.submit(forget, 2)
        assert asyncio.run(waiter.wait_async(1, 2, SOON)) is WaitOutcome.REACHED
        forgetting.result()
    assert memory.header.backstop_count == 2
    os.close(cell._progress_descriptor)


def test_who_begins_to_wait_ends_the_rest_of_a_dispatcher(
    waiter: ProgressWaiter, memory: RingMemory, reader_of: Callable[[int], RingReader], threads: ThreadPoolExecutor
):
    """Frames accumulate only while the view has no waiter."""
    reader = reader_of(1)
    resting = threads.submit(reader.rest, 60_000)
    until(lambda: memory.cell_words[CELL_WORDS + RESTING] == 1)
    waiting = threads.submit(waiter.wait, 1, 100, SOON)
    resting.result(SOON)
    # In the other order, it does not even begin.
    reader.rest(60_000)
    assert memory.cell_words[CELL_WORDS + RESTING] == 0
    reader._cell.set_progress(100, 1)
    assert waiting.result(SOON) is WaitOutcome.REACHED


def test_frames_do_not_end_a_rest(memory: RingMemory, writer: RingWriter, reader_of: Callable[[int], RingReader]):
    """The writer makes no system call for a resting reader."""
    reader = reader_of(1)
    begun = time.monotonic()
    writer.publish(b"frame", 1, 1)
    reader.rest(20)
    assert time.monotonic() - begun >= 0.019
    assert reader.read() == [b"frame"]


def test_a_view_that_comes_at_once_wakes_nobody(
    waiter: ProgressWaiter, cell: Cell, memory: RingMemory, monkeypatch: pytest.MonkeyPatch
):
    """A thread spins for a moment before it parks, and meanwhile yields its processor to the dispatcher."""
    cell.set_progress(0, 0)
    drain(memory.progress_descriptors[1])
    monkeypatch.setattr(progress_module, "SPINS", True)
    monkeypatch.setattr(progress_module, "SPIN_S", SOON)
    monkeypatch.setattr(os, "sched_yield", lambda: cell.set_progress(10, 1))
    assert waiter.wait(1, 10, 2 * SOON) is WaitOutcome.REACHED
    assert memory.words[AWAITED + 1] == NEVER
    assert not drain(memory.progress_descriptors[1])


def test_a_task_looks_in_each_turn_of_its_loop_before_it_parks(
    waiter: ProgressWaiter, cell: Cell, memory: RingMemory, monkeypatch: pytest.MonkeyPatch
):
    """The loop's other tasks continue meanwhile, and the dispatcher may depend on one of them."""
    cell.set_progress(0, 0)
    drain(memory.progress_descriptors[1])
    monkeypatch.setattr(progress_module, "SPINS", True)
    monkeypatch.setattr(progress_module, "SPIN_S", SOON)

    async def main() -> WaitOutcome:
        wait = asyncio.create_task(waiter.wait_async(1, 10, 2 * SOON))
        for _ in range(3):
            await asyncio.sleep(0)
        assert memory.words[AWAITED + 1] == NEVER
        cell.set_progress(10, 1)
        return await wait

    assert asyncio.run(main()) is WaitOutcome.REACHED
    assert not drain(memory.progress_descriptors[1])


def test_a_task_that_looks_touches_no_memory_behind_the_close(
    waiter: ProgressWaiter, cell: Cell, memory: RingMemory, monkeypatch: pytest.MonkeyPatch
):
    """Its loop continues only after the memory was closed."""
    cell.set_progress(0, 0)
    monkeypatch.setattr(progress_module, "SPINS", True)
    monkeypatch.setattr(progress_module, "SPIN_S", SOON)

    async def main() -> WaitOutcome:
        wait = asyncio.create_task(waiter.wait_async(1, 10, 2 * SOON))
        await asyncio.sleep(0)
        waiter.close()
        memory.close()
        return await wait

    assert asyncio.run(main()) is WaitOutcome.CLOSED


def test_a_view_that_does_not_come_is_looked_for_less_and_less(
    waiter: ProgressWaiter, cell: Cell, monkeypatch: pytest.MonkeyPatch
):
    """Waiting for a paused or lagging dispatcher costs almost no processor time."""
    cell.set_progress(0, 0)
    looks: list[None] = []
    looked = []
    monkeypatch.setattr(progress_module, "SPINS", True)
    monkeypatch.setattr(os, "sched_yield", lambda: looks.append(None))
    for number in range(64):
        looks.clear()
        assert waiter.wait(1, 10, 0.001) is WaitOutcome.TIMEOUT
        if looks:
            looked.append(number)
    assert set(looked) <= {0, 2, 6, 14, 30, 62}


def test_a_dispatcher_knows_whether_anybody_looks_at_its_progress(
    waiter: ProgressWaiter, cell: Cell, memory: RingMemory, monkeypatch: pytest.MonkeyPatch
):
    """Waiting counts, in threads and tasks, reading counts, and old requests no longer count."""
    # Longer than a machine may pause between the request and the check.
    monkeypatch.setattr(cell_module, "ASKED_LATELY_NS", int(SOON * 1e9))
    cell.set_progress(0, 0)
    assert not cell.is_asked_for()
    for ask in (
        lambda: waiter.note(1),
        lambda: waiter.wait(1, 1, 0),
        lambda: asyncio.run(waiter.wait_async(1, 1, 0)),
    ):
        ask()
        assert cell.is_asked_for()
        memory.words[ASKED_NS + 1] = time.monotonic_ns() - int(SOON * 1e9)
        assert not cell.is_asked_for()


def test_a_dispatcher_knows_of_those_that_come_after_it(cell: Cell, other: RingMemory):
    """A successor that waits for its progress makes it count as requested."""
    successor = other.open_cell(2)
    successor.begin_parking(frames=False, durable=None, predecessors=1 << 1, progress=10)
    cell.set_progress(9, 1)
    assert not cell.is_asked_for()
    cell.set_progress(10, 1)
    assert cell.is_asked_for()


def drain(descriptor: int) -> bool:
    """Empty an eventfd; return whether it was signalled."""
    try:
        return os.eventfd_read(descriptor) > 0
    except BlockingIOError:
        return False
