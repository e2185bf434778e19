"""Queue offsets in the log: where the message with a queue offset lies, and whether retention has deleted it.

If a topic is deleted and created again, its queues count from 0 again, and the log still has the messages of the
deleted topic. A queue offset is that of a message of the present topic.

    log      0  1  2  3  4  0  1  2         queue offsets of one queue, in the order of the log
                            └ the present numbers of the queue begin here
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from reput.errors import OffsetOutOfRange
from reput.store.queue.queue_offsets import QueueOffsets, read_queue_offsets
from reput.store.record.layout import TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput.store.record.record_columns import RecordColumns
from reput.table.log_table import LogTable

__all__ = ["QueueNumbers", "find_queue_offsets", "require_queue_offsets"]

Queue = tuple[str, int]
Array = np.ndarray[Any, Any]


class QueueNumbers:
    """The present numbers of one queue in the log.

    Attributes:
        first, last: queue offsets of its first and last record; None: the log has no record of the queue.
        places: of each asked queue offset, the commit-log offset of the first record with it or a later one; without an
            entry if there is none.
    """

    def __init__(self, asked: Collection[int]) -> None:
        self.asked = frozenset(asked)
        self.first: int | None = None
        self.last: int | None = None
        self.places: dict[int, int] = {}

    def add(self, queue_offsets: Array, commit_log_offsets: Array) -> None:
        """Take in the queue's next records."""
        restarts = np.flatnonzero(queue_offsets == 0)
        if len(restarts):
            self.first, self.places = None, {}
            queue_offsets, commit_log_offsets = queue_offsets[restarts[-1] :], commit_log_offsets[restarts[-1] :]
        if self.first is None:
            self.first = int(queue_offsets[0])
        self.last = int(queue_offsets[-1])
        for queue_offset in self.asked - self.places.keys():
            found = np.flatnonzero(queue_offsets >= queue_offset)
            if len(found):
                self.places[queue_offset] = int(commit_log_offsets[found[0]])


def find_queue_offsets(
    table: LogTable, asked: Mapping[Queue, Collection[int]], begin: int, until: int
) -> dict[Queue, QueueNumbers]:
    """Return the numbers of the queues in *asked* in [begin, until) of the log, and the places of the asked offsets."""
    numbers = {queue: QueueNumbers(offsets) for queue, offsets in asked.items()}
    if not numbers:
        return numbers
    known = {(topic.encode(), queue_id): found for (topic, queue_id), found in numbers.items()}
    for columns in table.searcher().read(begin, until):
        queues, queue_index = columns.queues()
        wanted = [(number, known[queue]) for number, queue in enumerate(queues) if queue in known]
        if not wanted:
            continue
        counted = have_queue_offsets(columns)
        for number, found in wanted:
            rows = np.flatnonzero(counted & (queue_index == number))
            if len(rows):
                header = columns.header[rows]
                found.add(header["queue_offset"], header["commit_log_offset"])
    return numbers


def require_queue_offsets(table: LogTable, asked: Mapping[Queue, int], found: Mapping[Queue, QueueNumbers]) -> None:
    """Refuse queue offsets whose records retention has deleted.

    If ``fail_on_data_loss`` is off, nothing is refused. If a trimmed log has no record of the queue, reput's snapshot
    of queue offsets shows whether it had any.

    Args:
        found: the numbers of the queues in the whole log.

    Raises:
        OffsetOutOfRange: retention has deleted some of the records, or may have.
    """
    if not table.options.fail_on_data_loss or not asked:
        return
    begin = table.offset_min
    snapshot = read_queue_offsets(table.store_directory) if begin else None
    for queue, queue_offset in asked.items():
        first = found[queue].first
        if first is not None and queue_offset < first:
            raise lost(queue, queue_offset, f"queue_offset_min={first}")
        # The log still holds every record after the snapshot, and none of them is in this queue.
        if (first is None and begin) and (
            snapshot is None
            or snapshot.commit_log_offset < begin
            or queue_offset < QueueOffsets(snapshot.queues).next_offset(*queue)
        ):
            raise lost(queue, queue_offset, f"commit_log_offset_min={begin}")


def lost(queue: Queue, asked: int, present: str) -> OffsetOutOfRange:
    """Return the error for a queue whose records were deleted."""
    return OffsetOutOfRange(
        f"the log no longer has this queue offset: topic={queue[0]} queue_id={queue[1]} queue_offset={asked} {present}",
        "Retention has deleted these records. Begin later, or set failOnDataLoss to false to read what is left.",
    )


def have_queue_offsets(columns: RecordColumns) -> Array:
    """Return which records are in a queue: prepared and rolled-back ones are in none."""
    transaction = columns.header["sys_flag"].astype(np.int64) & TRANSACTION_ROLLBACK_TYPE
    counted: Array = (transaction != TRANSACTION_PREPARED_TYPE) & (transaction != TRANSACTION_ROLLBACK_TYPE)
    return counted
