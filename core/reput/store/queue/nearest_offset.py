"""nearest_offset: which message of a queue is nearest to a store time, by the rule of RocketMQ 4.

Two peculiarities are RocketMQ's. It finds the file by the times at which the files were last written, which a copy of a
store or a rebuild changes; and units whose records are gone count as older than all others, without a time.

Source: RocketMQ 4.9 store, ConsumeQueue.getOffsetInQueueByTime and MappedFileQueue.getMappedFileByTime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["QueueFile", "nearest_offset"]


class QueueFile(NamedTuple):
    """One file of a queue: its first queue offset, the one behind its last unit, and when it was written, in ms."""

    first: int
    end: int
    last_modified: int


def nearest_offset(
    files: Sequence[QueueFile], timestamp: int, low: int, store_timestamp: Callable[[int], int | None]
) -> int:
    """Return the queue offset of the message stored nearest to *timestamp* (ms), the earlier of two; 0 without any.

    Args:
        files: ascending.
        low: first queue offset that can be read.
        store_timestamp: queue offset → store time of its record; None if the log no longer has the record.
    """
    if not files:
        return 0
    file = next((file for file in files if file.last_modified >= timestamp), files[-1])
    first, last = max(low, file.first), file.end - 1
    before: int | None = None
    before_time: int | None = None
    after: int | None = None
    after_time = 0
    while first <= last:
        # The middle counts from the file's begin; with the same parity it is that of the queue offsets.
        middle = file.first + (first - file.first + last - file.first) // 2
        stored = store_timestamp(middle)
        if stored is None:
            before, first = middle, middle + 1
        elif stored == timestamp:
            return middle
        elif stored > timestamp:
            after, after_time, last = middle, stored, middle - 1
        else:
            before, before_time, first = middle, stored, middle + 1
    if before_time is None:
        # RocketMQ then uses its not-found value: one byte before the file, in units.
        return after if after is not None else max(file.first - 1, 0)
    assert before is not None
    if after is None:
        return before
    return after if abs(timestamp - before_time) > abs(timestamp - after_time) else before
