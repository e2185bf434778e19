"""ErrorLine: the error that a dispatcher's status shows."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from reput.process.frames.protocols import LoopCell

__all__ = ["ErrorLine"]


class ErrorLine:
    """The error line of one dispatcher. An error of the moment hides a rebuild, and that hides damaged lines.

    Attributes:
        rebuild: why the view is being rebuilt, until it has caught up; None: it is not.
    """

    def __init__(self, cell: LoopCell, logger: logging.Logger) -> None:
        self.cell = cell
        self.logger = logger
        self.rebuild: str | None = None
        # The first unreadable line of the dispatcher's own small files; None: there is none. The loop ignores them.
        self.damaged_lines: str | None = None

    def find_damaged(self, lines: Sequence[object]) -> None:
        """Log the unreadable *lines* of the dispatcher's own small files; the status shows the first."""
        for line in lines:
            self.logger.error("%s", line)
        self.damaged_lines = f"{lines[0]} damaged_lines={len(lines)}" if lines else None

    def show(self, text: str | None) -> None:
        """Show *text*; without one, show the damaged lines, if there are any."""
        self.cell.set_error(text or self.damaged_lines)

    def begin_rebuild(self, reason: str) -> None:
        """The view is being rebuilt, and *reason* says why, if it is not empty."""
        self.rebuild = "the view is being rebuilt from the log" + (f": {reason}" if reason else "")

    def show_start(self) -> None:
        """The view was started, or started again: show why it is being rebuilt, if it is."""
        self.show(self.rebuild)

    def caught_up(self) -> None:
        """The view has caught up with the log: a rebuild is over."""
        if self.rebuild is not None:
            self.rebuild = None
            self.show(None)
