"""TopicReader: the messages of a topic, with all its queues merged in log order.

queue 0  ─ 12 ─ 40 ─ 95 ─▶ ┐
queue 1  ─ 20 ─ 31 ──────▶ ┼─▶ 12, 20, 31, 40, 88, 95    (commit-log offsets)
queue 2  ─ 88 ───────────▶ ┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol, TypeAlias

from reput.errors import ConfigError, DamagedStore
from reput.filter import SqlFilter, TagFilter
from reput.store.reader.results import GetMessageResult
from reput.store.record.properties import filled_properties
from reput_hooks import Record

__all__ = ["Beginning", "MessageSource", "TopicReader", "check_beginning", "first_queue_offset"]

BATCH = 32
# Where to begin a queue: at its first message, after its last, or at a store time in ms since 1970 UTC.
Beginning: TypeAlias = Literal["earliest", "latest"] | int


def check_beginning(name: str, value: object) -> None:
    """Check an argument that says where to begin.

    Raises:
        ConfigError: *value* is not such a place.
    """
    # In RocketMQ, the time -1 means the end of a queue. Here, as on the command line, times before 1970 are invalid.
    is_time = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not is_time and (not isinstance(value, str) or value not in ("earliest", "latest")):
        raise ConfigError(
            f"{name} is not a place to begin: {name}={value!r}",
            'Give "earliest", "latest", or a store time in ms since 1970 UTC.',
        )


class MessageSource(Protocol):
    """A source of messages: an open store, read-only or not."""

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic, ascending."""

    def queue_range(self, topic: str, queue_id: int = 0) -> tuple[int, int]:
        """Return the first readable queue offset, and the one after the last."""

    def get(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, count_max: int = 32, *, tags: str | None = None
    ) -> GetMessageResult:
        """Return messages of a queue, from *queue_offset* on."""


class TopicReader:
    """Reads one topic. One thread.

    Attributes:
        positions: by queue id, the queue offset to continue from: everything before it was read or filtered out.
    """

    def __init__(
        self,
        topic: str,
        begin: Callable[[MessageSource, int], int],
        *,
        tag_filter: TagFilter | None = None,
        sql_filter: SqlFilter | None = None,
    ) -> None:
        """*begin* returns the queue offset of the first message when the reader meets a queue id for the first time."""
        self.topic = topic
        self.begin = begin
        self.tag_filter = tag_filter
        self.sql_filter = sql_filter
        self.positions: dict[int, int] = {}
        self.unread: QueueReader | None = None

    def records(self, source: MessageSource) -> Iterator[Record]:
        """Yield the readable, matching records that were not read before, without waiting.

        A record counts as read when the next one is requested, or at `acknowledge`.

        Raises:
            DamagedStore: the next record contradicts its queue; the records before it were yielded.
        """
        queues = [self.queue(source, queue_id) for queue_id in source.queue_ids(self.topic)]
        waiting = [queue for queue in queues if queue.fill()]
        while waiting:
            queue = min(waiting, key=lambda candidate: candidate.records[0].commit_log_offset)
            self.unread = queue
            yield queue.records[0]
            self.acknowledge()
            if not queue.fill():
                waiting.remove(queue)

    def acknowledge(self) -> None:
        """Count the last yielded record as read."""
        if self.unread is not None:
            self.unread.pass_first()
            self.unread = None

    def queue(self, source: MessageSource, queue_id: int) -> QueueReader:
        """Return a reader of one queue, starting where the last one ended."""
        if queue_id not in self.positions:
            self.positions[queue_id] = self.begin(source, queue_id)
        return QueueReader(self, source, queue_id)

    def wants(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with *properties* passes the filters."""
        if self.tag_filter is not None and not self.tag_filter.matches_tag(properties.get("TAGS")):
            return False
        return self.sql_filter is None or self.sql_filter.matches(filled_properties(properties))


class QueueReader:
    """Reads one queue for a `TopicReader`, a batch ahead. *records* match the filters and are not read yet."""

    def __init__(self, topic_reader: TopicReader, source: MessageSource, queue_id: int) -> None:
        self.topic_reader = topic_reader
        self.source = source
        self.queue_id = queue_id
        self.records: deque[Record] = deque()
        self.next_queue_offset = topic_reader.positions[queue_id]

    def fill(self) -> bool:
        """Read ahead until there is a record; return whether there is one."""
        reader = self.topic_reader
        tags = reader.tag_filter.expression if reader.tag_filter else None
        while not self.records:
            at = self.next_queue_offset
            try:
                found = self.source.get(reader.topic, self.queue_id, at, BATCH, tags=tags)
            except DamagedStore:
                # Yield the records before the damage first.
                found = self.source.get(reader.topic, self.queue_id, at, 1, tags=tags)
            # A truncated queue ends before the position read; new messages reuse the offsets.
            reader.positions[self.queue_id] = min(at, found.queue_offset_max)
            if found.next_queue_offset <= at:
                break
            self.next_queue_offset = found.next_queue_offset
            self.records.extend(record for record in found.records if reader.wants(record.properties))
        return bool(self.records)

    def pass_first(self) -> None:
        """Count the first record as read."""
        record = self.records.popleft()
        if not self.records:
            self.topic_reader.positions[self.queue_id] = self.next_queue_offset
        elif record.topic == self.topic_reader.topic:
            # A record that multi-dispatch put here holds its offset in another queue, so move only at the batch's end.
            self.topic_reader.positions[self.queue_id] = record.queue_offset + 1


def first_queue_offset(source: MessageSource, topic: str, queue_id: int, beginning: Beginning) -> int:
    """Return the queue offset of the first message at or after *beginning*, else the queue's end."""
    low, high = source.queue_range(topic, queue_id)
    if beginning == "earliest":
        return low
    if beginning == "latest":
        return high
    # Store times never go back within a log.
    while low < high:
        middle = (low + high) // 2
        found = source.get(topic, queue_id, middle, 1).records
        if found and found[0].store_timestamp >= beginning:
            high = middle
        else:
            low = middle + 1
    return low
