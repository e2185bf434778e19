"""Cleaning up after a deleted topic: its configuration entries, and queue folders that are removed a little later."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.config.topic_config_manager import TopicConfigManager

__all__ = ["GoneDirectory", "forget_topic_config"]

GONE_LOOK_S = 0.002


def forget_topic_config(
    topic: str, topics: TopicConfigManager, offsets: ConsumerOffsetManager, on_removed: Callable[[str], None]
) -> None:
    """Remove *topic* and the groups' committed offsets for it from the stored configuration."""
    with topics.lock:
        if topic in topics.entries:
            topics.remove(topic)
            topics.persist()
            on_removed(topic)
    with offsets.lock:
        if offsets.clean_offset_by_topic(topic):
            offsets.persist()


class GoneDirectory:
    """Waits until a directory is removed, even if another one of the same name is made at once."""

    def __init__(self, path: Path) -> None:
        self.descriptor: int | None = None
        with contextlib.suppress(FileNotFoundError):
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def wait(self, timeout: float | None) -> bool:
        """Return True once the directory is gone, False after *timeout* seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = threading.Event()
        while self.descriptor is not None and os.fstat(self.descriptor).st_nlink:
            if end is not None and time.monotonic() >= end:
                return False
            pause.wait(GONE_LOOK_S)
        return True

    def close(self) -> None:
        """Close the descriptor of the directory."""
        if self.descriptor is not None:
            os.close(self.descriptor)
