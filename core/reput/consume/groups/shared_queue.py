"""SharedQueue: how far the consumers of one group in this program have come with one queue.

    committed        first in flight         position
        │  all before is done  │  given, not done  │  not given yet
    ────┴──────────────────────┴───────────────────┴──────────────▶ queue offset

One consumer owns it at a time. Another gets it when nothing is in flight any more, so that its messages are not worked
on by two at once, nor out of their order; or when the owner goes, whose unfinished messages are then given again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from reput.consume.registry.statistics import GroupStatistics
from reput_hooks import Record

__all__ = ["QueueOwner", "SharedQueue"]

# Messages that are read at once while nobody knows how large they are.
FIRST_BATCH = 16


class QueueOwner(Protocol):
    """A consumer to which queues belong."""

    def forget(self, queue: SharedQueue) -> None:
        """Have nothing of *queue* in flight any more."""

    def notify(self) -> None:
        """Look for a message again."""


class SharedQueue:
    """One queue of one group. Everything here happens under the group's lock.

    Attributes:
        position: queue offset of the first message that was not given yet.
        fetched: messages that were read and not given; None: read again from `position`.
        next_position: where to read on behind `fetched`.
        in_flight: queue offsets that were given and are not done, ascending; the values mean nothing.
        done: queue offsets behind the first in flight that are done.
        batch: messages that are read at once.
        committed: what the group's committed offset is, as far as this program knows.
        has_more: whether reading on may find something.
        looked_again_at: the log's end when it was asked to be told again of a message that could not be read.
        owner, heir: the consumer it belongs to, and the one that gets it when nothing is in flight.
    """

    __slots__ = (
        "batch",
        "committed",
        "done",
        "fetched",
        "has_more",
        "heir",
        "in_flight",
        "looked_again_at",
        "next_position",
        "owner",
        "position",
        "queue_id",
        "statistics",
        "topic",
    )

    def __init__(
        self, topic: str, queue_id: int, position: int, committed: int | None, statistics: GroupStatistics
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.statistics = statistics
        self.batch = FIRST_BATCH
        self.position = position
        self.next_position = position
        self.fetched: Iterator[tuple[int, Record]] | None = None
        self.in_flight: dict[int, None] = {}
        self.done: set[int] = set()
        self.committed = committed
        self.has_more = True
        self.looked_again_at = -1
        self.owner: QueueOwner | None = None
        self.heir: QueueOwner | None = None

    def acknowledge(self, queue_offset: int) -> None:
        """Take a message that is in flight as done."""
        in_flight = self.in_flight
        for first in in_flight:
            if first != queue_offset:
                self.done.add(queue_offset)
            break
        del in_flight[queue_offset]

    def give_to(self, owner: QueueOwner | None) -> None:
        """Have it belong to a consumer; what was read ahead is forgotten."""
        assert not self.in_flight
        self.owner, self.heir = owner, None
        self.fetched = None
        self.has_more = True

    def give_back(self) -> None:
        """Have the messages in flight given again, because their consumer is gone."""
        if self.in_flight:
            self.position = min(self.position, next(iter(self.in_flight)))
            self.in_flight.clear()
        self.fetched = None
        self.has_more = True

    def move(self, queue_offset: int) -> None:
        """Go on from *queue_offset*, whatever was given or done before."""
        self.position = queue_offset
        self.in_flight.clear()
        self.done.clear()
        self.fetched = None
        self.has_more = True

    def commit_offset(self) -> int:
        """Return the offset before which everything is done."""
        offset = next(iter(self.in_flight)) if self.in_flight else self.position
        if self.done:
            self.done = {done for done in self.done if done >= offset}
        return offset
