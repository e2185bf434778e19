"""Turns: for how long a process keeps a processor while others want it, and whether it gets it when it is woken.

Linux gives a process that wakes the processor at once only if its turns are shorter than those of the one that runs
there; else it waits until that one pauses, even for work of a few microseconds. So a dispatcher on which readers wait
asks for short turns while it has little to do - its share of the processors stays the same - and for the usual ones
when it has more: a turn that ends often is slow for everybody on the processor.

Source: Linux 6.12 and later, sched_setattr(2), ``sched_runtime`` of SCHED_OTHER. Earlier kernels take no notice of it.
"""

from __future__ import annotations

import ctypes
import os
from struct import Struct

__all__ = ["Turns"]

# size, policy, flags, nice, priority, runtime, deadline, period: struct sched_attr.
SCHED_ATTR = Struct("=IIQiIQQQ")
# Of x86-64, which is all that the ring's memory order covers; the C library knows the call by name only since 2.41.
SCHED_SETATTR = 314
SHORT_NS = 100_000
USUAL_NS = 0

syscall = ctypes.CDLL(None, use_errno=True).syscall


class Turns:
    """The turns of the calling thread, usual ones at first."""

    def __init__(self) -> None:
        self.are_short = False
        # What somebody has given another policy is his.
        self.is_ours = os.sched_getscheduler(0) == os.SCHED_OTHER

    def set_short(self, short: bool) -> None:
        """Have short turns, or the usual ones. A system that refuses leaves everything as it was."""
        if short == self.are_short:
            return
        self.are_short = short
        if self.is_ours:
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            runtime = SHORT_NS if short else USUAL_NS
            attributes = SCHED_ATTR.pack(SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, runtime, 0, 0)
            self.is_ours = syscall(SCHED_SETATTR, 0, attributes, 0) == 0
