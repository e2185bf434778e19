"""DelayOffsets: how far the schedule service has delivered each delay level, on disk.

    config/delayOffset.json   RocketMQ's: the next queue offset by level
    reput/delay_offsets       the same, with the commit-log offset after which every later delivery lies

The second file makes delivery exactly once: after a kill, the log is searched from its offset for later deliveries. It
is written first, so that RocketMQ's file is never ahead of it. Both are written only when the deliveries they record
are on disk: if a power cut loses a delivered message, it is delivered again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from reput.errors import StoreError
from reput.store.config.delay_offset_manager import DelayOffsetManager
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.message_store import MessageStore
from reput.store.service.service_thread import ServiceThread
from reput_hooks import Cursor

__all__ = ["DELAY_OFFSETS_NAME", "DelayOffsets", "DeliveredUpTo"]

# Under ``reput/``.
DELAY_OFFSETS_NAME = "delay_offsets"

logger = logging.getLogger("reput.consume")


class DeliveredUpTo(msgspec.Struct, frozen=True):
    """The delivery progress when the log ended at *commit_log_offset* in *epoch*.

    Attributes:
        queue_offsets: by delay level, the first queue offset not delivered by then.
    """

    epoch: int
    commit_log_offset: int
    queue_offsets: dict[int, int]


class DelayOffsets(ServiceThread):
    """Saves what *delivered* returns, every ``flush_delay_offset_interval`` while it changes.

    `stop` does not save deliveries since the last round; call `keep` once more for that.
    """

    def __init__(self, writer: MessageStore, delivered: Callable[[], DeliveredUpTo]) -> None:
        """Read the saved progress. The service's own thread calls *delivered*.

        Raises:
            DamagedStore: reput's own file cannot be read, or neither ``delayOffset.json`` nor its backup can.
        """
        super().__init__("reput-delay-offsets", writer.threads)
        self.writer = writer
        self.delivered = delivered
        self.path = writer.own / DELAY_OFFSETS_NAME
        self.manager = DelayOffsetManager(writer.directory, writer.files, writer.clock)
        self.manager.load()
        self.kept = read_sealed(self.path, DeliveredUpTo)

    def beginning(self) -> DeliveredUpTo | None:
        """Return the saved progress if the log still has everything it had then; None: only RocketMQ's file counts."""
        kept = self.kept
        if kept is None or kept.commit_log_offset > self.writer.appended:
            return None
        cursor = Cursor(self.writer.store_id, kept.epoch, kept.commit_log_offset, 0)
        return kept if self.writer.epochs.holds(cursor) else None

    def seconds_to_next(self) -> float:
        """Return the interval."""
        return self.writer.settings.flush_delay_offset_interval / 1000

    def do_round(self) -> None:
        """Save the progress, and log disk errors."""
        try:
            self.keep()
        except (OSError, StoreError) as error:
            # The former file is still valid; a search only has to cover more of the log.
            logger.warning("delay offsets cannot be stored now: path=%s error=%s", self.path, error)

    def keep(self) -> None:
        """Write the progress, once the deliveries are on disk.

        Raises:
            StoreError: the disk refused to force the log, or RocketMQ's file, which is unchanged.
            OSError: the disk refused reput's file, which is unchanged.
        """
        now = self.delivered()
        if now == self.kept:
            return
        if self.writer.durable < now.commit_log_offset:
            self.writer.flush()
        self.writer.files.replace(self.path, seal(now))
        self.kept = now
        for level, queue_offset in sorted(now.queue_offsets.items()):
            self.manager.update_offset(level, queue_offset)
        self.manager.persist()
