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

# From so many waiting threads on it pays: a tenth with 16, a third with 64. With fewer than the other number it ends.
WAITING_MIN = 16
WAITING_LEFT = 4


class BatchScheduling(threading.local):
    """The scheduling policy of the calling thread."""

    is_batch = False
    # False: the program chose another policy, or the system refuses a change. The policy then stays as it is.
    is_ours = True

    def join(self, count: int) -> None:
        """Set the policy of the calling thread, which is about to wait with *count* others: batch, if they are many."""
        if self.is_batch:
            if count < WAITING_LEFT:
                self.change(os.SCHED_BATCH, os.SCHED_OTHER)
        elif count >= WAITING_MIN and self.is_ours:
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
