"""BatchTopics: which topics RocketMQ 5 keeps in batch consume queues, which reput leaves alone.

A topic is one if ``config/topics.json`` has ``queue.type=BatchCQ`` for it, or if it has such queues. All its records
have their units there, those that hold a single message, too.

Source: RocketMQ store, QueueTypeUtils.isBatchCq and ConsumeQueueStore.load.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from reput.errors import DamagedStore
from reput.store.topic_config_manager import TopicConfigManager

__all__ = ["BatchTopics"]

Stamp = tuple[int, int, int]


class BatchTopics:
    """Answers for the topics of one store, as its files are now. Any number of threads."""

    def __init__(self, store_directory: Path, complain: Callable[[str], None] = lambda text: None) -> None:
        """*complain* is told once that the configuration cannot be read; then only the queues that are there count."""
        self.store_directory = store_directory
        self.complain = complain
        self.queues = store_directory / "batchconsumequeue"
        self.described: frozenset[str] = frozenset()
        # Of the configuration that was read last; a store has none at first.
        self.stamp: Stamp | None = None

    def has(self, topic: str) -> bool:
        """Tell whether *topic*, which can be the name of a directory, is one."""
        if os.path.isdir(self.queues / topic):
            return True
        # A broker's file describes thousands of topics, and is asked for each of them.
        stamp = self.config_stamp()
        if stamp != self.stamp:
            self.described = self.read_config()
            self.stamp = stamp
        return topic in self.described

    def config_stamp(self) -> Stamp | None:
        """Return what changes whenever the configuration does, None where there is none."""
        try:
            found = os.stat(self.store_directory / "config" / TopicConfigManager.file_name)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read_config(self) -> frozenset[str]:
        """Return the topics that are described as such."""
        topics = TopicConfigManager(self.store_directory)
        try:
            topics.load()
        except DamagedStore as error:
            self.complain(f"whether topics have batch queues is not known: {error}")
        return frozenset(name for name, config in topics.entries.items() if config.has_batch_consume_queue)
