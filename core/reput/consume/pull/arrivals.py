"""ArrivalPublisher: passes on what the writer publishes, and wakes consumers that wait for messages.

It stands between writer and publisher only while this program consumes.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.store.record.multi_dispatch import has_further_queues, own_queue_id
from reput.store.writer.publisher import AppendedRecords, ForwardingPublisher, Publisher
from reput_hooks import DispatchColumns

__all__ = ["ArrivalPublisher"]


class ArrivalPublisher(ForwardingPublisher):
    """A publisher in front of *publisher*. *arrived* is called under the put lock with queues and their records."""

    def __init__(self, publisher: Publisher, arrived: Callable[[list[tuple[str, int]], AppendedRecords], None]) -> None:
        super().__init__(publisher)
        self.arrived = arrived

    def publish(self, records: AppendedRecords) -> None:
        """Publish to the group first, so that its dispatchers are at work when a reader begins to wait."""
        self.publisher.publish(records)
        queues = records.queues
        if b"\x02" in records.texts:
            queues = [*queues, *reached_further(queues, records.rows, records.texts)]
        self.arrived(queues, records)


def reached_further(queues: list[tuple[str, int]], rows: bytes, texts: bytes) -> list[tuple[str, int]]:
    """Return the further queues that multi-dispatch puts these records into."""
    return [
        (name, own_queue_id(name, request.queue_id))
        for request in DispatchColumns(queues, rows, texts)
        if has_further_queues(request.topic)
        for name, _ in request.multi_dispatch
    ]
