"""How far the queues reach in a store that RocketMQ closed cleanly, so that reput may continue behind them.

RocketMQ cuts a queue without zeroing, so old units that look good may lie behind its end. The end is therefore the last
unit that agrees with its record in the log: topic, queue, queue offset, size and tag.

Files may be missing since then: a queue's newest, its oldest, or all. The span of each queue in the log, recorded when
reput found the store, reveals that; see `queue_spans`. RocketMQ would serve such a queue as empty or shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.filter.string_hash import string_hash
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.disk.file_name import file_name
from reput.store.ext.consume_queue_ext import is_address
from reput.store.log.segments import Segments
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, Unit, holds_unit_of
from reput.store.queue.consume_queue_builder import ConsumeQueueBuilder, QueueTable, queue_directories
from reput.store.queue.consume_queue_files import QueueEnd, queue_file_begins
from reput.store.queue.consume_queue_units import UNIT_DTYPE
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.record import decode_record
from reput.store.recovery.queue_spans import QueueSpan, read_found_queues

__all__ = ["adopt_queues"]


def adopt_queues(directory: Path, store_directory: Path, file_size: int) -> tuple[QueueTable, int]:
    """Return how far each queue below *directory* reaches, and up to where no record lacks its unit; 0: unknown.

    RocketMQ dispatches in the order of the log, so every record before the last unit of all queues has its unit, too.
    If a queue has units that disagree with the log, or lacks its last ones, the second value is at most that queue's
    own end.

    Changes nothing. Queues without a unit are left out.

    Raises:
        DamagedStore: a queue is missing, or one of its files other than the last ones.
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
    # Without any queue there is nothing to take over, and all of them are built anyway.
    for topic, queue_id, span in spans_with_units(store_directory, table) if complete_to else ():
        known = table.get(topic, {}).get(queue_id)
        if known is None or not has_unit(directory, topic, queue_id, span.first, file_size):
            raise DamagedStore(
                f"the consume queue lacks the first of the log's messages: topic={topic!r} "
                f"queue_id={queue_id} queue_offset={span.first}"
            )
        if known.end < span.end * UNIT_SIZE:
            doubtful_from.append(known.max_physic_offset)
    return table, min([complete_to, *doubtful_from])


def spans_with_units(store_directory: Path, table: QueueTable) -> Iterator[tuple[str, int, QueueSpan]]:
    """Yield (topic, queue id, span) of the queues that had records in the log, and so had units in RocketMQ's files.

    A queue that was deleted with its topic is left out: *table* has no queue of that topic, and the stored
    configuration no longer lists the topic. Its records stay in the log, unused.
    """
    found = read_found_queues(store_directory)
    if not found:
        return
    has_batch_queue = BatchTopics(store_directory).has
    topics = TopicConfigManager(store_directory)
    # If it cannot be read, deleted queues come back. That is better than to lose queues that were not deleted.
    with suppress(DamagedStore):
        topics.load()
    described = set(topics.entries)
    for topic, queues in found.items():
        if ConsumeQueueBuilder.refusal(topic) is not None or has_batch_queue(topic):
            continue
        is_deleted = bool(described) and topic not in described and topic not in table
        for queue_id, span in queues.items():
            if not is_deleted or span.by_other_topics:
                yield topic, queue_id, span


def has_unit(directory: Path, topic: str, queue_id: int, queue_offset: int, file_size: int) -> bool:
    """Tell whether a queue has the unit of a record at this queue offset."""
    at = queue_offset * UNIT_SIZE
    path = directory / topic / str(queue_id) / file_name(at - at % file_size)
    try:
        with path.open("rb") as file:
            file.seek(at % file_size)
            data = file.read(UNIT_SIZE)
    except FileNotFoundError:
        return False
    if len(data) < UNIT_SIZE:
        return False
    unit: Unit = UNIT.unpack(data)
    return unit[1] not in (0, PRE_BLANK_SIZE)


class QueueLog:
    """The commit log's information about one queue."""

    def __init__(self, segments: Segments, topic: str, queue_id: int) -> None:
        self.segments = segments
        self.topic = topic
        self.queue_id = queue_id

    def agrees(self, queue_offset: int, commit_log_offset: int, record_size: int, tags_code: int) -> bool:
        """Tell whether the log has this unit's record, or had it and has removed it."""
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
    """Return how far one queue reaches, None if it has no unit; and whether none disagrees with the log.

    Raises:
        DamagedStore: a file is missing, or has something else than units before the queue's end.
    """
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
            require_units(directory, [earlier for earlier in begins if earlier < begin], offset)
            return QueueEnd(begins[0], begin + (last + 1) * UNIT_SIZE, offset, offset + size), agrees
    return None, agrees


def require_units(directory: Path, begins: list[int], before: int) -> None:
    """Refuse files of a queue, all but its last, that have something else than units, which ascend, below *before*.

    Raises:
        DamagedStore: one has.
    """
    for begin in reversed(begins):
        units = np.fromfile(directory / file_name(begin), UNIT_DTYPE)
        offsets = units["commit_log_offset"][units["record_size"] != PRE_BLANK_SIZE].astype(np.int64)
        ascending = np.append(offsets[1:], before) > offsets
        if not (ascending.all() and (units["record_size"] > 0).all() and (offsets >= 0).all()):
            raise DamagedStore(
                f"the consume queue's directory has an unexpected file: path={directory / file_name(begin)}"
            )
        if len(offsets):
            before = int(offsets[0])


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
