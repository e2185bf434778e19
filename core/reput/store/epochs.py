"""Epochs: the histories of one log, and where each parts from the one before.

A history ends where the log is cut, and where another program has written. All epochs share the bytes below the start
of the later one, so a cursor of an old epoch holds up to the lowest start of the epochs since.

``reput/epochs`` also keeps what the log looked like when we last left it: marks of (offset, CRC-32 of the bytes before
it). At the next opening they show whether a RocketMQ ran in between, and from where on its bytes differ.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from isal.isal_zlib import crc32

from reput.errors import OffsetOutOfRange, StoreError
from reput.store.sealed_file import read_sealed, seal
from reput.store.segments import Segments
from reput_hooks import Cursor

__all__ = ["Epoch", "Epochs", "Mark", "read_epochs"]

MARK_SIZE = 4096
MARK_COUNT_MAX = 32


class Epoch(msgspec.Struct, frozen=True):
    """One history: it has the bytes of the epoch before up to *start_offset*, and its own from there on."""

    number: int
    start_offset: int
    start_timestamp: int


class Mark(msgspec.Struct, frozen=True):
    """The *size* bytes before *offset* had this CRC-32."""

    offset: int
    size: int
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

    def first_difference(self, cursor: Cursor) -> Cursor | None:
        """Return the cursor at which a view's history parts from the log's, None where it does not.

        Raises:
            StoreError: the cursor belongs to another store.
        """
        if cursor.store_id != self.store_id:
            raise StoreError(
                f"the cursor is of another store: cursor_store_id={cursor.store_id} store_id={self.store_id}",
                "Build the view again: reput rebuild STORE VIEW.",
            )
        starts = [epoch.start_offset for epoch in self.history if epoch.number > cursor.epoch]
        if cursor.epoch > self.epoch:
            starts = [0]
        if not starts or cursor.commit_log_offset <= min(starts):
            return None
        return Cursor(self.store_id, self.epoch, min(starts), 0)

    def begin(self, start_offset: int, timestamp: int) -> Epochs:
        """Return the epochs with a new one that parts at *start_offset*."""
        # An epoch that lies wholly behind the new start has no bytes left.
        return msgspec.structs.replace(
            self,
            history=[*self.history, Epoch(self.epoch + 1, start_offset, timestamp)],
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
    """Return the epochs of a store; one epoch from the beginning where reput never wrote."""
    epochs = read_sealed(store_directory / "reput" / "epochs", Epochs)
    return epochs or Epochs(store_id, [Epoch(1, 0, 0)])


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
