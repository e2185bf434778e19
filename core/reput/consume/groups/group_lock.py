"""The lock of a consumer group: reentrant. With the kernel, its holder sees what the kernel has given without it."""

from __future__ import annotations

import threading
from typing import TypeAlias

from reput.kernel import KernelLock, found_kernel, kernel

__all__ = ["GroupLock", "kernel_lock", "new_group_lock"]

GroupLock: TypeAlias = "threading.RLock | KernelLock"


def new_group_lock() -> GroupLock:
    """Return the lock of a new group."""
    used = kernel()
    if used is None:
        return threading.RLock()
    lock: KernelLock = used.GroupLock(threading.RLock())
    return lock


def kernel_lock(lock: GroupLock) -> KernelLock | None:
    """Return the lock if it is the kernel's."""
    used, _ = found_kernel()
    found: KernelLock | None = lock if used is not None and isinstance(lock, used.GroupLock) else None
    return found
