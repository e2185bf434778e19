"""OpenRing: the dispatch ring of one writer, with its memory and the service that releases held records."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from reput.settings import Settings
from reput.store.message_store import MessageStore

if TYPE_CHECKING:
    from reput.process.frames.holding_publisher import HoldingPublisher
    from reput.process.frames.release_service import ReleaseService

__all__ = ["OpenRing", "positions"]


class OpenRing:
    """The ring that the writer publishes to, in memory that the group's processes map."""

    def __init__(self, writer: MessageStore, settings: Settings) -> None:
        from reput.ring import RingMemory, RingWriter

        self.memory = RingMemory.create(settings.ring_size, settings.dispatcher_count_max)
        self.writer = RingWriter(self.memory, **positions(writer))
        self.release_service: ReleaseService | None = None

    def start_publisher(self, writer: MessageStore, on_read_only: Callable[[str | None], None]) -> HoldingPublisher:
        """Return the publisher for *writer*; it calls *on_read_only* as `FramePublisher` does."""
        from reput.process.frames.holding_publisher import HoldingPublisher
        from reput.process.frames.release_service import ReleaseService

        descriptor = self.memory.release_descriptor
        publisher = HoldingPublisher(
            self.writer,
            writer.epochs.epoch,
            on_read_only,
            lambda: os.eventfd_write(descriptor, 1),
            writer.segment_size,
        )

        def on_asked() -> None:
            awaited = self.writer.durable_awaited
            if awaited is not None and awaited <= writer.appended:
                writer.force_soon()

        self.release_service = ReleaseService(publisher, writer.appender.put_lock, descriptor, writer.threads, on_asked)
        return publisher

    def end_release(self) -> None:
        """Publish all held records. Nothing is put after this."""
        service, self.release_service = self.release_service, None
        if service is not None:
            service.stop()

    def close(self) -> None:
        """Tell readers that no more frames follow, and release the memory."""
        self.end_release()
        self.writer.close()
        self.memory.close()


def positions(writer: MessageStore) -> dict[str, int]:
    """Return the current positions of the log, with which a new ring starts."""
    return {
        "appended": writer.appended,
        "durable": writer.durable,
        "commit_log_offset_min": writer.commit_log_offset_min,
        "epoch": writer.epochs.epoch,
        "ordinal": writer.ordinal,
    }
