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
        """Where it lies."""

    def require_open(self) -> None:
        """Refuse a store that was closed."""

    @property
    def loops_wait_for_progress(self) -> bool:
        """Whether `await_for` needs no thread."""

    def queue_ids(self, topic: str) -> Collection[int]:
        """Return the queues of a topic that messages were put to."""

    def delete_topic(self, topic: str) -> int:
        """Delete a topic with its queues."""

    def topic_changed(self, topic: str) -> None:
        """Spread what is put over the queues that a topic is described with now."""

    def put_nums(self, topic: str) -> int | None:
        """Return how many messages were put to a topic since the store was opened, None if there is no such topic."""

    @property
    def services(self) -> RetryServices:
        """What sending back needs of the services."""

    @property
    def forked_from(self) -> int | None:
        """The process that has it open, in a forked child; None: this one."""

    @property
    def threads(self) -> Threads:
        """Its threads."""

    def put(self, message: Message) -> PutMessageResult:
        """Store a message."""
