"""BatchScheduling: many threads that wait for the same force do not preempt each other.

A woken thread takes the processor from the thread that woke it. That thread still holds the interpreter lock, so the
woken one goes back to sleep in front of it: two context switches for nothing. A thread that waits among many is
therefore marked SCHED_BATCH until it waits almost alone. Its share of the processor stays the same. Threads and
programs that it starts meanwhile inherit the mark.

Source: Linux, sched(7), SCHED_BATCH.
"""

from __future__ import annotations

import os
import threading

__all__ = ["BatchScheduling"]

# Of so many on it pays, by a tenth; with 64 by a third. Below the other number it was a crowd.
CROWD_MIN = 16
CROWD_LEFT = 4


class BatchScheduling(threading.local):
    """The calling thread's part in it."""

    is_batch = False
    # What somebody has given another policy is his, and where the system refuses, everything stays as it is.
    is_ours = True

    def join(self, count: int) -> None:
        """Have the calling thread, which is about to wait with *count* others, wait for its turn if they are many."""
        if self.is_batch:
            if count < CROWD_LEFT:
                self.change(os.SCHED_BATCH, os.SCHED_OTHER)
        elif count >= CROWD_MIN and self.is_ours:
            self.change(os.SCHED_OTHER, os.SCHED_BATCH)

    def change(self, present: int, wanted: int) -> None:
        """Change the policy of the calling thread, if it is *present*."""
        self.is_batch = False
        try:
            self.is_ours = os.sched_getscheduler(0) == present
            if self.is_ours:
                os.sched_setscheduler(0, wanted, os.sched_param(0))
                self.is_batch = wanted == os.SCHED_BATCH
        except OSError:
            self.is_ours = False
