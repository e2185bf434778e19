"""Check the names in a read against the store: missing topics, and queue offsets that retention has deleted.

Without these checks a misspelled topic would give an empty result, and a deleted queue offset a later beginning. With
``fail_on_data_loss=False`` a missing topic is only a warning, and queue offsets are not checked.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from reput.errors import ConfigError, OffsetOutOfRange, StoreError
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.queue.queue_offsets import QueueOffsets, read_queue_offsets
from reput.store.record.layout import TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from reput.store.record.record_columns import RecordColumns
from reput.table.log_table import LogTable
from reput.table.row_filter import RowFilter

__all__ = ["asked_topics", "require_queue_offsets", "require_topics"]

QUEUE_FOLDERS = ("consumequeue", "batchconsumequeue")

Queue = tuple[str, int]

logger = logging.getLogger(__name__)


def asked_topics(row_filter: RowFilter) -> set[str]:
    """Return the topics that *row_filter* names, alone or with a queue. A pattern does not count."""
    named = (row_filter.queues or (), row_filter.queue_ranges or ())
    return {*(row_filter.topics or ()), *(topic for queues in named for topic, _ in queues)}


def require_topics(table: LogTable, topics: Iterable[str]) -> None:
    """Refuse *topics* that the store does not have, or only warn if ``fail_on_data_loss`` is off.

    The store has a topic if the topic is described, has a queue, or has a record in the log. The log is read only for
    topics that are neither described nor have a queue.

    Raises:
        ConfigError: the store does not have one of them.
    """
    known = known_topics(table.store_directory)
    missing = set(topics) - known
    if missing:
        for columns in table.searcher().read(table.offset_min, table.find_end()):
            found = {topic for topic, _ in queues_in(columns)}
            known |= found
            missing -= found
            if not missing:
                break
    for topic in sorted(missing):
        near = difflib.get_close_matches(topic, sorted(known), 1)
        error = ConfigError(
            f"the store has no such topic: topic={topic}{f' nearest={near[0]}' if near else ''} "
            f"store={table.store_directory}",
            "Spell it as in the store. For a future topic, create it first with `reput topic create`.",
        )
        if table.options.fail_on_data_loss:
            raise error
        logger.warning("%s", error)


def require_queue_offsets(table: LogTable) -> None:
    """Refuse a range of queue offsets that begins below the queue's first record in the log.

    If ``fail_on_data_loss`` is off, nothing is refused. If a trimmed log has no record of the queue, reput's snapshot
    of queue offsets shows whether it had any.

    Raises:
        OffsetOutOfRange: retention has deleted some of the records, or may have.
    """
    ranges = table.options.row_filter.queue_ranges or {}
    missing = {queue: bounds.begin for queue, bounds in ranges.items() if bounds.begin is not None}
    if not table.options.fail_on_data_loss or not missing:
        return
    begin = table.offset_min
    for columns in table.searcher().read(begin, table.find_end()):
        for queue, first in first_offsets(columns).items():
            if missing.pop(queue, first) < first:
                raise lost(queue, ranges[queue].begin, f"queue_offset_min={first}")
        if not missing:
            return
    if begin == 0:
        return
    snapshot = read_queue_offsets(table.store_directory)
    for queue, asked in missing.items():
        # The log still holds every record after the snapshot, and none of them is in this queue.
        if (
            snapshot is None
            or snapshot.commit_log_offset < begin
            or asked < QueueOffsets(snapshot.queues).next_offset(*queue)
        ):
            raise lost(queue, asked, f"commit_log_offset_min={begin}")


def lost(queue: Queue, asked: int | None, present: str) -> OffsetOutOfRange:
    """Return the error for a queue whose records were deleted."""
    return OffsetOutOfRange(
        f"the log no longer has this queue offset: topic={queue[0]} queue_id={queue[1]} queue_offset={asked} {present}",
        "Retention has deleted these records. Begin later, or set failOnDataLoss to false to read what is left.",
    )


def known_topics(store_directory: Path) -> set[str]:
    """Return the topics that are described or have a queue."""
    described = TopicConfigManager(store_directory)
    try:
        described.load()
    except StoreError:
        # The queues and the log then show which topics exist.
        logger.warning("the descriptions of topics cannot be read: path=%s", described.path)
    found = set(described.entries)
    for name in QUEUE_FOLDERS:
        folder = store_directory / name
        if folder.is_dir():
            found |= {path.name for path in folder.iterdir() if path.is_dir()}
    return found


def queues_in(columns: RecordColumns) -> list[Queue]:
    """Return the queues of the records in *columns*."""
    return [(topic.decode("utf-8", "replace"), queue_id) for topic, queue_id in columns.queues()[0]]


def first_offsets(columns: RecordColumns) -> Mapping[Queue, int]:
    """Return the queue offset of each queue's first record. Prepared and rolled-back records are not in a queue."""
    transaction = columns.header["sys_flag"].astype(np.int64) & TRANSACTION_ROLLBACK_TYPE
    counted = np.flatnonzero((transaction != TRANSACTION_PREPARED_TYPE) & (transaction != TRANSACTION_ROLLBACK_TYPE))
    numbers, first = np.unique(columns.queues()[1][counted], return_index=True)
    offsets = columns.header["queue_offset"][counted[first]].tolist()
    queues = queues_in(columns)
    return {queues[number]: offset for number, offset in zip(numbers.tolist(), offsets, strict=True)}
