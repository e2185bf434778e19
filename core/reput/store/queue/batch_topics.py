"""BatchTopics: which topics RocketMQ 5 keeps in batch consume queues, which reput leaves alone.

A topic is such a topic if ``config/topics.json`` has ``queue.type=BatchCQ`` for it, or if it has batch queues. All of
its records have their units there, also those of a single message.

Source: RocketMQ store, QueueTypeUtils.isBatchCq and ConsumeQueueStore.load.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from reput.store.config.described_topics import DescribedTopics

__all__ = ["BatchTopics"]


class BatchTopics:
    """Answers for the topics of one store, as its files are now. Any number of threads."""

    def __init__(self, store_directory: Path, complain: Callable[[str], None] = lambda text: None) -> None:
        """*complain* is called once if the configuration cannot be read; then only existing queues count."""
        self.queues = store_directory / "batchconsumequeue"
        self.described = DescribedTopics(store_directory, complain)

    def has(self, topic: str) -> bool:
        """Tell whether *topic*, which can be the name of a directory, is one."""
        if os.path.isdir(self.queues / topic):
            return True
        config = self.described.find(topic)
        return config is not None and config.has_batch_consume_queue
