"""LogReading: reads the commit log for a dispatcher that is too far behind for the ring, and waits at damage."""

from __future__ import annotations

import logging
from collections.abc import Callable

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.process.dispatcher.batch_bound import BatchBound
from reput.process.dispatcher.states import Phase
from reput.process.frames.log_feed import LogFeed, LogRange
from reput.process.frames.protocols import FrameHeader, LoopCell

__all__ = ["HOLD_S", "LogReading"]

# How often to check whether damage was accepted while the dispatcher waits at it.
DAMAGE_RETRY_S = 1.0
HOLD_S = 0.01


class LogReading:
    """One dispatcher's reading of the log.

    Args:
        show_error: shows a text as the dispatcher's error in the status; None: the error is over.
        now: monotonic seconds.

    Attributes:
        damage: the damage that the dispatcher waits at; None: it waits at none.
        resume_at: when to read again; an earlier read would find the same.
    """

    def __init__(
        self,
        *,
        log_feed: LogFeed,
        header: FrameHeader,
        cell: LoopCell,
        batch_bound: BatchBound,
        logger: logging.Logger,
        show_error: Callable[[str | None], None],
        now: Callable[[], float],
    ) -> None:
        self.log_feed = log_feed
        self.header = header
        self.cell = cell
        self.batch_bound = batch_bound
        self.logger = logger
        self.show_error = show_error
        self.now = now
        self.damage: str | None = None
        self.resume_at = 0.0

    def read(self, begin: int, bound: int) -> LogRange | None:
        """Return the records of the next batch in [begin, bound); None: try again, from `resume_at` on.

        Raises:
            OffsetOutOfRange: the log does not hold *begin*, and retention is not the reason.
        """
        try:
            if self.log_feed.scan is None:
                # The first scan loads its libraries, which takes seconds on a busy machine.
                self.cell.set_phase(Phase.START)
                self.log_feed.open()
            self.cell.set_phase(Phase.DISPATCH)
            found = self.log_feed.read(begin, bound, self.batch_bound.record_count, self.batch_bound.size)
        except DamagedStore as error:
            self.stand_before_damage(error)
            return None
        except OffsetOutOfRange:
            minimum = self.header.commit_log_offset_min
            if minimum is not None and minimum > begin:
                # The writer has trimmed the log. The loop expires the view before it reads again.
                return None
            if not self.log_feed.begins_behind(begin):
                raise
            # Retention removes a segment first and announces it then; in between there is nothing to read here.
            self.wait(HOLD_S)
            return None
        if self.damage is not None:
            self.damage = None
            self.show_error(None)
        return found

    def stand_before_damage(self, error: DamagedStore) -> None:
        """Wait at bytes that are no record until an operator accepts them: damage is never skipped silently."""
        if self.damage is None:
            self.logger.error("%s", error)
        self.damage = str(error)
        self.cell.set_error(self.damage)
        self.wait(DAMAGE_RETRY_S)

    def wait(self, seconds: float) -> None:
        """Close the log, and do not read it for *seconds*."""
        self.resume_at = self.now() + seconds
        self.log_feed.close()
        self.cell.set_phase(Phase.IDLE)
