"""OpenFiles: open descriptors of files that are read repeatedly; the least recently used is closed first.

DirectoryStamp: whether a directory has changed, or another has replaced it, since it was listed.
"""

from __future__ import annotations

import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

__all__ = ["DirectoryStamp", "OpenFiles"]

# The kernel stamps with a clock that ticks every few milliseconds, so two changes may bear the same time.
TICK_NS = 20_000_000
NOTHING = (-1, -1)
# Share of the process's descriptor limit, which the program uses, too. With the usual 1,024 that is 256.
SHARE_OF_DESCRIPTORS = 4
COUNT_MIN = 128


class OpenFiles:
    """Reads files by path, from any number of threads. Keeps *count_max* files open, by default a share of the
    process's limit.

    Reads of a removed or replaced file continue through its old descriptor until `forget` or `close`.
    """

    def __init__(self, count_max: int | None = None) -> None:
        if count_max is None:
            allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            count_max = max(COUNT_MIN, allowed // SHARE_OF_DESCRIPTORS)
        self.count_max = count_max
        # Paths by their directory, so that a queue which is forgotten costs nothing of the thousands of others.
        self.directories: dict[str, set[str]] = {}
        self.descriptors: OrderedDict[str, int] = OrderedDict()
        self.lock = Lock()
        # Called with each file that is closed, under the lock, for what somebody keeps of it.
        self.on_close: Callable[[str], None] = lambda path: None

    def read(self, path: str | Path, size: int, at: int) -> bytes:
        """Return up to *size* bytes from *at* on; fewer at the end of the file.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: the system cannot read it; the error names it.
        """
        if type(path) is not str:
            path = str(path)
        # Under the lock: another thread might close the descriptor, and a third get its number.
        with self.lock:
            descriptor = self.descriptors.get(path)
            if descriptor is None:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self.descriptors[path] = descriptor
                self.directories.setdefault(os.path.dirname(path), set()).add(path)
                if len(self.descriptors) > self.count_max:
                    self.close_file(next(iter(self.descriptors)))
            else:
                self.descriptors.move_to_end(path)
            try:
                return os.pread(descriptor, size, at)
            except OSError as error:
                error.filename = path
                raise

    def close_file(self, path: str) -> None:
        """Close one; under the lock."""
        os.close(self.descriptors.pop(path))
        self.on_close(path)
        directory = os.path.dirname(path)
        paths = self.directories[directory]
        paths.remove(path)
        if not paths:
            del self.directories[directory]

    def forget(self, directory: str | None = None) -> None:
        """Close all files of *directory*, by default of all; the next read opens the file that has the name then."""
        with self.lock:
            paths = self.descriptors if directory is None else self.directories.get(directory.rstrip("/"), ())
            for path in list(paths):
                self.close_file(path)

    def close(self) -> None:
        """Close all."""
        self.forget()

    def __del__(self) -> None:
        # A reader that is dropped without `close`, or a dispatcher that has ended, must not keep its files open.
        for descriptor in self.descriptors.values():
            os.close(descriptor)


class DirectoryStamp:
    """Remembers when a directory was changed last. One system call says whether it has to be listed again."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.seen = NOTHING

    def forget(self) -> None:
        """Make the next call of `changed` return True."""
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
