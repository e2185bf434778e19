"""LocalFileOffsetStore: up to where one broadcasting consumer has come, in a file of its program's, or in memory.

A group that broadcasts has no offset in the store: each of its consumers is given every message, so each has its own.
The file looks like ``consumerOffset.json``, is replaced as a whole, and has a backup, ``NAME.bak``.

Source of the name: RocketMQ client, LocalFileOffsetStore, whose file is ``offsets.json`` below the user's home.
"""

from __future__ import annotations

from pathlib import Path

from reput.store.consumer_offset_manager import ConsumerOffsetManager

__all__ = ["LocalFileOffsetStore"]


class LocalFileOffsetStore(ConsumerOffsetManager):
    """The offsets of one consumer; *path* None: for as long as it lives."""

    def __init__(self, path: Path | None) -> None:
        """Read what was kept.

        Raises:
            DamagedStore: there is a file or a backup, but neither can be read.
        """
        super().__init__(Path() if path is None else path.parent)
        self.kept_at = path
        if path is not None:
            self.path = path
            self.load()

    def persist(self) -> None:
        """Write the offsets, durably, if the file says anything else.

        Raises:
            OSError: the file holds what it held before.
        """
        if self.kept_at is not None:
            super().persist()
