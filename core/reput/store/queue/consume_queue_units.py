"""Units of consume queues, thousands at a time with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from reput.store.queue.consume_queue import UNIT, UNIT_SIZE

__all__ = ["UNIT_DTYPE", "QueueUnits", "units_by_queue"]

UNIT_DTYPE = np.dtype([("commit_log_offset", ">i8"), ("record_size", ">i4"), ("tags_code", ">i8")])
assert UNIT_DTYPE.itemsize == UNIT_SIZE

Array = np.ndarray[Any, Any]


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
    queue_offsets: Array | None

    def __len__(self) -> int:
        return len(self.data) // UNIT_SIZE

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (commit_log_offset, record_size, tags_code, queue_offset) of each."""
        if self.queue_offsets is None:
            queue_offsets = list(range(self.queue_offset, self.queue_offset + len(self)))
        else:
            queue_offsets = self.queue_offsets.tolist()
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
            self.queue_offset + 1 if queue_offsets is None else int(queue_offsets[0]),
            self.last,
            self.max_physic_offset,
            self.consecutive,
            queue_offsets,
        )


def units_by_queue(rows: Array) -> Iterator[tuple[int, QueueUnits]]:
    """Yield (queue index, units) of each queue in *rows*, which are rows of a `DispatchBatch`."""
    if not len(rows):
        return
    queue_index = rows["queue_index"]
    if (queue_index != queue_index[0]).any():
        # Number and place in one word: sorting words is several times as fast as a stable sort of the numbers.
        keys = (queue_index.astype(np.uint64) << np.uint64(32)) | np.arange(len(rows), dtype=np.uint64)
        keys.sort()
        rows = rows[(keys & np.uint64(0xFFFFFFFF)).astype(np.intp)]
        queue_index = rows["queue_index"]
        begins = np.concatenate(([0], np.flatnonzero(queue_index[1:] != queue_index[:-1]) + 1))
    else:
        begins = np.zeros(1, np.intp)
    ends = np.append(begins[1:], len(rows))
    offsets, sizes, queue_offsets = rows["commit_log_offset"], rows["record_size"], rows["queue_offset"]
    units = np.empty(len(rows), UNIT_DTYPE)
    units["commit_log_offset"] = offsets
    units["record_size"] = sizes
    units["tags_code"] = rows["tags_code"]
    data = units.tobytes()
    # Between two queues nothing has to be consecutive.
    breaks = np.zeros(len(rows), np.int64)
    breaks[1:] = queue_offsets[1:] != queue_offsets[:-1] + 1
    breaks[begins] = 0
    break_counts = np.add.reduceat(breaks, begins)
    lasts = ends - 1
    for index, begin, end, commit_log_offset, record_size, queue_offset, last, last_size, break_count in zip(
        queue_index[begins].tolist(),
        begins.tolist(),
        ends.tolist(),
        offsets[begins].tolist(),
        sizes[begins].tolist(),
        queue_offsets[begins].tolist(),
        offsets[lasts].tolist(),
        sizes[lasts].tolist(),
        break_counts.tolist(),
        strict=True,
    ):
        yield (
            index,
            QueueUnits(
                data[begin * UNIT_SIZE : end * UNIT_SIZE],
                commit_log_offset,
                record_size,
                queue_offset,
                last,
                last + last_size,
                break_count == 0,
                queue_offsets[begin:end] if break_count else None,
            ),
        )
