"""Positions of a stream in the log, in the form of Spark's checkpoint, and their comparison with the log.

A position is exclusive: everything below *offset* was read.

    {"v": 1, "store": "<store id>", "epoch": <n>, "offset": <commit-log offset>,
     "marks": [[<commit-log offset>, <size>, <store time>, <body CRC>], ...],
     "begins": [[<topic>, <queue id>, <commit-log offset>], ...]}

A checkpoint continues with the store that has its id. If reput never wrote a store, the store has no id that survives
the broker's retention, and it gets another id when reput first writes it. In these cases the marks decide; see
`reput.table.log_marks`.

Queues in *begins* have no rows below the given offset, because the query began there at a time or at the queue's end.
An entry is dropped once the position has passed its offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reput.errors import StoreError
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import derive_store_id, read_identity
from reput.table import LogTable
from reput.table.log_marks import LogMark, MarkComparison, compare_marks, find_parting, joined_marks, last_marks
from reput_hooks import Cursor

__all__ = ["StreamOffset", "StreamPositions", "begins_of"]

OFFSET_VERSION = 1


class StreamOffset(msgspec.Struct, frozen=True, rename={"version": "v"}):
    """The position of a stream. *marks* cover the log below it; a position that an older reput wrote has none.

    *begins*: (topic, queue id, commit-log offset) of queues that begin after the position.
    """

    version: int
    store: str
    epoch: int
    offset: int
    marks: list[LogMark] = []
    begins: list[tuple[str, int, int]] = []


def begins_of(offset: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return the queues of a position from Spark's checkpoint that begin after the position."""
    return [(topic, queue_id, begin) for topic, queue_id, begin in offset.get("begins", ())]


class StreamPositions:
    """Positions of one stream in the log of *table*.

    *given*: the store's id in the checkpoint, from the option ``storeId``.
    """

    def __init__(self, table: LogTable, given: str | None) -> None:
        self.table = table
        self.given = given
        identity = read_identity(table.store_directory)
        self.recorded = None if identity is None else identity.store_id
        self.store_id = self.recorded or given or table.store_id
        # The last position that the log was found to continue.
        self.known: StreamOffset | None = None

    def offset(self, commit_log_offset: int, begins: Sequence[tuple[str, int, int]] = ()) -> dict[str, Any]:
        """Return a position in the current history, in the form of Spark's checkpoint.

        Args:
            begins: begins of single queues; begins below the position are left out.
        """
        segments = self.table.segments
        known = [] if self.known is None else self.known.marks
        begin = self.table.offset_min if self.known is None else self.known.offset
        marks = joined_marks(
            [mark for mark in known if mark.commit_log_offset < commit_log_offset],
            last_marks(segments, begin, commit_log_offset),
            segments.segment_size,
        )
        epoch = read_epochs(self.table.store_directory, self.store_id).epoch
        later = [place for place in begins if place[2] > commit_log_offset]
        found: dict[str, Any] = msgspec.to_builtins(
            StreamOffset(OFFSET_VERSION, self.store_id, epoch, commit_log_offset, marks, later)
        )
        if not later:
            del found["begins"]
        return found

    def position(self, offset: dict[str, Any], log_end: int) -> int:
        """Return the commit-log offset of a position from Spark's checkpoint.

        Raises:
            StoreError: the position belongs to another store, or to a history that the log no longer has.
        """
        try:
            known = msgspec.convert(offset, StreamOffset)
        except msgspec.ValidationError as error:
            raise StoreError(f"the checkpoint has no offset written by reput: offset={offset} error={error}") from None
        if known.version != OFFSET_VERSION:
            raise StoreError(f"a newer reput wrote the checkpoint: v={known.version} known={OFFSET_VERSION}")
        table = self.table
        table.segments.refresh()
        known = msgspec.structs.replace(known, marks=[mark for mark in known.marks if mark.end <= known.offset])
        compared = compare_marks(table.segments, log_end, known.marks)
        goes_on = self.known is not None and known.store == self.store_id
        if not goes_on and known.store not in (self.recorded, self.given):
            self.require_marks(known, compared)
            if self.recorded is None:
                self.store_id = known.store
        epochs = read_epochs(table.store_directory, self.store_id)
        cursor = Cursor(self.store_id, known.epoch, known.offset, 0)
        cut = find_parting(epochs, cursor, compared, table.segments.offset_min)
        if cut is not None:
            raise StoreError(
                f"the log was cut below the checkpoint: cut_at={cut} checkpoint_offset={known.offset} "
                f"checkpoint_epoch={known.epoch} epoch={epochs.epoch} {compared}",
                "Remove the rows from cut_at on from the query's output, and start the query with a new checkpoint and "
                "startingOffsets set to cut_at.",
            )
        if compared.ahead is not None:
            raise StoreError(
                f"the log ends before the checkpoint: log_end={log_end} checkpoint_offset={known.offset} {compared}",
                "Restore the log that the query has read. If the log was cut, remove the rows from log_end on from "
                "the query's output, and start the query with a new checkpoint and startingOffsets set to log_end.",
            )
        if self.known is None or known.offset > self.known.offset:
            self.known = known
        return known.offset

    def require_marks(self, known: StreamOffset, compared: MarkComparison) -> None:
        """Refuse a checkpoint whose store can be recognised neither by its marks nor by its derived id.

        Raises:
            StoreError: neither matches this store.
        """
        if compared.agrees or (not known.marks and known.store == derive_store_id(self.table.segments)):
            return
        raise StoreError(
            f"the checkpoint belongs to another store: checkpoint_store_id={known.store} "
            f"checkpoint_offset={known.offset} "
            f"store={self.table.store_directory} store_id={self.recorded or 'none'} "
            f"offset_min={self.table.segments.offset_min} {compared}",
            f"Start the query with its own checkpoint. If both are the same store, confirm it with the option "
            f"storeId={known.store}.",
        )
