"""SimulatedDisk: the state after a power cut, and the calls that are refused to each simulated process.

Files are real and tiny, so that readers need no special interface; the state after a power cut is kept separately,
sector by sector. Each process accesses the disk through its own `ProcessFiles`, which can be killed at any call.

    written   → in the file at once: other processes see it, and a killed process loses nothing of it
    forced    → copied to what is durable
    cut       → each sector is as it was forced, or as it was written since, as chance wants; names that no directory
                was forced for come and go
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from os.path import dirname
from pathlib import Path
from typing import TypeVar

from faulty_files import Killed
from reput.store.disk.files import Files, Mapping, WrittenFile

__all__ = ["ProcessFiles", "SimulatedDisk", "content"]

SECTOR_SIZE = 512
# Unforced names usually survive a power cut.
NAME_LOST = 0.3

Opened = TypeVar("Opened", Mapping, WrittenFile)


def content(path: Path | str) -> bytes:
    """Return a whole file, ten times as fast as `Path.read_bytes`, which would be called thousands of times here."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


class SimulatedDisk:
    """The disk of one machine.

    Attributes:
        full: there is no space.
        force_error: errno of every force; None: they succeed.
        refusals: number of refusals by reason.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.full = False
        self.force_error: int | None = None
        self.refusals: Counter[str] = Counter()
        self.durable: dict[Path, bytes] = {}
        # Each with its directory, as text.
        self.new_names: dict[Path, str] = {}
        self.removed: dict[Path, bytes] = {}
        self.replaced: dict[Path, bytes | None] = {}

    def know(self, path: Path) -> None:
        """Treat the current state of a newly met file as durable."""
        if path not in self.durable:
            self.durable[path] = content(path)

    def force(self, path: Path) -> None:
        self.durable[path] = content(path)

    def force_part(self, path: Path, part: bytes, at: int) -> None:
        """Force one part of a file; other parts stay unforced."""
        old = self.durable[path]
        self.durable[path] = old[:at] + part + old[at + len(part) :]

    def add_name(self, path: Path) -> None:
        """Note a name that no directory was forced for yet."""
        self.new_names[path] = dirname(path)

    def force_directory(self, path: Path) -> None:
        # As text: `Path.parent` would create a path per name, in each of thousands of calls.
        directory = str(path)
        if directory in self.new_names.values():
            self.new_names = {name: above for name, above in self.new_names.items() if above != directory}
        for names in (self.removed, self.replaced):
            for name in [name for name in names if dirname(name) == directory]:
                del names[name]

    def write_back(self) -> None:
        """Let the kernel write some sectors back, as it does at any time."""
        for path, old in list(self.durable.items()):
            if path.exists() and self.chance.random() < 0.5:
                self.durable[path] = self.mixed(old, content(path))

    def mixed(self, old: bytes, new: bytes) -> bytes:
        """Return *new* with some of its sectors replaced by those of *old*."""
        if old == new:
            return new
        old = old.ljust(len(new), b"\0")
        share = self.chance.random()
        random = self.chance.random
        return b"".join(
            [(old if random() < share else new)[at : at + SECTOR_SIZE] for at in range(0, len(new), SECTOR_SIZE)]
        )

    def cut(self) -> None:
        """Cut the power."""
        for path in sorted(self.new_names):
            if path.exists() and self.chance.random() < NAME_LOST:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        for path, old in sorted(self.durable.items()):
            if path.exists():
                path.write_bytes(self.mixed(old, content(path)))
        for path, before in sorted(self.replaced.items()):
            if path.parent.is_dir() and self.chance.random() < 0.5:
                if before is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(before)
        for path, data in sorted(self.removed.items()):
            if path.parent.is_dir() and not path.exists() and self.chance.random() < 0.5:
                path.write_bytes(data)
        self.durable.clear()
        self.new_names.clear()
        self.removed.clear()
        self.replaced.clear()


class ProcessFiles(Files):
    """The file calls of one process.

    Attributes:
        calls_left: calls until the process is killed within one; None: it is not.
        killed: whether it was.
    """

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.calls_left: int | None = None
        self.killed = False
        self.opened: list[Mapping | WrittenFile] = []

    def die(self) -> None:
        """End the process: later calls fail, and its open files are closed."""
        self.killed = True
        for file in list(self.opened):
            file.close()
        self.opened.clear()

    def is_last_call(self) -> bool:
        if self.killed:
            raise Killed
        if self.calls_left is not None:
            self.calls_left -= 1
            self.killed = self.calls_left < 0
        return self.killed

    def step(self) -> None:
        if self.is_last_call():
            raise Killed

    def take_room(self) -> None:
        if self.disk.full:
            self.disk.refusals["no room"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def force(self, path: Path) -> None:
        """Force a file, as this process can."""
        self.step()
        self.refuse_force()
        self.disk.force(path)

    def refuse_force(self) -> None:
        if self.disk.force_error is not None:
            self.disk.refusals["no force"] += 1
            raise OSError(self.disk.force_error, os.strerror(self.disk.force_error))

    def keep(self, file: Opened) -> Opened:
        self.opened.append(file)
        return file

    def create(self, path: Path, size: int, data: bytes = b"") -> None:
        self.take_room()
        if self.is_last_call():
            path.touch()
            self.disk.add_name(path)
            raise Killed
        super().create(path, size, data)
        self.disk.durable[path] = bytes(size)
        self.disk.add_name(path)

    def map(self, path: Path, size: int) -> Mapping:
        self.step()
        self.disk.know(path)
        return self.keep(SimulatedMapping(path, size, self))

    def open(self, path: Path) -> WrittenFile:
        self.step()
        self.disk.know(path)
        return self.keep(SimulatedFile(path, self))

    def make_directory(self, path: Path) -> None:
        self.step()
        if path.is_dir():
            return
        new = [directory for directory in (path, *path.parents) if not directory.exists()]
        super().make_directory(path)
        for directory in new:
            self.disk.add_name(directory)

    def force_directory(self, path: Path) -> None:
        self.step()
        self.disk.force_directory(path)

    def replace(self, path: Path, data: bytes) -> None:
        draft = path.with_name(path.name + ".draft")
        self.take_room()
        if self.is_last_call():
            draft.write_bytes(data[: len(data) // 2])
            raise Killed
        draft.write_bytes(data)
        self.step()
        before = content(path) if path.exists() else None
        os.replace(draft, path)
        self.disk.durable.pop(path, None)
        self.disk.replaced.setdefault(path, before)
        self.force_directory(path.parent)

    def remove(self, path: Path) -> None:
        self.step()
        data = self.disk.durable.pop(path, None)
        if self.disk.new_names.pop(path, None) is None:
            self.disk.removed[path] = content(path) if data is None else data
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self.step()
        super().remove_directory(path)
        self.disk.new_names.pop(path, None)

    def move(self, source: Path, target: Path) -> None:
        self.step()
        source.rename(target)
        self.disk.durable.pop(source, None)
        self.disk.new_names.pop(source, None)
        self.force_directory(target.parent)
        self.force_directory(source.parent)


class SimulatedFile(WrittenFile):
    """A file that is written by position."""

    def __init__(self, path: Path, process: ProcessFiles) -> None:
        super().__init__(path)
        self.path = path
        self.process = process

    def write(self, data: bytes, at: int) -> None:
        if self.process.disk.full:
            os.pwrite(self.descriptor, data[: len(data) // 3], at)
            self.process.take_room()
        if self.process.is_last_call():
            os.pwrite(self.descriptor, data[: len(data) // 2], at)
            raise Killed
        os.pwrite(self.descriptor, data, at)

    def force(self) -> None:
        self.process.force(self.path)

    def close(self) -> None:
        if self in self.process.opened:
            self.process.opened.remove(self)
        super().close()


class SimulatedMapping(Mapping):
    """A mapped file."""

    def __init__(self, path: Path, size: int, process: ProcessFiles) -> None:
        super().__init__(path, size)
        self.process = process

    def reserve(self, at: int, size: int) -> None:
        self.process.take_room()
        self.process.step()

    def populate(self, at: int, size: int) -> None:
        """The pages of tiny files are in memory anyway."""

    def write(self, data: memoryview, at: int) -> None:
        if self.process.is_last_call():
            super().write(data[: len(data) // 2], at)
            raise Killed
        super().write(data, at)

    def write_forced(self, data: bytes, at: int) -> None:
        self.write(memoryview(data), at)
        self.process.step()
        self.process.refuse_force()
        self.process.disk.force_part(self.path, data, at)

    def force(self) -> None:
        self.process.force(self.path)

    def close(self) -> None:
        if self in self.process.opened:
            self.process.opened.remove(self)
        super().close()
