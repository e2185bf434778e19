"""QueueOffsets: the next queue offset of every queue, as the writer itself counts it.

It never comes from a running view. ``reput/queue_offsets`` is a snapshot as of one commit-log offset; records behind
that offset are scanned. A store without a snapshot is scanned whole, and queues without a record left in the log
continue where their consume-queue files end.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.store.disk.sealed_file import read_sealed, seal

__all__ = ["QueueOffsets", "QueueOffsetsSnapshot", "read_queue_offsets"]


class QueueOffsetsSnapshot(msgspec.Struct, frozen=True):
    """The state when the log ended at *commit_log_offset* in *epoch*.

    Attributes:
        ordinal: records since the log's birth, or since reput first saw it.
        store_timestamp: of the last record, ms.
        queues: topic → queue id → next queue offset.
    """

    epoch: int
    commit_log_offset: int
    ordinal: int
    store_timestamp: int
    queues: dict[str, dict[int, int]]

    def seal(self) -> bytes:
        """Return the bytes of ``reput/queue_offsets``."""
        return seal(self)


def read_queue_offsets(store_directory: Path) -> QueueOffsetsSnapshot | None:
    """Return the snapshot of a store, None if it has none."""
    return read_sealed(store_directory / "reput" / "queue_offsets", QueueOffsetsSnapshot)


class QueueOffsets:
    """Topic → queue id → next queue offset. Changed under the put lock only."""

    def __init__(self, queues: dict[str, dict[int, int]] | None = None) -> None:
        self.queues: dict[str, dict[int, int]] = queues or {}

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message gets."""
        queues = self.queues.get(topic)
        return queues.get(queue_id, 0) if queues else 0

    def raise_to(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Never lower: the log and the files may each know more."""
        queues = self.queues.setdefault(topic, {})
        if next_offset > queues.get(queue_id, 0):
            queues[queue_id] = next_offset

    def forget_topic(self, topic: str) -> None:
        """Let the queues of *topic* begin with 0 again: it was deleted."""
        queues = self.queues.get(topic)
        if queues:
            # Other holders of the same table see the change, too.
            queues.clear()

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """Let one queue begin with 0 again."""
        queues = self.queues.get(topic)
        if queues:
            queues.pop(queue_id, None)

    def total(self, topic: str) -> int:
        """Return how many messages the queues of *topic* were ever given, or since it was deleted."""
        return sum(list(self.queues.get(topic, {}).values()))

    def totals(self) -> dict[str, int]:
        """Return `total` by topic."""
        return {topic: self.total(topic) for topic in list(self.queues)}

    def snapshot(self) -> dict[str, dict[int, int]]:
        """Return a copy that later puts do not change."""
        return {topic: dict(queues) for topic, queues in self.queues.items()}
