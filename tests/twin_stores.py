"""Twin stores: one puts through the kernel, the other takes the Python path; all that a put changes is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reput.errors import ReputError
from reput.kernel import VARIABLE
from reput.store.message_store import MessageStore
from reput.store.writer.publisher import AppendedRecords, Publisher
from reput_hooks import DispatchColumns
from small_store import ManualClock, UnforcedFiles, log_bytes, small_settings

__all__ = ["TwinStores", "outcome_of"]

TOPICS_JSON = {
    "topicConfigTable": {
        "spread": {"topicName": "spread", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "order": False}
    },
    "dataVersion": {"counter": 0, "timestamp": 0},
}


class KeepingPublisher(Publisher):
    """Keeps what was published."""

    def __init__(self) -> None:
        self.published: list[AppendedRecords] = []

    def publish(self, records: AppendedRecords) -> None:
        self.published.append(records)


class TwinStores:
    """Two writers with the same clock, settings and topics.

    Args:
        same_runs: the same messages are published together; else only their order is compared.
    """

    def __init__(self, directory: Path, *, same_runs: bool = True, **settings: object) -> None:
        self.same_runs = same_runs
        self.clock = ManualClock()
        self.stores: list[MessageStore] = []
        self.publishers: list[KeepingPublisher] = []
        for mode in ("require", "off"):
            path = directory / mode
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(VARIABLE, mode)
                store = MessageStore(path, small_settings(**settings), files=UnforcedFiles(), clock=self.clock)
            # Read with the first message of a topic.
            (path / "config").mkdir(exist_ok=True)
            (path / "config" / "topics.json").write_bytes(msgspec.json.encode(TOPICS_JSON))
            publisher = KeepingPublisher()
            store.attach(publisher, needs_properties=False)
            self.stores.append(store)
            self.publishers.append(publisher)
        assert [store.appender.kernel is not None for store in self.stores] == [True, False]

    def both(self, put: Callable[[MessageStore], Any]) -> Any:
        """Put to both, and return the outcome, which is the same; so is everything that the put has changed."""
        outcomes = [outcome_of(put, store) for store in self.stores]
        assert outcomes[0] == outcomes[1]
        states = [self.state(number) for number in range(2)]
        assert states[0] == states[1]
        return outcomes[0]

    def state(self, number: int) -> dict[str, Any]:
        """Return what a put changes."""
        store = self.stores[number]
        return {
            "appended": store.appended,
            "ordinal": store.ordinal,
            "store_timestamp": store.appender.store_timestamp,
            "offsets": store.queue_offsets.queues,
            "put_sizes": {name: topic.put_size for name, topic in store.topic_table.topics.items()},
            "published": self.published(number)[-1:],
            "is_locked": store.appender.put_lock.locked(),
        }

    def published(self, number: int) -> list[Any]:
        """Return what was published: by run, or by message."""
        published = self.publishers[number].published
        if self.same_runs:
            return [*published]
        return [
            request for records in published for request in DispatchColumns(records.queues, records.rows, records.texts)
        ]

    def close(self) -> list[bytes]:
        """Close both and return the bytes of the log, which are the same; so is everything published."""
        for store in self.stores:
            store.close(views_complete=False)
        assert self.published(0) == self.published(1)
        logs = [log_bytes(store.directory) for store in self.stores]
        assert logs[0] == logs[1]
        return logs


def outcome_of(put: Callable[[MessageStore], Any], store: MessageStore) -> Any:
    """Return the result of a put, or its error as text."""
    try:
        return put(store)
    except (ReputError, TypeError, AttributeError) as error:
        return type(error), str(error).replace(str(store.directory), "STORE")
