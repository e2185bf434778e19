"""How far the queues of a store reach that a RocketMQ closed cleanly, so that reput may go on behind them.

RocketMQ cuts a queue without zeroing, so behind its end may lie old units that look like good ones. The end is
therefore the last unit whose record in the log says the same: topic, queue, queue offset, size and tag.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.filter.string_hash import string_hash
from reput.store.consume_queue import PRE_BLANK_SIZE, UNIT_SIZE, holds_unit_of
from reput.store.consume_queue_builder import QueueTable, queue_directories
from reput.store.consume_queue_ext import is_address
from reput.store.consume_queue_files import QueueEnd, queue_file_begins
from reput.store.consume_queue_units import UNIT_DTYPE
from reput.store.delay_level import SCHEDULE_TOPIC
from reput.store.file_name import file_name
from reput.store.record import decode_record
from reput.store.segments import Segments

__all__ = ["adopt_queues"]


def adopt_queues(directory: Path, store_directory: Path, file_size: int) -> tuple[QueueTable, int]:
    """Return how far each queue below *directory* reaches, and up to where no record lacks its unit; 0: nobody knows.

    RocketMQ dispatches in the order of the log, so whatever lies before the last unit of all queues has its unit, too.
    Only where a queue has units that disagree with the log is it asked to go on from that queue's own end.

    Nothing is changed. Queues without a unit are left out.

    Raises:
        DamagedStore: a file is missing inside of a queue.
    """
    segments = Segments(store_directory / "commitlog")
    table: QueueTable = {}
    complete_to = 0
    doubtful_from: list[int] = []
    for topic, queue_id, queue_directory in queue_directories(directory):
        known, agrees = find_end(queue_directory, file_size, QueueLog(segments, topic, queue_id))
        end = known.max_physic_offset if known else 0
        complete_to = max(complete_to, end)
        if known is not None:
            table.setdefault(topic, {})[queue_id] = known
        if not agrees:
            doubtful_from.append(end)
    return table, min([complete_to, *doubtful_from])


class QueueLog:
    """What the commit log says of one queue."""

    def __init__(self, segments: Segments, topic: str, queue_id: int) -> None:
        self.segments = segments
        self.topic = topic
        self.queue_id = queue_id

    def agrees(self, queue_offset: int, commit_log_offset: int, record_size: int, tags_code: int) -> bool:
        """Tell whether the log has this unit's record, or has it no more."""
        if record_size == PRE_BLANK_SIZE or commit_log_offset < self.segments.offset_min:
            return True
        try:
            record = decode_record(self.segments.read(commit_log_offset, record_size))
        except (DamagedStore, OffsetOutOfRange):
            return False
        if record.commit_log_offset != commit_log_offset or record.record_size != record_size:
            return False
        if not holds_unit_of(record, self.topic, self.queue_id, queue_offset):
            return False
        if is_address(tags_code) or record.topic == SCHEDULE_TOPIC:
            return True
        return tags_code == string_hash(record.tags or "")


def find_end(directory: Path, file_size: int, log: QueueLog) -> tuple[QueueEnd | None, bool]:
    """Return how far one queue reaches, None if it has no unit; and whether none disagrees with the log."""
    agrees = True
    begins = queue_file_begins(directory)
    # As many as there are: a file of a strange name may be any number of files away.
    if begins != [begins[0] + number * file_size for number in range(len(begins))]:
        raise DamagedStore(f"consume queue lacks a file: directory={directory} files={len(begins)}")
    for begin in reversed(begins):
        data = (directory / file_name(begin)).read_bytes()
        units = np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_SIZE)
        valid = (units["commit_log_offset"] >= 0) & (units["record_size"] > 0)
        count = len(units) if valid.all() else int(np.argmin(valid))
        agreeing = agreeing_count(units[:count].tolist(), begin // UNIT_SIZE, log)
        agrees &= agreeing == count
        count = agreeing
        real = np.flatnonzero(units["record_size"][:count] != PRE_BLANK_SIZE)
        if len(real):
            last = int(real[-1])
            offset, size, _ = units[last].tolist()
            return QueueEnd(begins[0], begin + (last + 1) * UNIT_SIZE, offset, offset + size), agrees
    return None, agrees


def agreeing_count(units: list[tuple[int, int, int]], first: int, log: QueueLog) -> int:
    """Return how many of *units*, the first of which has queue offset *first*, agree with the log."""
    if not units or log.agrees(first + len(units) - 1, *units[-1]):
        return len(units)
    low, high = 0, len(units) - 1
    while low < high:
        middle = (low + high) // 2
        if log.agrees(first + middle, *units[middle]):
            low = middle + 1
        else:
            high = middle
    return low
