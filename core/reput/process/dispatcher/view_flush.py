"""ViewFlush: when a view is flushed, in which steps, and what delays a flush.

    dirty ──▶ prepare_flush, once or in steps between batches ──▶ flush ──▶ durable cursor in the cell
                 │ RetryLater                                       │ RetryLater
                 └──────────▶ the same again after a pause ◀────────┘

A view is flushed only as far as the views that it comes ``after`` are durable: after a power cut it must not refer to
records that they have lost.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.errors import DispatcherError
from reput.process.dispatcher.cursor_checks import check_flushed, returned_cursor
from reput.process.dispatcher.predecessors import Predecessors
from reput.process.dispatcher.shortage import Shortage
from reput.process.dispatcher.states import Phase
from reput.process.frames.protocols import LoopCell
from reput_hooks import CommitLogDispatcher, Cursor, RetryLater

__all__ = ["ViewFlush"]

# Shorter pauses between batches do not count as idle: a flush there would delay the next batch.
IDLE_S = 0.1
# Flush intervals after which a loop waits for the durable cursors of its predecessors.
FLUSH_PATIENCE = 5
# Pause before the next step of a flush, if there is nothing else to do: a plugin's thread may be working on it.
FLUSH_STEP_S = 0.0005


class ViewFlush:
    """The flushes of one view.

    Args:
        time_max_s: time limit for preparing a flush, with batches in between. The supervisor limits single calls.
        now: monotonic seconds.

    Attributes:
        dirty: the view has changes that are not durable.
        preparing: a flush is under way in steps.
        flushed_at: when the last flush ended, or when the first change after it was made.
    """

    def __init__(
        self,
        *,
        name: str,
        cell: LoopCell,
        predecessors: Predecessors,
        shortage: Shortage,
        interval_s: float,
        time_max_s: float,
        now: Callable[[], float],
    ) -> None:
        self.name = name
        self.cell = cell
        self.predecessors = predecessors
        self.shortage = shortage
        self.interval_s = interval_s
        self.time_max_s = time_max_s
        self.now = now
        self.dirty = False
        self.preparing = False
        self.preparing_since = 0.0
        self.resume_at = 0.0
        self.flushed_at = now()

    def note_change(self) -> None:
        """Record a change of the view: the next flush comes one interval after the first change."""
        if not self.dirty:
            self.dirty = True
            self.flushed_at = self.now()

    def forget(self) -> None:
        """Forget unflushed changes: the dispatcher is gone, and they with it."""
        self.dirty = self.preparing = False

    def alive(self) -> None:
        """Renew the time limit: the plugin is working."""
        self.preparing_since = self.now()

    def is_due(self, now: float) -> bool:
        """Whether to flush now, or to take the next step of a flush."""
        return self.preparing or (self.dirty and now >= self.resume_at and now - self.flushed_at >= self.interval_s)

    def is_due_when_idle(self, now: float, worked_at: float) -> bool:
        """Whether to flush now because no batch was dispatched for a while."""
        return self.dirty and not self.preparing and now >= self.resume_at and now - worked_at >= IDLE_S

    def timeout(self, now: float, timeout_max: float) -> float:
        """Return the seconds until a flush is due, at most *timeout_max*."""
        if self.preparing:
            return FLUSH_STEP_S
        due_at = max(self.resume_at, self.flushed_at + self.interval_s)
        return min(timeout_max, due_at - now) if self.dirty and due_at > now else timeout_max

    def holds(self) -> bool:
        """Whether the view must pause until its predecessors are durable up to its position, so that it can flush.

        Usually they catch up by themselves: a dispatcher publishes no progress while it flushes, so its successors
        stop where it will be durable.
        """
        if not self.predecessors.cells or not self.dirty:
            return False
        overdue = (self.now() - self.flushed_at) / self.interval_s
        # A predecessor that never reports a durable cursor must not stop its successors for ever.
        return FLUSH_PATIENCE < overdue < 2 * FLUSH_PATIENCE

    def step(self, dispatcher: CommitLogDispatcher, cursor: Cursor) -> bool:
        """Take one step of a flush, unless the predecessors are not durable as far as *cursor*.

        Returns whether the flush is complete.

        Raises:
            DispatcherError: the flush took too long.
        """
        if not self.preparing and not self.predecessors.are_durable(cursor.commit_log_offset):
            return False
        in_steps = self.preparing
        if not in_steps:
            self.preparing_since = self.now()
        self.cell.set_phase(Phase.FLUSH)
        try:
            self.preparing = dispatcher.prepare_flush()
        except RetryLater as error:
            self.preparing = False
            self.resume_at = self.now() + self.shortage.pause(error)
            self.cell.set_phase(Phase.IDLE)
            return False
        self.cell.set_phase(Phase.IDLE)
        if not self.preparing:
            return self.force(dispatcher, cursor, in_steps=in_steps)
        if self.now() - self.preparing_since > self.time_max_s:
            # The disk may have stopped answering. Even if it answers later, that flush does not count.
            raise DispatcherError(
                f"a flush exceeded its time limit and is not trusted: dispatcher={self.name} "
                f"flush_time_max_ms={round(self.time_max_s * 1000)} commit_log_offset={cursor.commit_log_offset}",
                "Check the disk; the view continues from its last durable cursor.",
            )
        return False

    def force(self, dispatcher: CommitLogDispatcher, cursor: Cursor, *, in_steps: bool = False) -> bool:
        """Flush a view that was dispatched up to *cursor*; return whether it did.

        Args:
            in_steps: the flush covers what was dispatched before its first step; the view may be dirty behind that.

        Raises:
            DispatcherError: the plugin returned a wrong cursor.
        """
        self.cell.set_phase(Phase.FLUSH)
        try:
            durable = returned_cursor(self.name, "flush", dispatcher.flush())
        except RetryLater as error:
            self.resume_at = self.now() + self.shortage.pause(error)
            self.cell.set_phase(Phase.IDLE)
            return False
        self.cell.set_phase(Phase.IDLE)
        if durable is not None:
            check_flushed(self.name, durable, cursor)
            self.cell.set_durable_cursor(durable.commit_log_offset, durable.epoch, durable.store_timestamp)
        self.dirty = in_steps and durable is not None and durable.commit_log_offset < cursor.commit_log_offset
        self.flushed_at = self.now()
        return True
