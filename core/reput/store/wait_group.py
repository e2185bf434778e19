"""WaitGroup: the threads that one force of the log lets go, all by one system call.

An eventfd stays readable once it was written, so every thread that looks at it is woken, and who comes later does not
wait. Locks would be let go one by one, by a flusher that holds the interpreter lock meanwhile: with 64 threads that
takes longer than the force, and half as much processor time again.
"""

from __future__ import annotations

import os
import select
import threading

__all__ = ["WaitGroup"]


class WaitGroup:
    """Any number of threads wait; one opens, once.

    Attributes:
        is_awaited: somebody waits, or will in a moment. Whoever sets it rings for the one who opens.
        begun: a lock that is let go when the force begins, for who waits for that.
    """

    __slots__ = ("begun", "descriptor", "event", "is_awaited", "is_open")

    def __init__(self) -> None:
        self.is_awaited = False
        self.is_open = False
        self.begun = threading.Lock()
        self.begun.acquire()
        self.descriptor = -1
        self.event: threading.Event | None = None
        try:
            self.descriptor = os.eventfd(0)
        except OSError:
            # A process without a descriptor left: its puts are acknowledged all the same, if not so fast.
            self.event = threading.Event()

    def wait(self, timeout: float) -> bool:
        """Return once the group is open; False when *timeout* seconds went by first."""
        if self.event is not None:
            return self.event.wait(timeout)
        if not self.is_open:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            poll.poll(timeout * 1000)
        return self.is_open

    def open(self) -> None:
        """Let go of all, and of whoever comes later."""
        if self.is_open:
            return
        self.is_open = True
        if self.event is not None:
            self.event.set()
        else:
            os.eventfd_write(self.descriptor, 1)

    def __del__(self) -> None:
        # Whoever leaves the group last closes it: before that, its number must not become another file's.
        if self.descriptor >= 0:
            os.close(self.descriptor)
