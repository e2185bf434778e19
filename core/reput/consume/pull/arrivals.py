"""ArrivalPublisher: hands on what the writer tells its process group, and tells whoever waits for messages, too.

It stands between writer and publisher only while somebody consumes in this program.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.store.publisher import Publisher
from reput.store.record.multi_dispatch import has_further_queues, own_queue_id
from reput_hooks import DispatchColumns

__all__ = ["ArrivalPublisher"]


class ArrivalPublisher:
    """A publisher in front of *publisher*. *arrived* is called under the put lock with queues and the log's end."""

    def __init__(self, publisher: Publisher, arrived: Callable[[list[tuple[str, int]], int], None]) -> None:
        self.publisher = publisher
        self.arrived = arrived

    def publish(
        self,
        begin: int,
        end: int,
        store_timestamp: int,
        ordinal: int,
        queues: list[tuple[str, int]],
        rows: bytes,
        texts: bytes,
    ) -> None:
        """The log has grown: the group first, so that its dispatchers are at work when somebody begins to wait."""
        self.publisher.publish(begin, end, store_timestamp, ordinal, queues, rows, texts)
        self.arrived([*queues, *reached_further(queues, rows, texts)] if b"\x02" in texts else queues, end)

    def durable(self, offset: int) -> None:
        """The log is forced to disk up to *offset*."""
        self.publisher.durable(offset)

    def read_only(self, reason: str | None) -> None:
        """The store takes nothing any more, and why; None: it takes messages again."""
        self.publisher.read_only(reason)

    def expire(self, commit_log_offset_min: int, appended: int, ordinal: int) -> None:
        """The log begins at *commit_log_offset_min* now."""
        self.publisher.expire(commit_log_offset_min, appended, ordinal)

    def delete_topic(self, topic: str, appended: int, ordinal: int) -> None:
        """*topic* was deleted when the log ended at *appended*."""
        self.publisher.delete_topic(topic, appended, ordinal)


def reached_further(queues: list[tuple[str, int]], rows: bytes, texts: bytes) -> list[tuple[str, int]]:
    """Return the further queues that multi-dispatch puts these records into."""
    return [
        (name, own_queue_id(name, request.queue_id))
        for request in DispatchColumns(queues, rows, texts)
        if has_further_queues(request.topic)
        for name, _ in request.multi_dispatch
    ]
