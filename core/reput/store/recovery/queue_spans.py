"""QueueSpans: from where to where the log has each queue, as it was when reput found a store that RocketMQ had closed.

``reput/found_queues``, sealed, written once, before reput takes the store over. The log is read whole then, so this
costs no further read. A dispatcher that takes over RocketMQ's queues, at once or years later, can then tell whether a
queue, or a part of one, is missing.

A queue that RocketMQ recreated counts from its first new record.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from reput.store.disk.sealed_file import read_sealed
from reput.store.queue.consume_queue_builder import LEFT_OUT
from reput.store.record.multi_dispatch import DISPATCH_NAMES, QUEUE_OFFSETS_NAME, further_queues
from reput.store.record.record_columns import RecordColumns

__all__ = ["FOUND_QUEUES", "QueueSpan", "QueueSpans", "read_found_queues"]

FOUND_QUEUES = "found_queues"


class QueueSpan(msgspec.Struct, frozen=True, array_like=True):
    """Queue offsets of the first record that the log has of a queue, and behind the last.

    *by_other_topics*: its records are of other topics, which multi-dispatch puts into it, too.
    """

    first: int
    end: int
    by_other_topics: bool = False


class QueueSpans:
    """Takes the records of a log in its order.

    Attributes:
        queues: topic → queue id → what the log has of the queue.
    """

    def __init__(self) -> None:
        self.queues: dict[str, dict[int, QueueSpan]] = {}

    def take(self, columns: RecordColumns) -> None:
        """Take in the records of one extent."""
        header = columns.header
        sys_flag = header["sys_flag"].astype(np.int64)
        names, queue_index = columns.queues()
        chosen = np.flatnonzero((sys_flag & LEFT_OUT) == 0)
        # Stable: within a queue, the order of the log.
        order = chosen[np.argsort(queue_index[chosen], kind="stable")]
        if len(order):
            of_queue = queue_index[order]
            offsets = header["queue_offset"].astype(np.int64)[order]
            begins = np.ones(len(order), bool)
            begins[1:] = (of_queue[1:] != of_queue[:-1]) | (offsets[1:] <= offsets[:-1])
            first = np.flatnonzero(begins)
            last = np.append(first[1:], len(order)) - 1
            runs = zip(of_queue[first].tolist(), offsets[first].tolist(), offsets[last].tolist(), strict=True)
            for number, first_offset, last_offset in runs:
                topic, queue_id = names[number]
                self.add(topic.decode("utf-8", "replace"), queue_id, first_offset, last_offset + 1)
        if columns.may_have_property(DISPATCH_NAMES.encode()):
            self.take_further_queues(columns, chosen.tolist())

    def take_further_queues(self, columns: RecordColumns, chosen: list[int]) -> None:
        """Take in what multi-dispatch put elsewhere, too."""
        for number in chosen:
            properties = columns.properties(number)
            text = f"{properties.get(DISPATCH_NAMES, '')}\x02{properties.get(QUEUE_OFFSETS_NAME, '')}".encode()
            own = (columns.topic(number), int(columns.header["queue_id"][number]))
            for (topic, queue_id), queue_offset in further_queues(own, text):
                self.add(topic, queue_id, queue_offset, queue_offset + 1, by_other_topics=True)

    def add(self, topic: str, queue_id: int, first: int, end: int, *, by_other_topics: bool = False) -> None:
        """Take in a run of queue offsets that ascend."""
        queues = self.queues.setdefault(topic, {})
        known = queues.get(queue_id)
        if known is not None and known.end <= first:
            first, by_other_topics = known.first, known.by_other_topics and by_other_topics
        queues[queue_id] = QueueSpan(first, end, by_other_topics)


def read_found_queues(store_directory: Path) -> dict[str, dict[int, QueueSpan]]:
    """Return what the log had of each queue when reput found the store; nothing where that was not written down."""
    return read_sealed(store_directory / "reput" / FOUND_QUEUES, dict[str, dict[int, QueueSpan]]) or {}
