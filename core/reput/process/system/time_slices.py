"""TimeSlices: how long a process keeps a contended processor, and whether it runs as soon as it wakes.

Linux lets a process that wakes up preempt the running one only if its time slices are shorter; otherwise it waits
until that one pauses, even for work of a few microseconds. So a dispatcher with waiting readers asks for short slices
while it has little to do; its share of the processors stays the same. With more to do it asks for the usual ones,
because frequent switches slow down everything on the processor.

Source: Linux 6.12 and later, sched_setattr(2), ``sched_runtime`` of SCHED_OTHER. Earlier kernels ignore it.
"""

from __future__ import annotations

import ctypes
import os
from struct import Struct

__all__ = ["TimeSlices"]

# size, policy, flags, nice, priority, runtime, deadline, period: struct sched_attr.
SCHED_ATTR = Struct("=IIQiIQQQ")
# The numbers of x86-64, and of the table that aarch64 and all newer processors share. The C library has a wrapper for
# the call only since 2.41.
SCHED_SETATTR = 314 if os.uname().machine == "x86_64" else 274
SHORT_NS = 100_000
USUAL_NS = 0

syscall = ctypes.CDLL(None, use_errno=True).syscall


class TimeSlices:
    """The time slices of the calling thread, usual ones at first."""

    def __init__(self) -> None:
        self.are_short = False
        # Leave any other policy alone: it was set on purpose.
        self.is_ours = os.sched_getscheduler(0) == os.SCHED_OTHER

    def set_short(self, short: bool) -> None:
        """Ask for short slices, or the usual ones. If the system refuses, nothing changes."""
        if short == self.are_short:
            return
        self.are_short = short
        if self.is_ours:
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            runtime = SHORT_NS if short else USUAL_NS
            attributes = SCHED_ATTR.pack(SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, runtime, 0, 0)
            self.is_ours = syscall(SCHED_SETATTR, 0, attributes, 0) == 0
