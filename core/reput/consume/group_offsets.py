"""GroupOffsets: where a consumer group goes on, kept in a store's own ``consumerOffset.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from reput.settings import Settings
from reput.store.consumer_offset_manager import ConsumerOffsetManager, LmqConsumerOffsetManager
from reput.store.store_lock import StoreLock

__all__ = ["GroupOffsets"]


class GroupOffsets:
    """The offsets of one group on one topic of a store that nobody else writes meanwhile: the file has one writer."""

    def __init__(self, store_directory: Path, group: str, topic: str, settings: Settings) -> None:
        """Take the store's lock, and read what was committed.

        Raises:
            StoreLocked: another process writes the store, and would overwrite the offsets.
            DamagedStore: neither the file nor its backup can be read.
        """
        self.group = group
        self.topic = topic
        self.store_lock = StoreLock(store_directory)
        try:
            manager = LmqConsumerOffsetManager if settings.enable_lmq else ConsumerOffsetManager
            self.manager = manager(store_directory)
            self.manager.load()
        except BaseException:
            self.store_lock.close()
            raise

    def next_queue_offset(self, queue_id: int) -> int | None:
        """Return the queue offset that the group reads next, None if it never committed one."""
        return self.manager.query_offset(self.group, self.topic, queue_id)

    def commit(self, positions: Mapping[int, int]) -> None:
        """Keep, durably, the next queue offset by queue id.

        Raises:
            OSError: what was kept before still is.
        """
        for queue_id, queue_offset in positions.items():
            self.manager.commit_offset(self.group, self.topic, queue_id, queue_offset)
        self.manager.persist()

    def close(self) -> None:
        """Give the store's lock back."""
        self.store_lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
