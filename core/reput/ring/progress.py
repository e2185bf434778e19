"""ProgressWaiter: threads and asyncio tasks of the owner wait until a dispatcher's view is readable up to an offset.

It mirrors the parking of the ring's readers. The owner stores the progress it waits for (the smallest of all waiters of
the slot) in the ring's header, passes a full barrier, rechecks the progress, and sleeps on the slot's progress eventfd.
The dispatcher stores its progress, passes a full barrier, reads that word, and writes to the eventfd once its progress
has reached it. Among threads, one leader polls and serves all waiters, while the others sleep on their own locks. An
event loop has one reader and one timer per slot for all of its tasks.

Before parking, a thread or task spins for a moment: a running dispatcher publishes within some 50 µs, and parking and
waking would cost both sides about as much again. Each spin yields the processor, which the dispatcher may need; a task
also yields to the other tasks of its loop. If spinning fails repeatedly, it is tried less and less often, until it
succeeds again.
"""

from __future__ import annotations

import enum
import heapq
import os
import select
import sys
import time
from itertools import count
from threading import Condition, Lock
from typing import TYPE_CHECKING

from reput.errors import RingError
from reput.ring import layout
from reput.ring.layout import AWAITED, CELL_WORDS, GENERATION, NEVER, PROGRESS, PROGRESS_ANNOUNCED, UNKNOWN
from reput.ring.ring_memory import RingMemory

if TYPE_CHECKING:
    # A process that runs a loop has already loaded it. Supervisor and dispatchers save its 4 MiB.
    import asyncio

__all__ = ["ProgressWaiter", "WaitOutcome"]

BACKSTOP_S = 0.1
# How long to spin before parking: twice as long as a running dispatcher takes for one record.
SPIN_S = 0.0001
# After this many failed spins in a row, one wait in two to this power spins.
SPIN_DOUBLINGS_MAX = 6
# On a single processor the dispatcher cannot publish while a thread spins.
SPINS = len(os.sched_getaffinity(0)) > 1
# Abandoned waiters stay in the heap until they exceed this number and half of the heap.
ABANDONED_MAX = 64


class WaitOutcome(enum.Enum):
    """Why a wait ended."""

    REACHED = "reached"
    GENERATION = "generation"
    CLOSED = "closed"
    TIMEOUT = "timeout"


class ProgressWaiter:
    """Waits for the progress of *memory*'s dispatchers, in the process that created it. Any thread, any event loop."""

    def __init__(self, memory: RingMemory) -> None:
        if memory.words.readonly:
            raise RingError("only the process that created the ring may wait for progress through its header")
        self._gates = [SlotGate(memory, slot) for slot in range(memory.slot_count)]

    def wait(
        self, slot: int, offset: int, timeout: float | None = None, *, generation: int | None = None
    ) -> WaitOutcome:
        """Block the calling thread until the view of *slot* is readable up to commit-log offset *offset*.

        Args:
            timeout: seconds, None without limit.
            generation: number of the expected view, by default the current one. The wait ends when another view takes
                its place.
        """
        gate = self._gates[slot]
        if gate.reached(offset):
            return WaitOutcome.REACHED
        gate.note()
        generation = gate.generation() if generation is None else generation
        deadline = None if timeout is None else time.monotonic() + timeout
        if (timeout is None or timeout > SPIN_S) and gate.spin(offset):
            return WaitOutcome.REACHED
        waiter = ThreadWaiter(offset, generation)
        try:
            gate.add(waiter, None)
            while waiter.outcome is None:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                if gate.lead(waiter):
                    gate.poll(BACKSTOP_S if remaining is None else min(BACKSTOP_S, remaining))
                else:
                    waiter.sleep(remaining)
        finally:
            outcome = gate.remove(waiter)
        return outcome

    def note(self, slot: int) -> None:
        """Tell the dispatcher of *slot* that its progress is being read without waiting."""
        self._gates[slot].note()

    async def wait_async(
        self, slot: int, offset: int, timeout: float | None = None, *, generation: int | None = None
    ) -> WaitOutcome:
        """Suspend the calling task until the view of *slot* is readable up to *offset*; otherwise like `wait`."""
        gate = self._gates[slot]
        if gate.reached(offset):
            return WaitOutcome.REACHED
        gate.note()
        loop: asyncio.AbstractEventLoop = sys.modules["asyncio"].get_running_loop()
        generation = gate.generation() if generation is None else generation
        deadline = None if timeout is None else loop.time() + timeout
        if (timeout is None or timeout > SPIN_S) and await gate.spin_async(offset):
            return WaitOutcome.REACHED
        if gate.closed:
            return WaitOutcome.CLOSED
        waiter = TaskWaiter(offset, generation, loop)
        gate.attach(loop)
        timer = None if deadline is None else loop.call_at(deadline, waiter.finish)
        try:
            gate.add(waiter, loop)
            await waiter.future
        finally:
            if timer is not None:
                timer.cancel()
            outcome = gate.remove(waiter)
            gate.detach(loop)
        return outcome

    def close(self) -> None:
        """End all waits, including later ones, with `WaitOutcome.CLOSED`. Call it before the memory is closed.

        Returns when no thread waits any more. Tasks are resumed once their loops run.
        """
        for gate in self._gates:
            gate.close()
        for gate in self._gates:
            gate.release()


class Waiter:
    """Waits for a view of *generation* to reach *offset*. `SlotGate` sets the outcome, once."""

    __slots__ = ("generation", "offset", "outcome")

    def __init__(self, offset: int, generation: int) -> None:
        self.offset = offset
        self.generation = generation
        self.outcome: WaitOutcome | None = None


class ThreadWaiter(Waiter):
    """A waiting thread. `signal` is called under the gate's mutex, `sleep` by the thread itself."""

    __slots__ = ("_lock", "_signalled")

    def __init__(self, offset: int, generation: int) -> None:
        super().__init__(offset, generation)
        self._lock = Lock()
        self._lock.acquire()
        self._signalled = False

    def sleep(self, timeout: float | None) -> None:
        """Sleep until `signal`: the wait is over, or the thread becomes the leader."""
        if self._lock.acquire(timeout=-1 if timeout is None else timeout):
            self._signalled = False

    def signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            self._lock.release()


class TaskWaiter(Waiter):
    """A waiting task of *loop*, suspended on `future`."""

    __slots__ = ("_loop", "future")

    def __init__(self, offset: int, generation: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(offset, generation)
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def finish(self) -> None:
        """Resume the task. Called in its loop's thread."""
        if not self.future.done():
            self.future.set_result(None)

    def wake(self, current: asyncio.AbstractEventLoop | None) -> None:
        """Resume the task; *current* is the loop that the calling thread runs, None if it runs none."""
        if current is self._loop:
            self.finish()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.finish)


class LoopWatch:
    """An event loop's state for one slot: the number of waiting tasks, and the back-stop timer."""

    __slots__ = ("task_count", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.task_count = 0
        self.timer = timer


class SlotGate:
    """All waiters for the progress of one slot. Any thread may call the methods, except those for a loop."""

    def __init__(self, memory: RingMemory, slot: int) -> None:
        self._words = memory.words
        self._cells = memory.cell_words
        self._awaited_index = AWAITED + slot
        self._asked_index = layout.ASKED_NS + slot
        self._progress_index = slot * CELL_WORDS + PROGRESS
        self._announced_index = slot * CELL_WORDS + PROGRESS_ANNOUNCED
        self._generation_index = slot * CELL_WORDS + GENERATION
        self._resting_index = slot * CELL_WORDS + layout.RESTING
        self._wake_descriptor = memory.wake_descriptors[slot]
        self._descriptor = memory.progress_descriptors[slot]
        self._mutex = Lock()
        self._barrier = memory.access.barrier()
        self._heap: list[tuple[int, int, Waiter]] = []
        self._sequence = count()
        self._abandoned_count = 0
        self._armed = NEVER
        self._generation = self.generation()
        self._generations_differ = False
        self.closed = False
        self._threads: dict[ThreadWaiter, None] = {}
        self._thread_count = 0
        self._all_left = Condition(self._mutex)
        self._leader: ThreadWaiter | None = None
        self._nudge: int | None = None
        self._loops: dict[asyncio.AbstractEventLoop, LoopWatch] = {}
        self._spinning = False
        self._spins_in_vain = 0
        self._waits_without_spin = 0

    def generation(self) -> int:
        """Return the number of the slot's current view."""
        generation: int = self._cells[self._generation_index]
        return generation

    def reached(self, offset: int) -> bool:
        """Whether the view is readable up to *offset*."""
        progress: int = self._cells[self._progress_index]
        return progress >= offset and progress != UNKNOWN

    def note(self) -> None:
        """Tell the dispatcher that its progress is being read."""
        self._words[self._asked_index] = time.monotonic_ns()

    def spin(self, offset: int) -> bool:
        """Spin for a moment, and return whether the view reached *offset*."""
        with self._mutex:
            if self.closed or not self._may_spin():
                return False
            # The memory stays mapped until this thread has checked for the last time.
            self._thread_count += 1
        found = False
        try:
            deadline = time.monotonic() + SPIN_S
            while not found and time.monotonic() < deadline:
                # Also releases the interpreter lock.
                os.sched_yield()
                found = self.reached(offset)
        finally:
            self._end_spin(found=found)
            with self._mutex:
                self._leave()
        return found

    async def spin_async(self, offset: int) -> bool:
        """Like `spin`, with one check per turn of the loop, so that its other tasks run."""
        if not self._may_spin():
            return False
        sleep = sys.modules["asyncio"].sleep
        found = False
        try:
            deadline = time.monotonic() + SPIN_S
            while not found and time.monotonic() < deadline:
                await sleep(0)
                if self.closed:
                    return False
                os.sched_yield()
                found = self.reached(offset)
        finally:
            self._end_spin(found=found)
        return found

    def _may_spin(self) -> bool:
        """Return whether the caller should spin before waiting; if so, it calls `_end_spin` afterwards.

        Only one thread at a time: two would take the interpreter from each other. The flags are not locked; a race
        costs one extra or one missing spin.
        """
        if self._waits_without_spin > 0:
            self._waits_without_spin -= 1
            return False
        if self._spinning or not SPINS:
            return False
        if self._cells[self._resting_index]:
            os.eventfd_write(self._wake_descriptor, 1)
        self._spinning = True
        return True

    def _end_spin(self, *, found: bool) -> None:
        """End spinning. If the progress was not reached, spin less often from now on."""
        self._spinning = False
        if found:
            self._spins_in_vain = 0
        else:
            self._spins_in_vain = min(self._spins_in_vain + 1, SPIN_DOUBLINGS_MAX)
            self._waits_without_spin = (1 << self._spins_in_vain) - 1

    def add(self, waiter: Waiter, current: asyncio.AbstractEventLoop | None) -> None:
        """Add *waiter*; if there is nothing to wait for, it gets its outcome at once."""
        with self._mutex:
            heapq.heappush(self._heap, (waiter.offset, next(self._sequence), waiter))
            if waiter.generation != self._generation:
                self._generations_differ = True
            if isinstance(waiter, ThreadWaiter):
                self._threads[waiter] = None
                self._thread_count += 1
            tasks = self._settle()
        wake_tasks(tasks, current)

    def remove(self, waiter: Waiter) -> WaitOutcome:
        """Remove *waiter* and return its outcome; `TIMEOUT` if it gave up."""
        with self._mutex:
            if isinstance(waiter, ThreadWaiter):
                self._threads.pop(waiter, None)
                self._leave()
                if self._leader is waiter:
                    self._leader = None
                # One thread must poll; a waiter that was asked to lead but leaves passes the task on.
                if self._leader is None and self._threads:
                    next(iter(self._threads)).signal()
            if waiter.outcome is None:
                # The awaited offset in the header may be stale now, which costs the dispatcher one needless wake-up.
                waiter.outcome = WaitOutcome.TIMEOUT
                self._abandoned_count += 1
                if self._abandoned_count > ABANDONED_MAX and self._abandoned_count * 2 > len(self._heap):
                    self._drop_abandoned()
            return waiter.outcome

    def _leave(self) -> None:
        """Unregister a thread that checks and waits no more. Under the mutex."""
        self._thread_count -= 1
        if self._thread_count == 0 and self.closed:
            self._all_left.notify_all()

    def lead(self, waiter: ThreadWaiter) -> bool:
        """Whether the calling thread, which owns *waiter*, must poll."""
        with self._mutex:
            if self._leader is None:
                self._leader = waiter
            return self._leader is waiter

    def poll(self, timeout: float) -> None:
        """Sleep until the dispatcher signals progress, and serve all waiters. Called by the leader.

        Args:
            timeout: seconds.
        """
        if self._nudge is None:
            self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._nudge, select.POLLIN)
        ready = poll.poll(timeout * 1000)
        drain(self._nudge)
        self.serve(None, timed_out=not ready)

    def serve(self, current: asyncio.AbstractEventLoop | None, *, timed_out: bool) -> None:
        """Set the outcome of every waiter whose wait is over.

        Args:
            current: the loop that the calling thread runs.
            timed_out: the back-stop expired, so no work should be found.
        """
        with self._mutex:
            announced = timed_out and self._was_announced()
            # After that check, or a wake-up between the two would look like a missing one; before checking the
            # progress, because the dispatcher stores it before writing to the eventfd.
            signalled = drain(self._descriptor)
            if announced and not signalled:
                self._words[layout.OWNER_BACKSTOP_COUNT] += 1
            tasks = self._settle()
        wake_tasks(tasks, current)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make *loop*, which the calling thread runs, serve the slot while its tasks wait."""
        watch = self._loops.get(loop)
        if watch is None:
            watch = self._loops[loop] = LoopWatch(loop.call_later(BACKSTOP_S, self._tick, loop))
            loop.add_reader(self._descriptor, self._on_readable, loop)
        watch.task_count += 1

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Record that one task of *loop* no longer waits."""
        watch = self._loops[loop]
        watch.task_count -= 1
        if watch.task_count == 0:
            del self._loops[loop]
            watch.timer.cancel()
            loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Set the outcome of all waiters, including later ones, to `CLOSED`."""
        with self._mutex:
            self.closed = True
            tasks = self._settle()
        wake_tasks(tasks, None)

    def release(self) -> None:
        """Wait until the last thread has left a closed gate, then close the descriptors that it polled."""
        with self._all_left:
            while self._thread_count:
                self._all_left.wait()
            if self._nudge is not None:
                os.close(self._nudge)
                self._nudge = None

    def _on_readable(self, loop: asyncio.AbstractEventLoop) -> None:
        self.serve(loop, timed_out=False)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops[loop].timer = loop.call_later(BACKSTOP_S, self._tick, loop)
        self.serve(loop, timed_out=True)

    def _was_announced(self) -> bool:
        """Whether the dispatcher has announced that it woke all waiters for the awaited progress.

        A dispatcher that is about to wake them, or was killed before doing so, has not announced it, and has no bug.
        """
        announced = self._cells[self._announced_index]
        return bool(announced != UNKNOWN and announced >= self._armed)

    def _settle(self) -> list[TaskWaiter]:
        """Set the outcome of all waiters whose wait is over, and store in the header what the others wait for.

        Threads are woken; tasks are returned, for the caller to wake without holding the mutex.
        """
        tasks: list[TaskWaiter] = []
        while True:
            self._finish_all_over(tasks)
            awaited = self._heap[0][0] if self._heap else NEVER
            if awaited == self._armed or self.closed:
                return tasks
            self._armed = awaited
            self._words[self._awaited_index] = awaited
            # Full barrier, then another check: the dispatcher stores its progress and reads the awaited offset, this
            # thread does the reverse, and at least one of them sees the other's store.
            self._barrier.acquire(blocking=False)
            self._barrier.release()
            if awaited != NEVER and self._cells[self._resting_index]:
                os.eventfd_write(self._wake_descriptor, 1)

    def _finish_all_over(self, tasks: list[TaskWaiter]) -> None:
        # After the close there is no memory to read.
        generation = self._generation if self.closed else self.generation()
        if self.closed or self._generations_differ or generation != self._generation:
            for _, _, waiter in self._heap:
                if waiter.outcome is None and (self.closed or waiter.generation != generation):
                    self._finish(waiter, WaitOutcome.CLOSED if self.closed else WaitOutcome.GENERATION, tasks)
            self._drop_abandoned()
            self._generation = generation
            self._generations_differ = False
        heap = self._heap
        while heap and (heap[0][2].outcome is not None or self.reached(heap[0][0])):
            waiter = heapq.heappop(heap)[2]
            if waiter.outcome is None:
                self._finish(waiter, WaitOutcome.REACHED, tasks)
            else:
                self._abandoned_count -= 1

    def _finish(self, waiter: Waiter, outcome: WaitOutcome, tasks: list[TaskWaiter]) -> None:
        waiter.outcome = outcome
        if isinstance(waiter, TaskWaiter):
            tasks.append(waiter)
        elif isinstance(waiter, ThreadWaiter):
            self._threads.pop(waiter, None)
            waiter.signal()
            if waiter is self._leader and self._nudge is not None:
                # The leader may be about to poll, and the calling thread has already emptied the slot's eventfd.
                os.eventfd_write(self._nudge, 1)

    def _drop_abandoned(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].outcome is None]
        heapq.heapify(self._heap)
        self._abandoned_count = 0


def wake_tasks(tasks: list[TaskWaiter], current: asyncio.AbstractEventLoop | None) -> None:
    for task in tasks:
        task.wake(current)


def drain(descriptor: int) -> bool:
    """Empty an eventfd; return whether it was signalled."""
    try:
        return os.eventfd_read(descriptor) > 0
    except BlockingIOError:
        return False
