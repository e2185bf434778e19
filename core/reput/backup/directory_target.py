"""DirectoryTarget: backups in a directory, each object a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from reput.backup.layout import IDENTITY
from reput.backup.target import CHUNK_SIZE, Bytes, ObjectWriter
from reput.errors import StoreError
from reput.store.disk.files import Files

__all__ = ["DirectoryTarget"]

DRAFT = ".draft"
WRITE_BACK_SIZE = 16 << 20


class DirectoryTarget:
    """A target in a directory, which the first backup makes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = str(directory)
        self.files = Files()
        self.unforced: set[Path] = set()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"another backup works on this target: target={self.address}",
                    "Let it end; `reput backup --follow` works on it as long as it runs.",
                ) from None
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        descriptor = self.locked_identity(os.O_RDONLY, fcntl.LOCK_SH)
        try:
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @contextlib.contextmanager
    def removing(self) -> Iterator[bool]:
        try:
            descriptor = self.locked_identity(os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def locked_identity(self, mode: int, operation: int) -> int | None:
        """Return the open file by which readers and removals exclude each other; None: there are no backups."""
        try:
            descriptor = os.open(self.directory / IDENTITY, mode | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, operation)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def lies_in(self, directory: Path) -> bool:
        return directory.resolve() in self.directory.resolve().parents

    def is_empty(self) -> bool:
        # A killed first backup may leave the draft of its first file.
        return not self.directory.exists() or all(
            path.name == f"{IDENTITY}{DRAFT}" for path in self.directory.iterdir()
        )

    def names(self, folder: str) -> list[str]:
        try:
            found = sorted(os.listdir(self.directory / folder))
        except FileNotFoundError:
            return []
        return [f"{folder}/{name}" for name in found if not name.endswith(DRAFT)]

    def read(self, name: str) -> bytes | None:
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def chunks(self, name: str) -> Iterator[Bytes] | None:
        try:
            descriptor = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return file_chunks(descriptor)

    def begin(self, name: str) -> ObjectWriter:
        return FileWriter(self, self.directory / name)

    def create(self, name: str, data: bytes) -> bool:
        path = self.directory / name
        if path.exists():
            return False
        # What a manifest names is on disk before the manifest is there.
        self.force_names()
        writer = FileWriter(self, path)
        try:
            writer.write(data)
            writer.commit()
        except BaseException:
            writer.abort()
            raise
        self.force_names()
        return True

    def force_names(self) -> None:
        """Force the names of all objects to disk that were made since the last call."""
        for folder in sorted(self.unforced):
            self.files.force_directory(folder)
        self.unforced.clear()

    def remove_unused(self, folder: str, used: Collection[str]) -> int:
        removed = 0
        path = self.directory / folder
        for name in os.listdir(path) if path.is_dir() else ():
            # The lock is ours, so a draft belongs to a backup that was killed.
            if f"{folder}/{name}" not in used:
                (path / name).unlink()
                removed += 1
        return removed

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)


class FileWriter:
    """A file in the making, under the name of a draft."""

    def __init__(self, target: DirectoryTarget, path: Path) -> None:
        self.target = target
        self.path = path
        self.draft = path.with_name(path.name + DRAFT)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            target.files.force_directory(path.parent.parent)
        os.close(os.open(self.draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        self.file = target.files.open(self.draft)
        self.closed = False
        self.size = self.unwritten = 0

    def write(self, data: Bytes) -> None:
        self.file.write(data, self.size)
        self.size += len(data)
        self.unwritten += len(data)
        if self.unwritten >= WRITE_BACK_SIZE:
            # The disk works while the next records are verified.
            self.file.begin_force()
            self.unwritten = 0

    def commit(self) -> None:
        self.file.force()
        self.close()
        self.draft.rename(self.path)
        self.target.unforced.add(self.path.parent)

    def abort(self) -> None:
        self.close()
        self.draft.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file, once."""
        if not self.closed:
            self.closed = True
            self.file.close()


def file_chunks(descriptor: int) -> Iterator[Bytes]:
    """Yield what an open file holds, and close it."""
    try:
        while data := os.read(descriptor, CHUNK_SIZE):
            yield data
    finally:
        os.close(descriptor)
