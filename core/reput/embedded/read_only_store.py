"""ReadOnlyStore: what `reput.open` returns with ``read_only=True``."""

from __future__ import annotations

from reput.embedded.opened_store import OpenedStore
from reput.embedded.read_only_engine import ReadOnlyEngine

__all__ = ["ReadOnlyStore"]


class ReadOnlyStore(OpenedStore[ReadOnlyEngine]):
    """A store that is only read: beside the process that writes it, or one that no process has open.

    It also reads a store that RocketMQ wrote. Not a byte of the store changes. Open it with
    ``reput.open(path, read_only=True)``.
    """
