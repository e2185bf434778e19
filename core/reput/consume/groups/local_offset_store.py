"""LocalFileOffsetStore: up to where one broadcasting consumer has come, in a file of its program's, or in memory.

A group that broadcasts has no offset in the store: each of its consumers is given every message, so each has its own.
The file looks like ``consumerOffset.json``, is replaced as a whole, and has a backup, ``NAME.bak``. It also has where
the log ended when an offset was committed last, and in which history: by that it is known what of it a power cut took.

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
    """What offsets are told of the log."""

    def log_cursor(self) -> Cursor:
        """Return the end of the log, in its history."""

    def parted_from(self, cursor: Cursor) -> int | None:
        """Return from where on the log is another one than when it ended at *cursor*."""

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets."""

    def queue_offset_from(self, topic: str, queue_id: int, commit_log_offset: int) -> int:
        """Return the queue offset of the first message at or behind *commit_log_offset*."""


class LogEnd(msgspec.Struct, frozen=True, rename="camel"):
    """Where the log ended."""

    store_id: str
    epoch: int
    commit_log_offset: int


class LocalFileOffsetStore(ConsumerOffsetManager):
    """The offsets of one consumer; *path* None: for as long as it lives."""

    def __init__(self, path: Path | None, log: ConsumedLog) -> None:
        """Read what was kept.

        Raises:
            DamagedStore: there is a file or a backup, but neither can be read.
        """
        super().__init__(Path() if path is None else path.parent)
        self.log = log
        self.log_end: LogEnd | None = None
        self.kept_at = path
        # Up to there the log is the one that the offsets were kept of; None: it has all of it.
        self.parted_from: int | None = None
        if path is not None:
            self.path = path
            self.load()
            if self.log_end is not None:
                end = self.log_end
                self.parted_from = log.parted_from(Cursor(end.store_id, end.epoch, end.commit_log_offset, 0))

    def commit_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the queue offset that the consumer goes on at."""
        with self.lock:
            super().commit_offset(group, topic, queue_id, queue_offset)
            end = self.log.log_cursor()
            self.log_end = LogEnd(end.store_id, end.epoch, end.commit_log_offset)

    def bring_back(self) -> None:
        """Have the consumer go on at the end of what the log has left of each queue, if it had come further.

        Of all queues at once, also of those that are not there any more: what is committed from then on is of the log
        as it is now, and the file does not tell any more where it parted.

        Raises:
            DispatcherError: nobody builds the queues that say where that is.
            DamagedStore: a queue cannot say it.
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
            # None is kept without the others.
            for place in ends:
                self.commit_offset(*place)

    def end_of(self, topic: str, queue_id: int, committed: int) -> int:
        """Return the end of what the log has left of a queue, or *committed*, if nothing before that is lost."""
        if self.parted_from is not None:
            return self.log.queue_offset_from(topic, queue_id, self.parted_from)
        if committed <= self.log.next_queue_offset(topic, queue_id):
            return committed
        # Of a file that does not say where the log ended.
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
        """Write the offsets, durably, if the file says anything else.

        Raises:
            OSError: the file holds what it held before.
        """
        if self.kept_at is not None:
            super().persist()
