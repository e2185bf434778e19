"""LogHistory: marks of a log, by which a follower finds out how far its own log is the same, without its bytes.

A mark is a CRC-32 of the bytes before an offset. A reput keeps up to 32 of them, over the whole log; RocketMQ has none,
and there the overlap alone is compared.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec

from reput.store.log.segments import Segments
from reput.store.state.epochs import MARK_COUNT_MAX, Epochs, Mark, mark_holds

__all__ = ["LogHistory"]


class LogHistory(msgspec.Struct, frozen=True):
    """What a master tells of its log: who wrote it, in which epoch, and marks, ascending."""

    store_id: str
    epoch: int
    marks: Annotated[list[Mark], msgspec.Meta(max_length=MARK_COUNT_MAX)]

    @classmethod
    def of(cls, epochs: Epochs) -> Self:
        """Return the history of a store of our own."""
        return cls(epochs.store_id, epochs.epoch, list(epochs.marks))

    def first_contradiction(self, segments: Segments, own_end: int) -> Mark | None:
        """Return the first mark that a log which ends at *own_end* contradicts, None if it holds all that it can."""
        for mark in self.marks:
            # Bytes that either side does not have contradict nothing.
            if segments.offset_min + mark.size <= mark.offset <= own_end and not mark_holds(segments, mark):
                return mark
        return None
