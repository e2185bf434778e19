"""SharedQueue: the progress of one group's consumers in this program on one queue.

    committed        first in flight         position
        │  all before is done  │  given, not done  │  not given yet
    ────┴──────────────────────┴───────────────────┴──────────────▶ queue offset

One consumer owns the queue at a time. Another takes it over when nothing is in flight, so that two consumers never
handle its messages at once or out of order; or when the owner leaves, whose unfinished messages are then given again.

A message is not noted when it is done: of all messages given, only the few in flight are not. So the first one may stay
in flight for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from reput.consume.registry.statistics import GroupStatistics
from reput_hooks import Record

__all__ = ["QueueOwner", "SharedQueue"]

# Messages read at once while their size is unknown.
FIRST_BATCH = 16


class QueueOwner(Protocol):
    """A consumer that owns queues."""

    def forget(self, queue: SharedQueue) -> None:
        """Forget the messages of *queue* in flight."""

    def notify(self) -> None:
        """Look for a message again."""


class SharedQueue:
    """One queue of one group. Everything here happens under the group's lock.

    Attributes:
        position: queue offset of the first message not given yet.
        fetched: messages read but not given yet; None: read again from `position`.
        next_position: queue offset at which to read on after `fetched`.
        in_flight: queue offsets given but not done, ascending; the values are unused.
        unfinished, unfinished_end: of the messages below this end, these are to be given again; all others are done, or
            no consumer wanted them.
        batch: number of messages to read at once.
        committed: the group's committed offset, as far as this program knows.
        has_more: whether reading on may find a message; `growth_count` counts how often it grew.
        move_count: how often the queue was given to another consumer, or moved. What was read before is of no use then.
        caught_up: it was read to its end since. What it has more was put a moment ago, and is read from memory.
        being_read: a thread reads on, without the group's lock.
        looked_again_at: the log's end at the last `ArrivalService.look_again` for this queue; -1: never.
        owner, heir: the owning consumer, and the one that takes over when nothing is in flight.
    """

    __slots__ = (
        "batch",
        "being_read",
        "caught_up",
        "committed",
        "fetched",
        "growth_count",
        "has_more",
        "heir",
        "in_flight",
        "looked_again_at",
        "move_count",
        "next_position",
        "owner",
        "position",
        "queue_id",
        "statistics",
        "topic",
        "unfinished",
        "unfinished_end",
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
        self.unfinished: frozenset[int] = frozenset()
        self.unfinished_end = 0
        self.committed = committed
        self.has_more = True
        self.growth_count = 0
        self.move_count = 0
        self.caught_up = False
        self.being_read = False
        self.looked_again_at = -1
        self.owner: QueueOwner | None = None
        self.heir: QueueOwner | None = None

    def acknowledge(self, queue_offset: int) -> None:
        """Mark a message in flight as done."""
        del self.in_flight[queue_offset]

    def is_done(self, queue_offset: int) -> bool:
        """Tell whether a message is not to be given although it is at or after `position`."""
        return queue_offset < self.unfinished_end and queue_offset not in self.unfinished

    def give_to(self, owner: QueueOwner | None) -> None:
        """Set the owner, and forget the messages read ahead."""
        assert not self.in_flight
        self.owner, self.heir = owner, None
        self.read_again()

    def give_back(self) -> None:
        """Give the messages in flight again, because their consumer has left."""
        if self.in_flight:
            again = [offset for offset in self.unfinished if offset >= self.position]
            self.unfinished = frozenset([*self.in_flight, *again])
            self.unfinished_end = max(self.unfinished_end, self.position)
            self.position = min(self.position, next(iter(self.in_flight)))
            self.in_flight.clear()
        self.read_again()

    def move(self, queue_offset: int) -> None:
        """Continue from *queue_offset*, regardless of messages given or done before."""
        self.position = queue_offset
        self.in_flight.clear()
        self.unfinished_end = 0
        self.read_again()

    def read_again(self) -> None:
        """Forget what was read ahead; the next reading begins at `position`."""
        self.fetched = None
        self.move_count += 1
        self.caught_up = False
        self.has_more = True

    def grow(self) -> None:
        """Note that there are more messages."""
        self.growth_count += 1
        self.has_more = True

    def hold_back(self) -> None:
        """Give no more messages until the queue grows or moves, not even those already read."""
        self.read_again()
        self.has_more = False

    def commit_offset(self) -> int:
        """Return the offset before which everything is done."""
        return next(iter(self.in_flight)) if self.in_flight else self.position
