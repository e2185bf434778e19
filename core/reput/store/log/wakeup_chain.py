"""WakeupChain: the threads that one force of the log lets go, one after the other.

Whoever opens the group wakes the first; each who is woken wakes the next as soon as it runs. So the next is on its way
to the interpreter lock while the one before works. Were all woken at once, most of them would go to sleep again, in
front of that lock, and half as much processor time again would go into it.

    wait ──▶ waiting ◀── popleft ── open, then whoever was woken last
                │ nobody is left
                ▼
    the next group asks for its force: all who were let go, and put again at once, are in it
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from reput.store.log.batch_scheduling import BatchScheduling

__all__ = ["WakeupChain"]

# Whoever waits, for whatever store.
crowd = BatchScheduling()


class WakeupChain:
    """Any number of threads wait; one opens, once.

    Attributes:
        is_awaited: a force is asked for.
        begun: a lock that is let go when the force begins, for who waits for that.
    """

    __slots__ = ("before", "begun", "is_awaited", "is_open", "next", "ring", "waiting")

    def __init__(self, ring: Callable[[], None], before: WakeupChain | None = None) -> None:
        """Make a group that calls *ring* when its force is to begin: not before all of *before* were let go."""
        self.ring = ring
        self.before = before
        self.next: WakeupChain | None = None
        self.is_awaited = False
        self.is_open = False
        self.begun = threading.Lock()
        self.begun.acquire()
        # A held lock of each who waits. Whoever takes one out lets it go.
        self.waiting: deque[threading.Lock] = deque()
        if before is not None:
            before.next = self

    def wait(self, timeout: float) -> bool:
        """Return once the group is open; False when *timeout* seconds went by first."""
        before = self.before
        crowd.join(len(self.waiting) + (len(before.waiting) if before is not None else 0))
        lock = threading.Lock()
        lock.acquire()
        is_let_go = False
        try:
            self.waiting.append(lock)
            if before is None or (before.is_open and not before.waiting):
                self.ask()
            # Of who comes behind `open` nobody may know.
            is_let_go = not self.is_open and lock.acquire(timeout=timeout)
        finally:
            if is_let_go:
                self.let_next_go()
            else:
                self.leave(lock)
        return self.is_open

    def ask(self) -> None:
        """Have the force begin."""
        if not self.is_awaited:
            self.is_awaited = True
            self.ring()

    def wait_begin(self, timeout: float) -> bool:
        """Return once the force begins; False when *timeout* seconds went by first."""
        has_begun = self.begun.acquire(timeout=timeout)
        if has_begun:
            # For who else waits for that.
            self.begun.release()
        return has_begun

    def leave(self, lock: threading.Lock) -> None:
        """Wait no more."""
        with contextlib.suppress(ValueError):
            # It is not there if it was let go just now.
            self.waiting.remove(lock)
        if self.is_open:
            # Whoever let it go, or found it waiting behind all others, counts on it for the next one.
            self.let_next_go()

    def let_next_go(self) -> None:
        """Wake the next one; behind the last one have the next group's force begin, if somebody waits for it."""
        try:
            lock = self.waiting.popleft()
        except IndexError:
            if self.next is not None and self.next.waiting:
                self.next.ask()
        else:
            lock.release()

    def open(self) -> None:
        """Let go of all, and of whoever comes later."""
        if self.is_open:
            return
        self.is_open = True
        before, self.before = self.before, None
        if before is not None:
            # Where it is not open yet its force has failed, and who is let go here is not to take that for his time.
            before.open()
            before.let_all_go()
        self.let_next_go()

    def let_all_go(self) -> None:
        """Wake at once whoever of an open group is left: one who was interrupted as it woke may have woken nobody."""
        while self.waiting:
            self.let_next_go()
