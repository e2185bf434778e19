"""ExpectedRecords: which records views must have, while retention and deletions of topics continue beside a check.

A store loses segments at any moment, a live one also topics, and the views lose their parts a little later. Before a
check reports a missing part as a difference, it therefore looks again at where the log begins and which topics were
deleted: a store removes segments, and records deletions, before it removes any file of a view.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from reput.store.disk.open_files import DirectoryStamp
from reput.store.log.segments import Segments
from reput.store.recovery.recreated_queues import RecreatedQueue, recreation_offsets
from reput.store.state.topic_deletions import TopicDeletions, last_deletions

__all__ = ["ExpectedRecords"]

Array = np.ndarray[Any, Any]


class ExpectedRecords:
    """The expectations of a check of one store for the views.

    Attributes:
        begin: commit-log offset of the first byte that the log still has.
        deleted: topic → where it was deleted last.
        recreated_at: the same of queues that RocketMQ recreated, by (topic, queue id).
        live: a writer has the store open.
    """

    def __init__(self, store_directory: Path, recreated: Iterable[RecreatedQueue], *, live: bool) -> None:
        self.log_directory = store_directory / "commitlog"
        self.log_stamp = DirectoryStamp(self.log_directory)
        self.topic_deletions = TopicDeletions(store_directory)
        self.begin = Segments(self.log_directory).offset_min
        self.deleted = last_deletions(self.topic_deletions.following(self.begin))
        self.recreated_at = recreation_offsets(recreated)
        self.live = live

    def refresh(self) -> None:
        """Look again. The log of a closed store may be trimmed by hand."""
        if self.log_stamp.changed():
            self.begin = max(self.begin, Segments(self.log_directory).offset_min)
        if self.live:
            self.deleted = last_deletions(self.topic_deletions.following(self.begin))

    def queue_begin(self, topic: str, queue_id: int) -> int:
        """Return the commit-log offset below which a queue has no record, because it was deleted there."""
        return max(self.deleted.get(topic, 0), self.recreated_at.get((topic, queue_id), 0))

    def queue_begins(self, names: Iterable[tuple[str, int]]) -> Array:
        """Return `queue_begin` of each queue."""
        return np.array([self.queue_begin(*name) for name in names], np.int64)

    def floor(self, topic: str, queue_id: int) -> int:
        """Return the commit-log offset below which no record has to have a unit in this queue."""
        return max(self.begin, self.queue_begin(topic, queue_id))
