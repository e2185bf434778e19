"""Offsets: the offsets of a broadcasting consumer, in memory or in a file of its own.

Source: RocketMQ client, LocalFileOffsetStore. The file is reput's own: a list of queues, each with its offset.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.errors import DamagedStore
from reput.remoting.message_queue import MessageQueue
from reput.store.disk.shortages import tell_store_error
from reput_hooks import replace_durably

__all__ = ["Offsets"]


class KeptOffset(msgspec.Struct, rename="camel", frozen=True):
    """One queue's offset in the file."""

    broker_name: str
    topic: str
    queue_id: int
    offset: int


class Offsets:
    """Used in the thread of one loop only."""

    def __init__(self, path: Path | None) -> None:
        """Read the offsets kept in *path*; None: keep none.

        Raises:
            DamagedStore: the file cannot be read.
        """
        self.path = path
        self.offsets: dict[MessageQueue, int] = {}
        self.is_changed = False
        if path is None:
            return
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=list[KeptOffset])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            raise DamagedStore(
                f"the offsets of a broadcasting consumer cannot be read: offset_store={path} error={error}",
                "Remove the file to start without offsets.",
            ) from None
        self.offsets = {MessageQueue(at.broker_name, at.queue_id, at.topic): at.offset for at in kept}

    def find(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue; None: the queue has none yet."""
        return self.offsets.get(queue)

    def set(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a queue."""
        self.offsets[queue] = offset
        self.is_changed = True

    def forget(self, queue: MessageQueue) -> None:
        """Remove the offset of a queue that is gone."""
        if self.offsets.pop(queue, None) is not None:
            self.is_changed = True

    def persist(self) -> None:
        """Write the file, if an offset has changed.

        Raises:
            StoreError: the file cannot be written, and is unchanged.
        """
        if self.path is not None and self.is_changed:
            kept = [KeptOffset(at.broker_name, at.topic, at.queue_id, offset) for at, offset in self.offsets.items()]
            with tell_store_error("the offsets of a broadcasting consumer cannot be written"):
                replace_durably(self.path, msgspec.json.encode(kept))
            self.is_changed = False
