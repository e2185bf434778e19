"""QueueUnits: the units of one queue in a batch. The kernel finds them, or else `consume_queue_units` with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reput.store.queue.consume_queue import UNIT, UNIT_SIZE

__all__ = ["QueueUnits"]


class QueueUnits(NamedTuple):
    """The units of one queue in the order of the log.

    Attributes:
        data: the units as they are stored.
        commit_log_offset, record_size, queue_offset: of the first one.
        last: commit-log offset in the last one.
        max_physic_offset: where the last one's record ends.
        consecutive: whether each queue offset is one more than that before.
        queue_offsets: of all; only where they are not consecutive.
    """

    data: bytes
    commit_log_offset: int
    record_size: int
    queue_offset: int
    last: int
    max_physic_offset: int
    consecutive: bool
    queue_offsets: list[int] | None

    def __len__(self) -> int:
        return len(self.data) // UNIT_SIZE

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (commit_log_offset, record_size, tags_code, queue_offset) of each."""
        if self.queue_offsets is None:
            queue_offsets = list(range(self.queue_offset, self.queue_offset + len(self)))
        else:
            queue_offsets = self.queue_offsets
        for unit, queue_offset in zip(UNIT.iter_unpack(self.data), queue_offsets, strict=True):
            yield *unit, queue_offset

    def without_first(self) -> QueueUnits:
        """Return all but the first unit, of several."""
        commit_log_offset, record_size, _ = UNIT.unpack_from(self.data, UNIT_SIZE)
        queue_offsets = None if self.queue_offsets is None else self.queue_offsets[1:]
        return QueueUnits(
            self.data[UNIT_SIZE:],
            commit_log_offset,
            record_size,
            self.queue_offset + 1 if queue_offsets is None else queue_offsets[0],
            self.last,
            self.max_physic_offset,
            self.consecutive,
            queue_offsets,
        )
