"""GroupLock: one process group at a time works on a store's views.

The writer's lock is not enough: after a `kill -9` a dispatcher may live on for a moment, and must not write to files
that a new one has already opened. This lock, on ``reput/group.lock``, belongs to the open file, which the supervisor
and its dispatchers share by fork; it is free when the last of them is gone.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

__all__ = ["LOCK_TIMEOUT_S", "GroupLock"]

# How long a group waits for one whose owner is gone: a killed dispatcher ends only when its disk request completes.
LOCK_TIMEOUT_S = 60.0

withheld: weakref.WeakSet[GroupLock] = weakref.WeakSet()


class GroupLock:
    """The lock of one store's group. It is not held before `try_take` returns True."""

    def __init__(self, store_directory: Path) -> None:
        self.path = store_directory / "reput" / "group.lock"
        self.descriptor: int | None = None

    def try_take(self) -> bool:
        """Take the lock and return True, unless another group has it."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self.descriptor = descriptor
        return True

    def withhold(self) -> None:
        """Make children forked from now on give up the lock: a plugin's children are not part of the group."""
        withheld.add(self)

    def release(self) -> None:
        """Give up the lock in this process."""
        withheld.discard(self)
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def release_in_child() -> None:
    for lock in list(withheld):
        lock.release()


os.register_at_fork(after_in_child=release_in_child)
