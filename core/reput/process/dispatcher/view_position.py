"""ViewPosition: up to where a view is dispatched. Every move is published, so that readers know what they may trust."""

from __future__ import annotations

from reput.process.frames.protocols import LoopCell
from reput.store.state.epochs import Epochs
from reput_hooks import Cursor

__all__ = ["ViewPosition"]


class ViewPosition:
    """The position of one view. One thread.

    Args:
        count_from_first: count records from the first one in the log, instead of from the log's birth.

    Attributes:
        cursor: the position.
        ordinal: number of records before it; None: not known.
        deletions_here: number of topic deletions passed to the plugin at this position.
    """

    def __init__(self, cell: LoopCell, *, count_from_first: bool) -> None:
        self.cell = cell
        self.count_from_first = count_from_first
        self.cursor = Cursor("", 0, 0, 0)
        self.ordinal: int | None = None
        self.deletions_here = 0

    @property
    def commit_log_offset(self) -> int:
        """The commit-log offset of the position."""
        return self.cursor.commit_log_offset

    def begin(self, epochs: Epochs, cursor: Cursor | None, minimum: int) -> None:
        """Take up *cursor* in the log's current history; None: the log's first record, at *minimum*."""
        if cursor is None:
            self.cursor = Cursor(epochs.store_id, epochs.epoch, minimum, 0)
            # The number of earlier records is known only if the log begins at its birth.
            self.ordinal = 0 if minimum == 0 or self.count_from_first else None
        else:
            self.cursor = Cursor(epochs.store_id, epochs.epoch, cursor.commit_log_offset, cursor.store_timestamp)
            self.ordinal = None
        # Deletions passed on at another position, or to a view that was emptied since, do not count here.
        self.deletions_here = 0

    def move(self, cursor: Cursor, ordinal: int | None) -> None:
        """The view has come to *cursor*."""
        self.cursor = cursor
        self.ordinal = ordinal
        self.deletions_here = 0
        self.publish()

    def skip(self, minimum: int) -> None:
        """Continue at *minimum*: what lies before it is gone from the log."""
        self.cursor = Cursor(self.cursor.store_id, self.cursor.epoch, minimum, self.cursor.store_timestamp)
        self.ordinal = None
        self.publish()

    def publish(self) -> None:
        """Show readers the position."""
        self.cell.set_progress(self.cursor.commit_log_offset, self.ordinal)
