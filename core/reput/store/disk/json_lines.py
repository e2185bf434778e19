"""JsonLines: a small file of JSON objects, one per line. Lines are only appended, durably.

    {"topic":"orders","crc32c":"1A2B3C4D"}

The checksum covers the line without the checksum, so that each line stays JSON. Lines of versions without checksums are
accepted. If a line's checksum is damaged, the rest of it parses as an unknown field of the row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from reput.errors import DamagedStore
from reput.store.disk.sealed_file import crc32c
from reput_hooks.durable_file import named

__all__ = ["DamagedLine", "JsonLines", "seal_line"]

# The end of a line with a checksum; without the checksum it ends in "}".
SEAL = re.compile(rb',"crc32c":"([0-9A-F]{8})"}')

Row = TypeVar("Row", bound=msgspec.Struct)


class DamagedLine(msgspec.Struct, frozen=True):
    """A line, *data* without its end, that is no row. Its text names file and line, counted from 1."""

    path: Path
    number: int
    data: bytes
    reason: str

    def __str__(self) -> str:
        return f"a line is not what was written: path={self.path} line={self.number} error={self.reason}"


def seal_line(row: msgspec.Struct) -> bytes:
    """Return the line of *row*, with its checksum and its end."""
    data = msgspec.json.encode(row)
    return b'%b,"crc32c":"%08X"}\n' % (data[:-1], crc32c()(data))


def is_torn(tail: bytes) -> bool:
    """Tell whether a crash tore a last line that has no line end. If bytes follow its checksum, it did not: the line
    was whole, and something has changed its end since."""
    found = SEAL.search(tail)
    return found is None or found.end() == len(tail)


class JsonLines(Generic[Row]):
    """The lines of *path* as *row_type*. One writer; the file is made by the first line."""

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        """*row_type* forbids unknown fields."""
        assert row_type.__struct_config__.forbid_unknown_fields
        self.path = path
        self.decode = msgspec.json.Decoder(row_type).decode

    def read(self) -> Iterator[Row]:
        """Yield all rows. A last line without an end was torn by a crash and was never promised.

        Raises:
            DamagedStore: a line is not what was written.
        """
        for line in self.read_lines():
            if isinstance(line, DamagedLine):
                raise DamagedStore(
                    str(line), "Restore the file from a copy, or remove that line, which loses its content."
                )
            yield line

    def read_lines(self) -> Iterator[Row | DamagedLine]:
        """Yield all rows, and a `DamagedLine` in place of each line that is not a row."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        *lines, tail = data.split(b"\n")
        if not is_torn(tail):
            lines.append(tail)
        for number, line in enumerate(lines, 1):
            try:
                yield self.row_of(line)
            except (msgspec.DecodeError, ValueError) as error:
                yield DamagedLine(self.path, number, line, str(error))

    def row_of(self, line: bytes) -> Row:
        """Return the row of one line.

        Raises:
            ValueError: it is not a row, or its checksum is wrong.
        """
        found = SEAL.search(line)
        if found is None or found.end() != len(line):
            return self.decode(line)
        data = line[: found.start()] + b"}"
        if crc32c()(data) != int(found[1], 16):
            raise ValueError("the line has a wrong checksum")
        return self.decode(data)

    def append(self, row: Row) -> None:
        """Add *row*; when this returns it survives a power cut."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = whole_size(descriptor)
            tail = os.pread(descriptor, os.fstat(descriptor).st_size - size, size)
            if is_torn(tail):
                os.ftruncate(descriptor, size)
                tail = b""
            # A line that has lost its end stays in place and is reported.
            os.pwrite(descriptor, (tail and b"\n") + seal_line(row), size + len(tail))
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
