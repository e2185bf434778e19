"""DelayOffsetManager: ``config/delayOffset.json``, up to where the schedule service has delivered each delay level.

    {"offsetTable":{1:12,3:40}}

A key is a delay level, from 1 on, its value the next queue offset of ``SCHEDULE_TOPIC_XXXX``, queue level - 1.

Source: RocketMQ, ScheduleMessageService and DelayOffsetSerializeWrapper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from reput.store.config.config_manager import ConfigManager
from reput.store.disk.files import Clock, Files

__all__ = ["DelayOffsetManager"]


class DelayOffsetManager(ConfigManager):
    """The next queue offset of each delay level."""

    file_name = "delayOffset.json"

    def __init__(self, store_directory: Path, files: Files | None = None, clock: Clock | None = None) -> None:
        super().__init__(store_directory, files, clock)
        self.offset_table: dict[int, int] = {}
        self.unknown: dict[str, Any] = {}

    def query_offset(self, level: int) -> int | None:
        """Return the queue offset to deliver next, None if the file has none for *level*."""
        with self.lock:
            return self.offset_table.get(level)

    def update_offset(self, level: int, queue_offset: int) -> None:
        """Set the queue offset to deliver next."""
        with self.lock:
            self.offset_table[level] = queue_offset

    def read_fields(self, fields: dict[str, Any]) -> None:
        unknown = dict(fields)
        table = msgspec.convert(unknown.pop("offsetTable", None) or {}, dict[int, int], strict=False)
        self.offset_table, self.unknown = table, unknown

    def write_fields(self) -> dict[str, Any]:
        return dict(sorted((self.unknown | {"offsetTable": self.offset_table}).items()))
