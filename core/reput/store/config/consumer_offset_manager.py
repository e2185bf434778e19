"""ConsumerOffsetManager: ``config/consumerOffset.json``, up to where each group has consumed each queue.

    {"offsetTable":{"orders@billing":{0:5,1:7}}}

A key is topic and group, its value the next queue offset by queue id. RocketMQ 5 adds ``dataVersion`` and
``groupTopicMap``, which lists the topics of each group; a file that has it keeps it. A broker with light queues (LMQ)
has ``lmqConsumerOffset.json`` instead, with one more table for groups that are called ``%LMQ%…``: there a key has one
offset, that of queue 0.

Source: RocketMQ, ConsumerOffsetManager and LmqConsumerOffsetManager.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from reput.settings import Settings
from reput.store.config.config_manager import ConfigManager
from reput.store.disk.files import Clock, Files
from reput.store.record.multi_dispatch import LMQ_PREFIX

__all__ = ["ConsumerOffsetManager", "LmqConsumerOffsetManager", "consumer_offset_manager"]


class ConsumerOffsetManager(ConfigManager):
    """The committed offsets of all consumer groups of one broker."""

    file_name = "consumerOffset.json"

    def __init__(self, store_directory: Path, files: Files | None = None, clock: Clock | None = None) -> None:
        super().__init__(store_directory, files, clock)
        self.offset_table: dict[str, dict[int, int]] = {}
        self.topics_of_group: dict[str, list[str]] | None = None
        self.unknown: dict[str, Any] = {}

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the queue offset that *group* consumes next, None if it never committed one."""
        with self.lock:
            return self.offset_table.get(f"{topic}@{group}", {}).get(queue_id)

    def commit_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the queue offset that *group* consumes next; it may go back."""
        with self.lock:
            key = f"{topic}@{group}"
            if key not in self.offset_table and self.topics_of_group is not None:
                topics = self.topics_of_group.setdefault(group, [])
                if topic not in topics:
                    topics.append(topic)
            self.offset_table.setdefault(key, {})[queue_id] = queue_offset

    def clean_offset_by_topic(self, topic: str) -> bool:
        """Forget what all groups have consumed of *topic*, which was deleted; tell whether there was anything.

        Source: RocketMQ 5, ConsumerOffsetManager.cleanOffsetByTopic.
        """
        with self.lock:
            keys = [key for key in self.offset_table if key.startswith(f"{topic}@")]
            for key in keys:
                del self.offset_table[key]
            for topics in (self.topics_of_group or {}).values():
                if topic in topics:
                    topics.remove(topic)
        return bool(keys)

    def offsets_of_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return every committed offset of *group*: next queue offset by topic and queue id."""
        with self.lock:
            keys = [(key, *key.rpartition("@")) for key in self.offset_table]
            return {topic: dict(self.offset_table[key]) for key, topic, _, owner in keys if owner == group}

    def groups(self) -> set[str]:
        """Return the groups that have committed anything."""
        with self.lock:
            return {key.rpartition("@")[2] for key in self.offset_table}

    def by_group(self) -> dict[str, dict[str, dict[int, int]]]:
        """Return every committed offset: next queue offset by group, topic and queue id."""
        found: dict[str, dict[str, dict[int, int]]] = {}
        with self.lock:
            for key, offsets in self.offset_table.items():
                topic, _, group = key.rpartition("@")
                found.setdefault(group, {})[topic] = dict(offsets)
        return found

    def remove(self, group: str, topic: str) -> None:
        """Forget what *group* has committed of *topic*."""
        with self.lock:
            self.offset_table.pop(f"{topic}@{group}", None)
            if self.topics_of_group is not None and topic in self.topics_of_group.get(group, []):
                self.topics_of_group[group].remove(topic)

    def remove_group(self, group: str) -> None:
        """Forget everything that *group* has committed."""
        for topic in self.offsets_of_group(group):
            self.remove(group, topic)

    def read_fields(self, fields: dict[str, Any]) -> None:
        unknown = dict(fields)
        table = msgspec.convert(unknown.pop("offsetTable", None) or {}, dict[str, dict[int, int]], strict=False)
        topics = msgspec.convert(unknown.pop("groupTopicMap", None), dict[str, list[str]] | None)
        self.offset_table, self.topics_of_group, self.unknown = table, topics, unknown

    def write_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"groupTopicMap": self.topics_of_group, "offsetTable": self.offset_table}
        return dict(sorted((self.unknown | fields).items()))


class LmqConsumerOffsetManager(ConsumerOffsetManager):
    """The same for a broker with light queues."""

    file_name = "lmqConsumerOffset.json"

    def __init__(self, store_directory: Path, files: Files | None = None, clock: Clock | None = None) -> None:
        super().__init__(store_directory, files, clock)
        self.lmq_offset_table: dict[str, int] = {}

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        if not group.startswith(LMQ_PREFIX):
            return super().query_offset(group, topic, queue_id)
        with self.lock:
            return self.lmq_offset_table.get(f"{topic}@{group}")

    def commit_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        if not group.startswith(LMQ_PREFIX):
            super().commit_offset(group, topic, queue_id, queue_offset)
            return
        with self.lock:
            self.lmq_offset_table[f"{topic}@{group}"] = queue_offset

    def clean_offset_by_topic(self, topic: str) -> bool:
        with self.lock:
            keys = [key for key in self.lmq_offset_table if key.startswith(f"{topic}@")]
            for key in keys:
                del self.lmq_offset_table[key]
            return super().clean_offset_by_topic(topic) or bool(keys)

    def groups(self) -> set[str]:
        with self.lock:
            return super().groups() | {key.rpartition("@")[2] for key in self.lmq_offset_table}

    def remove(self, group: str, topic: str) -> None:
        super().remove(group, topic)
        with self.lock:
            self.lmq_offset_table.pop(f"{topic}@{group}", None)

    def offsets_of_group(self, group: str) -> dict[str, dict[int, int]]:
        if not group.startswith(LMQ_PREFIX):
            return super().offsets_of_group(group)
        with self.lock:
            keys = [(key, *key.rpartition("@")) for key in self.lmq_offset_table]
            return {topic: {0: self.lmq_offset_table[key]} for key, topic, _, owner in keys if owner == group}

    def by_group(self) -> dict[str, dict[str, dict[int, int]]]:
        with self.lock:
            found = {group: of for group, of in super().by_group().items() if not group.startswith(LMQ_PREFIX)}
            for key, offset in self.lmq_offset_table.items():
                topic, _, group = key.rpartition("@")
                found.setdefault(group, {})[topic] = {0: offset}
        return found

    def read_fields(self, fields: dict[str, Any]) -> None:
        others = dict(fields)
        table = msgspec.convert(others.pop("lmqOffsetTable", None) or {}, dict[str, int], strict=False)
        super().read_fields(others)
        self.lmq_offset_table = table

    def write_fields(self) -> dict[str, Any]:
        return dict(sorted((super().write_fields() | {"lmqOffsetTable": self.lmq_offset_table}).items()))


def consumer_offset_manager(
    store_directory: Path, settings: Settings, files: Files | None = None, clock: Clock | None = None
) -> ConsumerOffsetManager:
    """Return the manager of the file that a broker with *settings* keeps; `load` reads it."""
    manager = LmqConsumerOffsetManager if settings.enable_lmq else ConsumerOffsetManager
    return manager(store_directory, files, clock)
