"""Failing disks: a process killed between two file calls, and a power cut that keeps any part of the unforced data."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from reput.store.disk.files import Files, Mapping, WrittenFile

__all__ = ["FullDisk", "Killed", "KilledFiles", "PowerCutFiles"]

BLOCK_SIZE = 64


class Killed(BaseException):
    """The process ends here."""


class CountedFile(WrittenFile):
    """A file whose writes count as calls; the last one is torn."""

    def __init__(self, path: Path, count: Callable[[], bool]) -> None:
        super().__init__(path)
        self.count = count

    def write(self, data: bytes, at: int) -> None:
        if self.count():
            os.pwrite(self.descriptor, data[: len(data) // 2], at)
            raise Killed
        super().write(data, at)

    def force(self) -> None:
        if self.count():
            raise Killed
        super().force()


class KilledFiles(Files):
    """Lets *calls* file calls happen and kills the process in the next one.

    Attributes:
        killed: whether it was killed.
    """

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.killed = False

    def count(self) -> bool:
        self.calls -= 1
        self.killed = self.killed or self.calls < 0
        return self.killed

    def step(self) -> None:
        if self.count():
            raise Killed

    def create(self, path: Path, size: int, data: bytes = b"") -> None:
        if self.count():
            path.touch()
            raise Killed
        super().create(path, size, data)

    def open(self, path: Path) -> WrittenFile:
        return CountedFile(path, self.count)

    def map(self, path: Path, size: int) -> Mapping:
        self.step()
        return super().map(path, size)

    def make_directory(self, path: Path) -> None:
        self.step()
        super().make_directory(path)

    def force_directory(self, path: Path) -> None:
        self.step()
        super().force_directory(path)

    def replace(self, path: Path, data: bytes) -> None:
        self.step()
        super().replace(path, data)
        self.step()

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self.step()
        super().remove_directory(path)

    def move(self, source: Path, target: Path) -> None:
        self.step()
        super().move(source, target)

    def resize(self, path: Path, size: int) -> None:
        self.step()
        super().resize(path, size)


class WatchedFile(WrittenFile):
    """Reports when it is forced."""

    def __init__(self, path: Path, forced: Callable[[Path], None]) -> None:
        super().__init__(path)
        self.path = path
        self.forced = forced

    def force(self) -> None:
        super().force()
        self.forced(self.path)


class WatchedMapping(Mapping):
    """Reports when it is forced."""

    def __init__(self, path: Path, size: int, forced: Callable[[Path], None]) -> None:
        super().__init__(path, size)
        self.forced = forced

    def force(self) -> None:
        super().force()
        self.forced(self.path)

    def write_forced(self, data: bytes, at: int) -> None:
        super().write_forced(data, at)
        self.forced(self.path)


class PowerCutFiles(Files):
    """Tracks which data is certainly on disk; `cut` keeps a random part of all other data."""

    def __init__(self) -> None:
        self.durable: dict[Path, bytes] = {}
        self.unsure_names: set[Path] = set()
        self.removed: dict[Path, bytes] = {}

    def forced(self, path: Path) -> None:
        self.durable[path] = path.read_bytes()

    def create(self, path: Path, size: int, data: bytes = b"") -> None:
        super().create(path, size, data)
        self.durable[path] = bytes(size)
        self.unsure_names.add(path)

    def open(self, path: Path) -> WrittenFile:
        self.durable.setdefault(path, path.read_bytes())
        return WatchedFile(path, self.forced)

    def map(self, path: Path, size: int) -> Mapping:
        self.durable.setdefault(path, path.read_bytes())
        return WatchedMapping(path, size, self.forced)

    def force_directory(self, path: Path) -> None:
        super().force_directory(path)
        self.unsure_names = {name for name in self.unsure_names if name.parent != path}
        self.removed = {name: data for name, data in self.removed.items() if name.parent != path}

    def replace(self, path: Path, data: bytes) -> None:
        super().replace(path, data)
        self.force_directory(path.parent)

    def remove(self, path: Path) -> None:
        data = self.durable.pop(path, b"")
        super().remove(path)
        if path in self.unsure_names:
            self.unsure_names.discard(path)
        else:
            self.removed[path] = data

    def cut(self, chance: random.Random) -> None:
        """Cut the power: each block of a file is as it was last forced, or as it is now; names may be old ones."""
        for path, old in self.durable.items():
            if not path.exists():
                continue
            if path in self.unsure_names and chance.random() < 0.3:
                path.unlink()
                continue
            new = path.read_bytes()
            blocks = (
                (old if chance.random() < 0.5 else new)[at : at + BLOCK_SIZE] for at in range(0, len(new), BLOCK_SIZE)
            )
            path.write_bytes(b"".join(blocks))
        for path, old in self.removed.items():
            if path.parent.is_dir() and not path.exists() and chance.random() < 0.5:
                path.write_bytes(old)
        self.__init__()  # type: ignore[misc]


class FullDisk(Files):
    """Has space for *room* allocating file calls, until it gets more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def take(self) -> None:
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        self.room -= 1

    def create(self, path: Path, size: int, data: bytes = b"") -> None:
        self.take()
        super().create(path, size, data)

    def open(self, path: Path) -> WrittenFile:
        return FullDiskFile(path, self.take)

    def map(self, path: Path, size: int) -> Mapping:
        return FullDiskMapping(path, size, self.take)


class FullDiskFile(WrittenFile):
    """A file on a disk that may be full; then a write stores only a part."""

    def __init__(self, path: Path, take: Callable[[], None]) -> None:
        super().__init__(path)
        self.take = take

    def write(self, data: bytes, at: int) -> None:
        try:
            self.take()
        except OSError:
            os.pwrite(self.descriptor, data[: len(data) // 3], at)
            raise
        super().write(data, at)


class FullDiskMapping(Mapping):
    """A mapping on a disk that may be full."""

    def __init__(self, path: Path, size: int, take: Callable[[], None]) -> None:
        super().__init__(path, size)
        self.take = take

    def reserve(self, at: int, size: int) -> None:
        self.take()
        super().reserve(at, size)
