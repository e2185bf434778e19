"""Gathering: how long a loop that follows the ring rests after a batch, so that rows gather for the next."""

from __future__ import annotations

import os
import time

from reput.process.frames.protocols import LoopCell

__all__ = ["Gathering"]

# After a batch of this many rows the loop rests while more rows gather: it dispatches fewer, larger batches, and the
# writer need not wake it for each record. After fewer rows it rests only if no reader waits for the view. More rows
# are a backlog, and the loop continues without a rest.
GATHER_ROWS_MIN = 3
GATHER_ROWS_MAX = 1024
GATHER_MS = 4
# The rest after so few rows of a view for whose progress no reader has asked lately. A wake-up costs as much as ten
# rows, and takes the processor from the writer and its clients.
GATHER_FEW = 64
GATHER_FEW_MS = 16
# A reader asks now and then, but records come fast: after so many batches of few rows, each less than so many
# nanoseconds behind the one before, the loop rests as after more rows. Otherwise the writer would wake it for each of
# the records, which takes the writer ten times as long as a put.
QUICK_COUNT_MAX = 4
QUICK_NS = 500_000


class Gathering:
    """The rest after the last batch of frames. One thread.

    Attributes:
        ms: milliseconds for which frames may gather before the loop's next work.
        is_awaited: the last frames were few, and a reader waits for the view.
    """

    def __init__(self, cell: LoopCell) -> None:
        self.cell = cell
        self.ms = 0
        self.is_awaited = False
        # Batches of few rows that came quickly, one behind the other, and when the last one had been dispatched.
        self.quick_count = 0
        self.ended_ns = 0

    def after(self, row_count: int) -> None:
        """Choose the rest after a batch of *row_count* rows."""
        is_asked_for = row_count < GATHER_FEW and self.cell.is_asked_for()
        self.is_awaited = is_asked_for and row_count < GATHER_ROWS_MIN and not self.come_fast()
        if self.is_awaited:
            # The reader that waits for the view may need this processor.
            os.sched_yield()
        elif row_count < GATHER_FEW and not is_asked_for:
            self.ms = GATHER_FEW_MS
        elif row_count < GATHER_ROWS_MAX:
            self.ms = GATHER_MS

    def come_fast(self) -> bool:
        """Count a batch of few rows, and return whether such batches come too fast to be waited for one by one."""
        before, self.ended_ns = self.ended_ns, time.monotonic_ns()
        self.quick_count = self.quick_count + 1 if self.ended_ns - before < QUICK_NS else 0
        return self.quick_count >= QUICK_COUNT_MAX
