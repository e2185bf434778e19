"""RemoteQueue: the progress of one consumer on one queue of a broker.

    committed        first in flight      first buffered          position
        │  all before is done  │  given, not done  │  pulled, not given  │
    ────┴──────────────────────┴───────────────────┴─────────────────────┴──▶ queue offset

Source: RocketMQ client, ProcessQueue.
"""

from __future__ import annotations

import asyncio
from collections import deque

from reput.remoting.message_queue import MessageQueue
from reput_hooks import Record

__all__ = ["RemoteQueue"]

# RocketMQ's pullThresholdForQueue and pullThresholdSizeForQueue.
BUFFERED_MAX = 1000
BUFFERED_SIZE_MAX = 32 << 20


class RemoteQueue:
    """One queue that a consumer has. Everything here but `pulling` happens under the consumer's lock.

    Attributes:
        position: queue offset of the next pull.
        buffer: messages that were pulled but not given to the program yet, with their queue offsets.
        in_flight: queue offsets given but not done, ascending; the values are unused.
        committed: the offset that the broker knows; -1: none.
        has_room: set while there is room for more messages; waited for in the consumer's loop.
        broker_id: id of the broker that the last answer suggests for the next pull.
        locked_at: when the broker last locked the queue for this consumer, in seconds of the loop's clock.
        dropped: the queue no longer belongs to this consumer, or its topic was deleted.
    """

    __slots__ = (
        "broker_id",
        "buffer",
        "buffered_size",
        "committed",
        "dropped",
        "has_room",
        "in_flight",
        "is_full",
        "locked_at",
        "position",
        "pulling",
        "queue",
    )

    def __init__(self, queue: MessageQueue, position: int) -> None:
        self.queue = queue
        self.position = position
        self.buffer: deque[tuple[int, Record]] = deque()
        self.buffered_size = 0
        self.in_flight: dict[int, None] = {}
        self.committed = -1
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.is_full = False
        self.broker_id = 0
        self.locked_at = 0.0
        self.dropped = False
        self.pulling: asyncio.Task[None] | None = None

    def add(self, records: list[tuple[int, Record]], size: int, position: int) -> None:
        """Add pulled messages; *position* is the queue offset of the next pull."""
        self.buffer.extend(records)
        self.buffered_size += size
        self.position = position
        if len(self.buffer) >= BUFFERED_MAX or self.buffered_size >= BUFFERED_SIZE_MAX:
            self.is_full = True
            self.has_room.clear()

    def take(self) -> tuple[int, Record]:
        """Return the next message, which is in flight from now on."""
        queue_offset, record = self.buffer.popleft()
        self.buffered_size -= record.record_size
        self.in_flight[queue_offset] = None
        return queue_offset, record

    @property
    def makes_room(self) -> bool:
        """Whether a full queue has room again."""
        return len(self.buffer) < BUFFERED_MAX // 2 and self.buffered_size < BUFFERED_SIZE_MAX // 2

    def acknowledge(self, queue_offset: int) -> None:
        """Mark a message in flight as done."""
        del self.in_flight[queue_offset]

    def commit_offset(self) -> int:
        """Return the offset before which all messages are done."""
        if self.in_flight:
            return next(iter(self.in_flight))
        return self.buffer[0][0] if self.buffer else self.position

    def forget_buffered(self) -> None:
        """Forget the messages that were not given yet: the next pull begins with them."""
        if self.buffer:
            self.position = self.buffer[0][0]
        self.buffer.clear()
        self.buffered_size = 0
        self.is_full = False
        self.has_room.set()

    def move(self, queue_offset: int) -> None:
        """Continue at *queue_offset*, and forget which messages were given or done before."""
        self.forget_buffered()
        self.in_flight.clear()
        self.position = queue_offset
