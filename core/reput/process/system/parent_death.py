"""die_with_parent: make the kernel kill this process when its parent ends.

The kernel sends the signal when the forking *thread* ends, so that thread must outlive the child. The supervisor has
one thread; a program that opens a store may have any number, and end them as it likes.
"""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["die_with_parent"]

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Arrange to get signal *number* when *parent_pid* ends, or has ended. Called at the start of the child."""
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        # The parent ended before prctl.
        os.kill(os.getpid(), number)
