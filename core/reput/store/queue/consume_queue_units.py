"""Units of consume queues, thousands at a time with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from reput.store.queue.consume_queue import UNIT_SIZE
from reput.store.queue.queue_units import QueueUnits

__all__ = ["UNIT_DTYPE", "units_by_queue"]

UNIT_DTYPE = np.dtype([("commit_log_offset", ">i8"), ("record_size", ">i4"), ("tags_code", ">i8")])
assert UNIT_DTYPE.itemsize == UNIT_SIZE

Array = np.ndarray[Any, Any]


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
                queue_offsets[begin:end].tolist() if break_count else None,
            ),
        )
