"""Epochs: the histories of one log, and where each diverges from the one before.

A history ends where the log is cut, and where another program has written. All epochs share the bytes below the start
of the later one, so a cursor of an old epoch holds up to the lowest start of the epochs since.

Bytes that retention has removed contradict nothing. An epoch never starts below the log's minimum at that time, and one
whose start cannot be located starts there: the older history is unknown then, not refuted. Nothing is ever truncated
below the log's minimum at the time of the truncation.

``reput/epochs`` also records the log as reput last left it, as marks of (offset, CRC-32 of the bytes before it). At the
next opening they show whether RocketMQ ran in between, and from where on its bytes differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from isal.isal_zlib import crc32

from reput.errors import OffsetOutOfRange, StoreError
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.log.segments import Segments
from reput_hooks import Cursor

__all__ = ["MARK_COUNT_MAX", "Epoch", "Epochs", "Mark", "durable_end", "make_mark", "mark_holds", "read_epochs"]

MARK_SIZE = 4096
MARK_COUNT_MAX = 32


class Epoch(msgspec.Struct, frozen=True):
    """One history: it has the bytes of the epoch before up to *start_offset*, and its own from there on.

    *located* is false where nothing that is known of the epoch before is left in the log. *start_offset* is the log's
    minimum at that time, and the histories may have diverged anywhere below.
    """

    number: int
    start_offset: int
    start_timestamp: int
    located: bool = True


class Mark(msgspec.Struct, frozen=True):
    """The *size* bytes before *offset* had this CRC-32. A master's mark must not let a copy read more than ours do."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    size: Annotated[int, msgspec.Meta(ge=0, le=MARK_SIZE)]
    crc: int


class Epochs(msgspec.Struct, frozen=True):
    """All epochs of a store, ascending, and the marks of the present one, ascending."""

    store_id: str
    history: list[Epoch]
    marks: list[Mark] = []
    clean_end: int | None = None

    @property
    def epoch(self) -> int:
        """Number of the present epoch."""
        return self.history[-1].number

    def holds(self, cursor: Cursor) -> bool:
        """Tell whether the log is known to have, or to have had, all that lies below *cursor*.

        Raises:
            StoreError: the cursor belongs to another store.
        """
        self.refuse_other_store(cursor)
        since = self.since(cursor)
        return cursor.epoch <= self.epoch and all(
            epoch.located and cursor.commit_log_offset <= epoch.start_offset for epoch in since
        )

    def first_difference(self, cursor: Cursor, commit_log_offset_min: int) -> Cursor | None:
        """Return the cursor at which a view's history diverges from the log's, None if it does not.

        It never lies below *commit_log_offset_min*, the log's minimum now: the log cannot contradict what it no longer
        holds. A view that ends there or before has nothing to take back.

        Raises:
            StoreError: the cursor belongs to another store.
        """
        self.refuse_other_store(cursor)
        starts = [epoch.start_offset for epoch in self.since(cursor)]
        if cursor.epoch > self.epoch:
            # The file is older than the cursor: an earlier copy was put back.
            starts = [0]
        start = max(min(starts, default=cursor.commit_log_offset), commit_log_offset_min)
        if cursor.commit_log_offset <= start:
            return None
        return Cursor(self.store_id, self.epoch, start, 0)

    def since(self, cursor: Cursor) -> list[Epoch]:
        """Return the epochs that began after the cursor's."""
        return [epoch for epoch in self.history if epoch.number > cursor.epoch]

    def refuse_other_store(self, cursor: Cursor) -> None:
        """Refuse a cursor of another store.

        Raises:
            StoreError: it is one.
        """
        if cursor.store_id != self.store_id:
            raise StoreError(
                f"the cursor belongs to another store: cursor_store_id={cursor.store_id} store_id={self.store_id}",
                "Rebuild the view: reput rebuild STORE VIEW.",
            )

    def begin(self, start_offset: int, timestamp: int, *, located: bool = True, number: int | None = None) -> Epochs:
        """Return the epochs with a new one that diverges at *start_offset*.

        Args:
            located: the bytes below are known to be those of the previous epoch.
            number: of the new epoch, above all others; None: the next one.
        """
        number = self.epoch + 1 if number is None else number
        assert number > self.epoch
        # An epoch that lies wholly behind the new start has no bytes left.
        return msgspec.structs.replace(
            self,
            history=[*self.history, Epoch(number, start_offset, timestamp, located)],
            marks=[mark for mark in self.marks if mark.offset <= start_offset],
            clean_end=None,
        )

    def with_mark(self, mark: Mark, *, clean: bool) -> Epochs:
        """Return the epochs with one more mark; *clean* says that the log is closed there."""
        marks = [*(old for old in self.marks if old.offset < mark.offset), mark][-MARK_COUNT_MAX:]
        return msgspec.structs.replace(self, marks=marks, clean_end=mark.offset if clean else None)

    def seal(self) -> bytes:
        """Return the bytes of ``reput/epochs``."""
        return seal(self)


def read_epochs(store_directory: Path, store_id: str) -> Epochs:
    """Return the epochs of a store; one epoch from the beginning where reput never wrote.

    A repair may have begun one before the store had an id.
    """
    epochs = read_sealed(store_directory / "reput" / "epochs", Epochs)
    return msgspec.structs.replace(epochs, store_id=store_id) if epochs else Epochs(store_id, [Epoch(1, 0, 0)])


def durable_end(epochs: Epochs) -> int:
    """Return up to where the log once was on disk; marks cover only such bytes, so they hold after a crash too."""
    return max([epochs.clean_end or 0, *(mark.offset for mark in epochs.marks)])


def make_mark(segments: Segments, offset: int) -> Mark:
    """Return the mark of the bytes before *offset*, of one segment."""
    segment = segments.find(max(offset - 1, 0))
    size = min(MARK_SIZE, offset - segment.begin) if segment else 0
    return Mark(offset, size, crc32(segments.read(offset - size, size)) if size else 0)


def mark_holds(segments: Segments, mark: Mark) -> bool:
    """Tell whether the log still has the bytes that *mark* was made of."""
    if mark.offset < segments.offset_min:
        return False
    try:
        return mark.size == 0 or crc32(segments.read(mark.offset - mark.size, mark.size)) == mark.crc
    except OffsetOutOfRange:
        return False
