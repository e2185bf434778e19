"""die_with_parent: have the kernel kill this process when the one that forked it ends.

The signal comes when the *thread* that forked ends. So it serves supervisor and dispatchers only: the supervisor has
one thread, a program that opens a store may have any number, and ends them as it likes.
"""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["die_with_parent"]

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when *parent_pid* ends, also if it has ended already. Called in the child, right after the fork."""
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        # It ended before the kernel was told.
        os.kill(os.getpid(), signal.SIGKILL)
