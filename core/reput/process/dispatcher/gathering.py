"""Gathering: how long a loop that follows the ring rests after a batch, so that rows gather for the next."""

from __future__ import annotations

import os

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

    def after(self, row_count: int) -> None:
        """Choose the rest after a batch of *row_count* rows."""
        is_asked_for = row_count < GATHER_FEW and self.cell.is_asked_for()
        self.is_awaited = is_asked_for and row_count < GATHER_ROWS_MIN
        if self.is_awaited:
            # The reader that waits for the view may need this processor.
            os.sched_yield()
        elif row_count < GATHER_FEW and not is_asked_for:
            self.ms = GATHER_FEW_MS
        elif row_count < GATHER_ROWS_MAX:
            self.ms = GATHER_MS
