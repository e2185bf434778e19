"""OpenFiles: descriptors of files that are read again and again, the least used closed first.

DirectoryStamp: whether a directory was changed, or replaced by another, since it was listed.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from pathlib import Path
from threading import Lock

__all__ = ["DirectoryStamp", "OpenFiles"]

# The kernel stamps with a clock that ticks every few milliseconds, so two changes may bear the same time.
TICK_NS = 20_000_000
NOTHING = (-1, -1)


class OpenFiles:
    """Reads files by path; few are open at a time. Any number of threads.

    A file that was removed or replaced is read on by its descriptor until `forget` or `close`.
    """

    def __init__(self, count_max: int = 128) -> None:
        self.count_max = count_max
        self.descriptors: OrderedDict[str, int] = OrderedDict()
        self.lock = Lock()

    def read(self, path: str | Path, size: int, at: int) -> bytes:
        """Return up to *size* bytes from *at* on; fewer at the end of the file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if type(path) is not str:
            path = str(path)
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

    def forget(self, prefix: str = "") -> None:
        """Close all whose path begins with *prefix*; the next read opens what stands under the name then."""
        with self.lock:
            for path in [path for path in self.descriptors if path.startswith(prefix)]:
                os.close(self.descriptors.pop(path))

    def close(self) -> None:
        """Close all."""
        self.forget()


class DirectoryStamp:
    """Remembers when a directory was changed last. One system call says whether it has to be listed again."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.seen = NOTHING

    def forget(self) -> None:
        """Have `changed` say True the next time."""
        self.seen = NOTHING

    def changed(self) -> bool:
        """Tell whether names may have come or gone since the last call; True the first time, and where it is absent."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            self.seen = NOTHING
            return True
        changed_ns = found.st_mtime_ns
        if (changed_ns, found.st_ino) == self.seen:
            return False
        self.seen = (changed_ns, found.st_ino) if time.time_ns() - changed_ns > TICK_NS else NOTHING
        return True
