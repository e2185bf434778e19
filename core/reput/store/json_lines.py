"""JsonLines: a small file of JSON objects, one a line, to which lines are only ever added, durably."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from reput.errors import DamagedStore
from reput_hooks.durable_file import named

__all__ = ["DamagedLine", "JsonLines"]

Row = TypeVar("Row", bound=msgspec.Struct)


class DamagedLine(msgspec.Struct, frozen=True):
    """A whole line, *data* without its end, that is no row. Its text names file and line, counted from 1."""

    path: Path
    number: int
    data: bytes
    reason: str

    def __str__(self) -> str:
        return f"a line is not what was written: path={self.path} line={self.number} error={self.reason}"


class JsonLines(Generic[Row]):
    """The lines of *path* as *row_type*. One writer; the file is made by the first line."""

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        self.path = path
        self.decode = msgspec.json.Decoder(row_type).decode

    def read(self) -> Iterator[Row]:
        """Yield all rows. A last line without an end was torn by a crash and was never promised.

        Raises:
            DamagedStore: a whole line is not a row.
        """
        for line in self.read_lines():
            if isinstance(line, DamagedLine):
                raise DamagedStore(
                    str(line), "Restore the file from a copy, or take that line out: what it says is lost."
                )
            yield line

    def read_lines(self) -> Iterator[Row | DamagedLine]:
        """Yield all rows, and lines that are none in their places, for those who can go on without them."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        for number, line in enumerate(data.split(b"\n")[:-1], 1):
            try:
                yield self.decode(line)
            except msgspec.DecodeError as error:
                yield DamagedLine(self.path, number, line, str(error))

    def append(self, row: Row) -> None:
        """Add *row*; when this returns it survives a power cut."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = whole_size(descriptor)
            os.ftruncate(descriptor, size)
            os.pwrite(descriptor, msgspec.json.encode(row) + b"\n", size)
            os.fsync(descriptor)
        except OSError as error:
            raise named(error, self.path) from None
        finally:
            os.close(descriptor)
        if new:
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def whole_size(descriptor: int) -> int:
    """Return how many bytes of the file are whole lines."""
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - 4096)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
