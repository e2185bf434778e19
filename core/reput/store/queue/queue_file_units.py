"""QueueFileUnits: the units of one queue as its files hold them, whatever they hold, thousands at a time with numpy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np

from reput.store.disk.file_name import parse_file_name
from reput.store.disk.open_files import OpenFiles
from reput.store.queue.consume_queue import UNIT_SIZE
from reput.store.queue.consume_queue_builder import names_in
from reput.store.queue.consume_queue_units import UNIT_DTYPE

__all__ = ["READ_MAX", "QueueFileUnits"]

Array = np.ndarray[Any, Any]
# Units that are read at once.
READ_MAX = 1 << 16


class QueueFileUnits:
    """The files of one queue, found once, to read. Places are queue offsets.

    Attributes:
        files: (first place, count of places, path) of each file, ascending; sizes are those that the files have.
    """

    def __init__(self, directory: Path, open_files: OpenFiles) -> None:
        self.open_files = open_files
        self.files: list[tuple[int, int, Path]] = []
        for name in sorted(names_in(directory)):
            begin = parse_file_name(name)
            # Retention, or the deletion of the topic, may take a file while it is looked at.
            with contextlib.suppress(FileNotFoundError):
                if begin is not None:
                    path = directory / name
                    stat = path.stat()
                    # Opening a named pipe would block until another process opened its other end.
                    if S_ISREG(stat.st_mode):
                        self.files.append((begin // UNIT_SIZE, stat.st_size // UNIT_SIZE, path))

    def has(self, place: int) -> bool:
        """Tell whether there is still a file with this place, as far as a read has found out."""
        return any(first <= place < first + count for first, count, _ in self.files)

    def read(self, begin: int, end: int) -> Array:
        """Return the units of places [begin, end); zeros where a file is absent or was removed."""
        units = np.zeros(end - begin, UNIT_DTYPE)
        for first, count, path in list(self.files):
            low, high = max(begin, first), min(end, first + count)
            if low < high:
                try:
                    data = self.open_files.read(path, (high - low) * UNIT_SIZE, (low - first) * UNIT_SIZE)
                except FileNotFoundError:
                    self.files.remove((first, count, path))
                    continue
                data = data[: len(data) - len(data) % UNIT_SIZE]
                units[low - begin : low - begin + len(data) // UNIT_SIZE] = np.frombuffer(data, UNIT_DTYPE)
        return units

    def existing(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of places in [begin, end) for which there are files, a bounded number of places each."""
        for first, count, _ in list(self.files):
            high = min(end, first + count)
            for low in range(max(begin, first), high, READ_MAX):
                yield low, min(low + READ_MAX, high)

    def used_end(self, begin: int) -> int:
        """Return the place behind the last unit from *begin* on that is not zero, or *begin*."""
        end = begin
        for low, high in self.used(begin):
            used = np.flatnonzero(self.read(low, high)["record_size"] > 0)
            if len(used):
                end = low + int(used[-1]) + 1
        return end

    def used(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of places from *begin* on that the file system does not know to be zero."""
        for first, count, path in list(self.files):
            at = max(begin - first, 0) * UNIT_SIZE
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                while at < count * UNIT_SIZE:
                    try:
                        data = os.lseek(descriptor, at, os.SEEK_DATA)
                        hole = os.lseek(descriptor, data, os.SEEK_HOLE)
                    except OSError:
                        # ENXIO: only a hole up to the end.
                        break
                    low, high = max(data, at) // UNIT_SIZE, min(-(-hole // UNIT_SIZE), count)
                    for part in range(low, high, READ_MAX):
                        yield first + part, first + min(part + READ_MAX, high)
                    at = high * UNIT_SIZE
            finally:
                os.close(descriptor)
