"""WakeupChain: wakes the threads that wait for one force of the log, one after the other.

The flusher opens the chain and wakes the first thread. Each thread that runs wakes the next one, which is then on its
way to the interpreter lock while the one before works. If all were woken at once, most of them would block on that lock
again, which costs half as much processor time again.

    wait ──▶ waiting ◀── popleft ── open, then the thread that was woken last
                │ the last thread is awake
                ▼
    the next chain asks for its force, which then covers every thread that was woken and has put again
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from reput.store.log.batch_scheduling import BatchScheduling

__all__ = ["WakeupChain"]

# For the waiting threads of all stores.
scheduling = BatchScheduling()


class WakeupChain:
    """Any number of threads wait; one opens, once.

    Attributes:
        is_awaited: a force is asked for.
        begun: a lock that is released when the force begins, for threads that wait for that.
    """

    __slots__ = ("before", "begun", "is_awaited", "is_open", "next", "ring", "waiting")

    def __init__(self, ring: Callable[[], None], before: WakeupChain | None = None) -> None:
        """Make a chain that calls *ring* to ask for its force, but not before all threads of *before* are awake."""
        self.ring = ring
        self.before = before
        self.next: WakeupChain | None = None
        self.is_awaited = False
        self.is_open = False
        self.begun = threading.Lock()
        self.begun.acquire()
        # One held lock per waiting thread. The thread that takes a lock out releases it.
        self.waiting: deque[threading.Lock] = deque()
        if before is not None:
            before.next = self

    def wait(self, timeout: float) -> bool:
        """Return once the chain is open; False when *timeout* seconds went by first."""
        before = self.before
        scheduling.join(len(self.waiting) + (len(before.waiting) if before is not None else 0))
        lock = threading.Lock()
        lock.acquire()
        is_woken = False
        try:
            self.waiting.append(lock)
            if before is None or (before.is_open and not before.waiting):
                self.ask()
            # A thread that registers after `open()` might never be woken, so it must not wait.
            is_woken = not self.is_open and lock.acquire(timeout=timeout)
        finally:
            if is_woken:
                self.wake_next()
            else:
                self.leave(lock)
        return self.is_open

    def ask(self) -> None:
        """Ask for the force."""
        if not self.is_awaited:
            self.is_awaited = True
            self.ring()

    def wait_begin(self, timeout: float) -> bool:
        """Return once the force begins; False when *timeout* seconds went by first."""
        has_begun = self.begun.acquire(timeout=timeout)
        if has_begun:
            # For other threads that wait for the same.
            self.begun.release()
        return has_begun

    def leave(self, lock: threading.Lock) -> None:
        """Stop waiting."""
        with contextlib.suppress(ValueError):
            # The lock is gone if it was released just now.
            self.waiting.remove(lock)
        if self.is_open:
            # The thread that released the lock relies on this one to wake the next.
            self.wake_next()

    def wake_next(self) -> None:
        """Wake the next thread; after the last one ask for the force of the next chain, if threads wait for it."""
        try:
            lock = self.waiting.popleft()
        except IndexError:
            if self.next is not None and self.next.waiting:
                self.next.ask()
        else:
            lock.release()

    def open(self) -> None:
        """Wake all threads, and let later ones pass."""
        if self.is_open:
            return
        self.is_open = True
        before, self.before = self.before, None
        if before is not None:
            # A chain that is not open yet has failed; its threads are woken without waiting for each other.
            before.open()
            before.wake_all()
        self.wake_next()

    def wake_all(self) -> None:
        """Wake all remaining threads at once: a thread interrupted while it woke may not have woken the next one."""
        while self.waiting:
            self.wake_next()
