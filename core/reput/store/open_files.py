"""OpenFiles: descriptors of files that are read again and again, the least used closed first."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock

__all__ = ["OpenFiles"]


class OpenFiles:
    """Reads files by path; few are open at a time. Any number of threads.

    A file that was removed or replaced is read on by its descriptor until `forget` or `close`.
    """

    def __init__(self, count_max: int = 128) -> None:
        self.count_max = count_max
        self.descriptors: OrderedDict[str | Path, int] = OrderedDict()
        self.lock = Lock()

    def read(self, path: str | Path, size: int, at: int) -> bytes:
        """Return up to *size* bytes from *at* on; fewer at the end of the file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        # Under the lock: another thread might close the descriptor, and a third get its number.
        with self.lock:
            descriptor = self.descriptors.get(path)
            if descriptor is None:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self.descriptors[path] = descriptor
                if len(self.descriptors) > self.count_max:
                    _, oldest = self.descriptors.popitem(last=False)
                    os.close(oldest)
            else:
                self.descriptors.move_to_end(path)
            return os.pread(descriptor, size, at)

    def forget(self) -> None:
        """Close all, so that the next read opens what stands under the name then."""
        with self.lock:
            for descriptor in self.descriptors.values():
                os.close(descriptor)
            self.descriptors.clear()

    close = forget
