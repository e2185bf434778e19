"""StoredQueues: the queues of topics, and the progress of groups on them, as the store has them now."""

from __future__ import annotations

import msgspec

from reput.argument_checks import require_text, require_whole
from reput.consume.pull.group_reader import ReadingStore
from reput.consume.registry.topics import Topics, may_be_topic
from reput.errors import DamagedStore, RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.store.disk.shortages import tell_read_error

__all__ = ["GroupProgress", "StoredQueues"]


class GroupProgress(msgspec.Struct, frozen=True):
    """A group's progress on one queue.

    Attributes:
        broker_offset: queue offset after the last message of the queue.
        consumer_offset: queue offset that the group consumes next.
        lag: existing messages that it has not consumed.
        last_timestamp: store time of the last message that it consumed, ms since 1970; None: the message is gone or
            damaged.
    """

    group: str
    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    lag: int
    last_timestamp: int | None


class StoredQueues:
    """Reads the ends of queues, and the times of their messages. Any thread may call.

    A method that the system refuses a file raises StoreError.
    """

    def __init__(self, store: ReadingStore, topics: Topics) -> None:
        self.store = store
        self.topics = topics

    @tell_read_error("the queues cannot be read")
    def stored_topics(self) -> dict[str, list[int]]:
        """Return the topics that have queues, and their queue ids."""
        with self.store.read_lock:
            return self.store.reader.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues that a topic has for readers or writers.

        Raises:
            RequestRefused: TOPIC_NOT_EXIST.
        """
        require_text("topic", topic)
        if self.topics.find(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic does not exist: topic={topic!r}")
        return self.topics.all_queue_ids(topic)

    @tell_read_error("the queues cannot be read")
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first readable queue offset, and the one after the last."""
        require_text("topic", topic)
        require_whole("queue_id", queue_id, None)
        # A file of offsets may contain any number: RocketMQ 4 commits without checking.
        if not may_be_topic(topic):
            return 0, 0
        with self.store.read_lock:
            return self.store.reader.queue_range(topic, queue_id)

    @tell_read_error("the queues cannot be read")
    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of one message; None: it does not exist."""
        require_text("topic", topic)
        require_whole("queue_id", queue_id, None)
        require_whole("queue_offset", queue_offset, None)
        if queue_offset < 0 or not may_be_topic(topic):
            return None
        with self.store.read_lock:
            found = self.store.reader.get_message(topic, queue_id, queue_offset, 1).records
        return found[0].store_timestamp if found else None

    def readable_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of one message; None: it does not exist, or is damaged.

        For tables of many queues, in which one damaged message must not hide all others. Whoever reads it is told.
        """
        try:
            return self.store_timestamp(topic, queue_id, queue_offset)
        except DamagedStore:
            return None

    @tell_read_error("the queues cannot be read")
    def offset_by_time(self, topic: str, queue_id: int, store_timestamp: int) -> int:
        """Return the queue offset of the first message stored at or after *store_timestamp*, ms since 1970."""
        with self.store.read_lock:
            return self.store.reader.offset_by_time(topic, queue_id, store_timestamp)

    def progress(self, group: str, committed: dict[str, dict[int, int]]) -> list[GroupProgress]:
        """Return a row per queue of a group's *committed* offsets."""
        rows = []
        for topic, offsets in sorted(committed.items()):
            for queue_id, offset in sorted(offsets.items()):
                low, high = self.queue_range(topic, queue_id)
                last = self.readable_timestamp(topic, queue_id, offset - 1)
                lag = max(0, high - max(offset, low))
                rows.append(GroupProgress(group, topic, queue_id, high, offset, lag, last))
        return rows
