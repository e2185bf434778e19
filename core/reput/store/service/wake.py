"""Wake: what a service thread waits for, and what puts set; Ctrl-C cannot break it."""

from __future__ import annotations

import threading

__all__ = ["Wake"]


class Wake:
    """A flag for one waiting thread, with the methods of `threading.Event`. Any thread may set it.

    The `set` of an Event is Python code that takes a lock: Ctrl-C there, in a put that wakes a service, would leave the
    lock taken for good, and the next put would wait for it, holding the put lock. Here it is one call of C.
    """

    def __init__(self) -> None:
        # Free: the flag is set.
        self._unset = threading.Lock()
        self._unset.acquire()

    def is_set(self) -> bool:
        """Tell whether the flag is set."""
        return not self._unset.locked()

    def set(self) -> None:
        """Set the flag, and end the wait."""
        try:
            self._unset.release()
        except RuntimeError:
            # It is set already.
            return

    def clear(self) -> None:
        """Unset the flag."""
        self._unset.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most *timeout* seconds; return whether it is."""
        seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if not self._unset.acquire(timeout=seconds):
            return False
        self.set()
        return True
