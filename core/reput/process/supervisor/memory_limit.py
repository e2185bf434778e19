"""MemoryLimit: which dispatchers have taken more memory than they may.

Over the limit a dispatcher is asked to flush and end, and another process takes its place. One that grows on meanwhile
is killed. Anonymous memory is counted: the page cache of the files that it reads and writes belongs to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from reput.process.control.dispatcher_row import anonymous_memory

__all__ = ["MemoryLimit"]

# How often a process is looked at, which takes some 30 µs.
LOOK_S = 1.0
# Over so much of the limit a process is not asked any more.
KILL_SHARE = 1.5


class MemoryLimit:
    """The limit of one group, in bytes; 0: there is none."""

    def __init__(self, size_max: int, now: Callable[[], float] = time.monotonic) -> None:
        self.size_max = size_max
        self.now = now
        self.look_at = now()

    @property
    def patience(self) -> float | None:
        """Return for how many seconds no look is due, None: none ever is."""
        return max(0.0, self.look_at - self.now()) if self.size_max else None

    def is_due(self) -> bool:
        """Tell whether to look at the processes now, and count that as done."""
        if not self.size_max or self.now() < self.look_at:
            return False
        self.look_at = self.now() + LOOK_S
        return True

    def excess(self, pid: int) -> str | None:
        """Return what a process has too much of, None if it is within the limit, or has ended."""
        size = anonymous_memory(pid)
        if size is None or size <= self.size_max:
            return None
        return f"memory exceeds its limit: rss_bytes={size} dispatcher_memory_max={self.size_max}"

    def is_hopeless(self, pid: int) -> bool:
        """Tell whether a process has grown so far that it is not to be waited for."""
        return (anonymous_memory(pid) or 0) > self.size_max * KILL_SHARE
