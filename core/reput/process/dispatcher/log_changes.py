"""LogChanges: tells the plugin of a view what happened to the log: trimmed, cut and replaced, or a topic deleted.

Each change moves the position at most; the loop decides where it reads on.
"""

from __future__ import annotations

import logging
import time

from reput.process.dispatcher.states import Phase
from reput.process.dispatcher.view_flush import ViewFlush
from reput.process.dispatcher.view_position import ViewPosition
from reput.process.frames.frame import Frame
from reput.process.frames.protocols import LoopCell
from reput.process.views.gaps import Gap, Gaps
from reput_hooks import CommitLogDispatcher, Cursor

__all__ = ["LogChanges"]


class LogChanges:
    """The changes that one view was told of. One thread.

    Attributes:
        expired_below: the plugin knows that the log begins there.
        gaps: the ranges that retention removed before they were dispatched; read at each start.
    """

    def __init__(self, position: ViewPosition, cell: LoopCell, flushing: ViewFlush, logger: logging.Logger) -> None:
        self.position = position
        self.cell = cell
        self.flushing = flushing
        self.logger = logger
        self.expired_below = 0
        self.gaps: Gaps

    def load(self, gaps: Gaps) -> None:
        """Take up the gaps that the view has."""
        self.gaps = gaps
        self.cell.set_gap_bytes(gaps.size)

    def expire(self, dispatcher: CommitLogDispatcher, minimum: int) -> None:
        """Tell the plugin that the log begins at *minimum* now, and record what the view lost."""
        self.expired_below = minimum
        lost = self.position.commit_log_offset
        if lost < minimum:
            self.logger.error("retention removed records before they were dispatched: from=%d until=%d", lost, minimum)
            self.gaps.add(Gap(time.time_ns() // 1_000_000, lost, minimum))
            self.cell.set_gap_bytes(self.gaps.size)
            self.position.skip(minimum)
            self.flushing.dirty = True
        self.cell.set_phase(Phase.EXPIRE)
        dispatcher.expire(minimum)
        self.cell.set_phase(Phase.IDLE)

    def begin_epoch(self, dispatcher: CommitLogDispatcher, frame: Frame, minimum: int) -> None:
        """Continue in the history that *frame* announces; a view that reaches past its beginning is truncated."""
        position = self.position
        self.cell.set_phase(Phase.EXPIRE)
        assert frame.end >= minimum
        here = position.cursor
        cut = Cursor(here.store_id, frame.epoch, frame.end, frame.end_store_timestamp)
        if frame.end < here.commit_log_offset:
            # Readers must not trust what the plugin is about to truncate.
            self.cell.set_progress(frame.end, frame.ordinal)
            dispatcher.truncate(cut)
            position.cursor, position.ordinal = cut, frame.ordinal
        else:
            position.cursor = Cursor(cut.store_id, cut.epoch, here.commit_log_offset, here.store_timestamp)
        self.flushing.dirty = True
        self.cell.set_phase(Phase.IDLE)

    def delete_topic(self, dispatcher: CommitLogDispatcher, topic: str) -> None:
        """Tell the plugin that a topic was deleted at the position."""
        self.cell.set_phase(Phase.EXPIRE)
        dispatcher.delete_topic(topic)
        # Readers may have files of the topic open.
        self.cell.raise_generation()
        self.position.deletions_here += 1
        self.flushing.dirty = True
        self.cell.set_phase(Phase.IDLE)
