"""DescribedTopics: what ``config/topics.json`` says of topics, read again when the file has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from reput.errors import DamagedStore
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager

__all__ = ["DescribedTopics"]

Stamp = tuple[int, int, int]


class DescribedTopics:
    """The described topics of one store, as its file is now. Any number of threads."""

    def __init__(self, store_directory: Path, complain: Callable[[str], None] = lambda text: None) -> None:
        """*complain* is called once if the file cannot be read; then no topic counts as described."""
        self.store_directory = store_directory
        self.complain = complain
        self.entries: Mapping[str, TopicConfig] = {}
        # From the file that was read last; a new store has none.
        self.stamp: Stamp | None = None

    def find(self, topic: str) -> TopicConfig | None:
        """Return the description of *topic*, None without one. Costs a ``stat``."""
        # A broker's file describes thousands of topics, and is asked for each of them.
        stamp = self.file_stamp()
        if stamp != self.stamp:
            self.entries = self.read_file()
            self.stamp = stamp
        return self.entries.get(topic)

    def file_stamp(self) -> Stamp | None:
        """Return what changes whenever the file does, None where there is none."""
        try:
            found = os.stat(self.store_directory / "config" / TopicConfigManager.file_name)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read_file(self) -> Mapping[str, TopicConfig]:
        """Return all topics that are described."""
        topics = TopicConfigManager(self.store_directory)
        try:
            topics.load()
        except DamagedStore as error:
            self.complain(f"the description of topics cannot be read: {error}")
        return topics.entries
