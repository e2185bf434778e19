"""LocalFileOffsetStore: the offsets of one broadcasting consumer, in a file of its program or in memory.

A broadcasting group has no offsets in the store: each of its consumers receives every message, so each has its own
offsets. The file has the format of ``consumerOffset.json``, is replaced as a whole, and has a backup, ``NAME.bak``. It
also records the log's end and epoch at the last commit, which show how much of the log a power cut took.

    {"offsetTable":{"orders@caches":{0:5}},"logEnd":{"storeId":"…","epoch":3,"commitLogOffset":1024}}

Source of the name: RocketMQ client, LocalFileOffsetStore, whose file is ``offsets.json`` below the user's home.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from reput.argument_checks import OFFSET_MAX
from reput.consume.groups.cut_offsets import tell_lost
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput_hooks import Cursor

__all__ = ["ConsumedLog", "LocalFileOffsetStore"]

LOG_END = "logEnd"


class ConsumedLog(Protocol):
    """The part of the store that offsets use."""

    def log_cursor(self) -> Cursor:
        """Return the end of the log, with store id and epoch."""

    def parted_from(self, cursor: Cursor) -> int | None:
        """Return the commit-log offset from which the log differs from the one ending at *cursor*; None: nowhere."""

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets."""

    def queue_offset_from(self, topic: str, queue_id: int, commit_log_offset: int) -> int:
        """Return the queue offset of the first message at or after *commit_log_offset*."""


class LogEnd(msgspec.Struct, frozen=True, rename="camel"):
    """The end of the log at the last commit."""

    store_id: str
    epoch: int
    commit_log_offset: int


class LocalFileOffsetStore(ConsumerOffsetManager):
    """The offsets of one consumer; *path* None: in memory only."""

    def __init__(self, path: Path | None, log: ConsumedLog) -> None:
        """Read the saved offsets.

        Raises:
            DamagedStore: there is a file or a backup, but neither can be read.
        """
        super().__init__(Path() if path is None else path.parent)
        self.log = log
        self.log_end: LogEnd | None = None
        self.kept_at = path
        # The log agrees up to here with the one that the offsets were saved for; None: it has all of that one.
        self.parted_from: int | None = None
        if path is not None:
            self.path = path
            self.load()
            if self.log_end is not None:
                end = self.log_end
                self.parted_from = log.parted_from(Cursor(end.store_id, end.epoch, end.commit_log_offset, 0))

    def commit_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the queue offset at which the consumer continues."""
        with self.lock:
            super().commit_offset(group, topic, queue_id, queue_offset)
            end = self.log.log_cursor()
            self.log_end = LogEnd(end.store_id, end.epoch, end.commit_log_offset)

    def bring_back(self) -> None:
        """Move offsets that lie past the remaining end of their queue back to that end.

        This covers all queues at once, including those that no longer exist: later commits refer to the log as it is
        now, so the file then no longer shows where the logs differ.

        Raises:
            DispatcherError: no dispatcher builds the queues, so their ends are unknown.
            DamagedStore: a queue cannot be read.
        """
        ends: list[tuple[str, str, int, int]] = []
        for group, committed in self.by_group().items():
            for topic, by_queue in committed.items():
                for queue_id, queue_offset in by_queue.items():
                    end = self.end_of(topic, queue_id, queue_offset)
                    if end < queue_offset:
                        tell_lost(group, topic, queue_id, queue_offset, end)
                        ends.append((group, topic, queue_id, end))
        with self.lock:
            # Under one lock, so that no offset is saved without the others.
            for place in ends:
                self.commit_offset(*place)

    def end_of(self, topic: str, queue_id: int, committed: int) -> int:
        """Return the end of the remaining part of a queue, or *committed* if nothing before it is lost."""
        if self.parted_from is not None:
            return self.log.queue_offset_from(topic, queue_id, self.parted_from)
        if committed <= self.log.next_queue_offset(topic, queue_id):
            return committed
        # The file does not record the log's end.
        return self.log.queue_offset_from(topic, queue_id, OFFSET_MAX)

    def read_fields(self, fields: dict[str, Any]) -> None:
        others = dict(fields)
        log_end = msgspec.convert(others.pop(LOG_END, None), LogEnd | None)
        super().read_fields(others)
        self.log_end = log_end

    def write_fields(self) -> dict[str, Any]:
        fields = super().write_fields()
        return fields if self.log_end is None else fields | {LOG_END: msgspec.to_builtins(self.log_end)}

    def persist(self) -> None:
        """Write the offsets durably, if they differ from the file.

        Raises:
            StoreError: the file could not be written, and is unchanged.
        """
        if self.kept_at is not None:
            super().persist()
