"""SlowReader: a reader of a store for reads that may take long, so that short reads do not wait for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from reput.store.reader.message_reader import MessageReader

__all__ = ["SlowReader"]


class SlowReader:
    """Made at its first use. Any thread may call.

    Attributes:
        reader: None until the first use.
    """

    def __init__(self, new_reader: Callable[[], MessageReader], require_open: Callable[[], None]) -> None:
        """*require_open* raises StoreClosed when the store is closed."""
        self.new_reader = new_reader
        self.require_open = require_open
        self.lock = threading.Lock()
        self.reader: MessageReader | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[MessageReader]:
        """Give the reader, to one thread at a time.

        Raises:
            StoreClosed: the store is closed.
        """
        with self.lock:
            self.require_open()
            if self.reader is None:
                self.reader = self.new_reader()
            yield self.reader

    def forget(self) -> None:
        """Read the sizes and units of all queues again, after the read under way."""
        with self.lock:
            if self.reader is not None:
                self.reader.store.forget()

    def close(self) -> None:
        """Close the files, after the read under way."""
        with self.lock:
            if self.reader is not None:
                self.reader.close()
