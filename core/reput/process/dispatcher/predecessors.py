"""Predecessors: the progress of the dispatchers that one dispatcher comes ``after``."""

from __future__ import annotations

from collections.abc import Sequence

from reput.process.dispatcher.states import ABSENT
from reput.process.frames.protocols import Predecessor

__all__ = ["Predecessors"]


class Predecessors:
    """The cells of the enabled dispatchers that one dispatcher comes ``after``.

    Args:
        proceeds: a predecessor that is stopped or has failed does not hold this dispatcher back.
    """

    def __init__(self, cells: Sequence[Predecessor], *, proceeds: bool) -> None:
        self.cells = cells
        self.proceeds = proceeds

    def passes_over(self, cell: Predecessor) -> bool:
        """Whether this dispatcher need not wait for the one of *cell*."""
        return self.proceeds and cell.state in ABSENT

    def limit(self, commit_log_offset: int) -> int:
        """Return *commit_log_offset*, or less: the progress of the predecessor that is farthest behind."""
        for cell in self.cells:
            if not self.passes_over(cell):
                commit_log_offset = min(commit_log_offset, cell.progress or 0)
        return commit_log_offset

    def are_durable(self, commit_log_offset: int) -> bool:
        """Whether the views of all predecessors are durable up to *commit_log_offset*."""
        for cell in self.cells:
            durable = cell.durable_cursor
            if not self.passes_over(cell) and (durable is None or durable.commit_log_offset < commit_log_offset):
                return False
        return True

    def slots_behind(self, commit_log_offset: int) -> list[int]:
        """Return the slots of the predecessors whose progress lies below *commit_log_offset*."""
        return [
            cell.slot for cell in self.cells if not self.passes_over(cell) and (cell.progress or 0) < commit_log_offset
        ]
