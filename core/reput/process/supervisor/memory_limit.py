"""MemoryLimit: which dispatchers use more memory than allowed.

The supervisor asks a dispatcher over the limit to flush and end, and starts another process in its place. If it keeps
growing meanwhile, the supervisor kills it. Only anonymous memory counts: the page cache of its files is not its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from reput.process.system.memory import anonymous_memory

__all__ = ["MemoryLimit"]

# How often each process is checked; one check takes some 30 µs.
LOOK_S = 1.0
# Above this multiple of the limit a process is killed without waiting for it.
KILL_SHARE = 1.5


class MemoryLimit:
    """The limit of one group, in bytes; 0: there is none."""

    def __init__(self, size_max: int, now: Callable[[], float] = time.monotonic) -> None:
        self.size_max = size_max
        self.now = now
        self.look_at = now()

    @property
    def patience(self) -> float | None:
        """Return the seconds until the next check is due, None: there is no limit."""
        return max(0.0, self.look_at - self.now()) if self.size_max else None

    def is_due(self) -> bool:
        """Tell whether to check the processes now; if so, schedule the next check."""
        if not self.size_max or self.now() < self.look_at:
            return False
        self.look_at = self.now() + LOOK_S
        return True

    def excess(self, pid: int) -> str | None:
        """Return why a process exceeds the limit, None if it is within the limit or has ended."""
        size = anonymous_memory(pid)
        if size is None or size <= self.size_max:
            return None
        return f"memory exceeds its limit: rss_bytes={size} dispatcher_memory_max={self.size_max}"

    def is_hopeless(self, pid: int) -> bool:
        """Tell whether a process has grown too far to wait for its end."""
        return (anonymous_memory(pid) or 0) > self.size_max * KILL_SHARE
