"""What tests of the writer share."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.record.message import MessageExtBrokerInner
from reput.store.writer.publisher import Publisher
from reput_hooks import DispatchColumns
from small_store import (
    FailingFiles,
)


class Published(Publisher):
    """A publisher that records its notifications."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, int]] = []
        self.requests: list[object] = []
        self.durable_offsets: list[int] = []

    def publish(self, records):
        self.frames.append((records.begin, records.end, records.store_timestamp, records.ordinal))
        self.requests += DispatchColumns(list(records.queues), records.rows, records.texts)

    def durable(self, offset):
        self.durable_offsets.append(offset)


def inner_message(**fields: object) -> MessageExtBrokerInner:
    return MessageExtBrokerInner("orders", b"body", properties={"KEYS": "k1", "TAGS": "a"}, **fields)


class NoRoomFor(FailingFiles):
    """A disk without space for a small file whose name begins with a given text."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def replace(self, path: Path, data: bytes) -> None:
        if path.name.startswith(self.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace(path, data)


def describe(directory: Path, topic: str, write_queue_nums: int) -> None:
    """Describe a topic in ``topics.json``."""
    topics = TopicConfigManager(directory)
    topics.load()
    topics.put(topic, TopicConfig(topic_name=topic, read_queue_nums=9, write_queue_nums=write_queue_nums))
    topics.persist()
