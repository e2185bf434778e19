"""ConsumableStore: a store that is open for writing, as its consumers see it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from reput.consume.delivery.send_back import RetryServices
from reput.consume.groups.local_offset_store import ConsumedLog
from reput.consume.pull.arrival_service import GrowingStore
from reput.consume.pull.group_reader import ReadingStore
from reput.store.record.message import Message, PutMessageResult
from reput.store.service.threads import Threads

__all__ = ["ConsumableStore"]


class ConsumableStore(ReadingStore, GrowingStore, ConsumedLog, Protocol):
    """A store that is open for writing, as its consumers see it."""

    @property
    def directory(self) -> Path:
        """The store's directory."""

    def require_open(self) -> None:
        """Raise if the store was closed."""

    @property
    def loops_wait_for_progress(self) -> bool:
        """Whether `await_for` needs no thread."""

    def queue_ids(self, topic: str) -> Collection[int]:
        """Return the queues of a topic that messages were put to."""

    def delete_topic(self, topic: str) -> int:
        """Delete a topic with its queues."""

    def topic_changed(self, topic: str) -> None:
        """Spread later puts over the queues that the topic's description names now."""

    def put_nums(self, topic: str) -> int | None:
        """Return how many messages were put to a topic since the store was opened, None if there is no such topic."""

    @property
    def services(self) -> RetryServices:
        """The services that sending back uses."""

    @property
    def forked_from(self) -> int | None:
        """In a forked child, the process that has the store open; None: this process has."""

    @property
    def threads(self) -> Threads:
        """Its threads."""

    def put(self, message: Message) -> PutMessageResult:
        """Store a message."""
