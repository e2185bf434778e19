"""ConsumeQueueExtFiles: the ext files of one (topic, queue id), as their one writer sees them.

Units are stored one behind the other. A unit that does not fit with four bytes to spare begins the next file, and a
size of -1 takes its place in this one. As with queue files, zeros follow the last unit.

Source: RocketMQ store, ConsumeQueueExt.put.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.errors import DamagedStore
from reput.store.disk.file_name import file_name
from reput.store.disk.file_runs import removal_order
from reput.store.disk.files import Files, WrittenFile
from reput.store.ext.consume_queue_ext import (
    END_BLANK_SIZE,
    OFFSET_MAX,
    UNIT_SIZE_MAX,
    ExtUnit,
    encode_unit,
    to_address,
)
from reput.store.queue.consume_queue_files import queue_file_begins, require_full_size

__all__ = ["ConsumeQueueExtFiles", "ExtEnd"]

END_BLANK = (-1).to_bytes(2, "big", signed=True)


class ExtEnd(msgspec.Struct, frozen=True, array_like=True):
    """How far the ext files of a queue reach: offsets of the first file's first byte, and behind the last unit."""

    begin: int
    end: int


class ConsumeQueueExtFiles:
    """`put` takes in units and `write` writes them; until then `forget` takes them back.

    Attributes:
        begin, end: as of `ExtEnd`, with what was taken in.
        dirty: begins of the files that were written since they were last forced.
    """

    def __init__(self, directory: Path, file_size: int, files: Files, known: ExtEnd | None = None) -> None:
        self.directory = directory
        self.file_size = file_size
        self.files = files
        self.begin = known.begin if known else 0
        self.end = known.end if known else 0
        self.written_end = self.end
        # (offset, bytes) of the units taken in.
        self.pending: list[tuple[int, bytes]] = []
        self.dirty: set[int] = set()

    def known(self) -> ExtEnd:
        """Return how far the written units reach."""
        return ExtEnd(self.begin, self.written_end)

    def put(self, unit: ExtUnit) -> int | None:
        """Take in a unit and return its address; None: it is too large for any file, and is left out."""
        data = encode_unit(unit)
        if len(data) > min(UNIT_SIZE_MAX, self.file_size - END_BLANK_SIZE):
            return None
        left = self.file_size - self.end % self.file_size
        if len(data) > left - END_BLANK_SIZE:
            self.pending.append((self.end, END_BLANK))
            self.end += left
        if self.end + len(data) > OFFSET_MAX:
            return None
        address = to_address(self.end)
        self.pending.append((self.end, data))
        self.end += len(data)
        return address

    def write(self) -> bool:
        """Write the units taken in; return whether this created a file.

        Raises:
            OSError: none of them counts; the written part lies behind the end, and the next write overwrites it.
        """
        made = False
        file: WrittenFile | None = None
        file_begin = -1
        try:
            for at, data in joined(self.pending, self.file_size):
                begin = at - at % self.file_size
                if begin != file_begin:
                    if file is not None:
                        file.close()
                        file = None
                    if at == begin:
                        self.make_file(begin)
                        made = True
                    file = self.files.open(self.directory / file_name(begin))
                    file_begin = begin
                assert file is not None
                file.write(data, at - begin)
                self.dirty.add(begin)
        finally:
            if file is not None:
                file.close()
        self.pending.clear()
        self.written_end = self.end
        return made

    def forget(self) -> None:
        """Take back what was not written."""
        self.pending.clear()
        self.end = self.written_end

    def make_file(self, begin: int) -> None:
        """Create the file that begins at *begin*; replace one that a failed write has left."""
        self.files.make_directory(self.directory)
        path = self.directory / file_name(begin)
        if path.exists():
            self.files.remove(path)
        self.files.create(path, self.file_size)

    def restore(self, known: ExtEnd) -> None:
        """Bring the files to *known*: remove those before and behind, and have zeros behind the last unit.

        Raises:
            DamagedStore: a file is missing.
        """
        begins = queue_file_begins(self.directory)
        wanted = range(known.begin, known.end, self.file_size)
        if not set(begins).issuperset(wanted):
            raise DamagedStore(f"consume queue ext lacks a file: directory={self.directory} end={known.end}")
        require_full_size(self.directory, wanted, self.file_size)
        for begin in removal_order(begins, wanted):
            self.files.remove(self.directory / file_name(begin))
        if wanted:
            file = self.files.open(self.directory / file_name(wanted[-1]))
            try:
                if file.zero_behind(known.end - wanted[-1]):
                    self.dirty.add(wanted[-1])
            finally:
                file.close()


def joined(pieces: list[tuple[int, bytes]], file_size: int) -> list[tuple[int, bytes]]:
    """Join pieces that lie one behind the other in the same file."""
    runs: list[tuple[int, list[bytes]]] = []
    end = -1
    for at, data in pieces:
        if runs and at == end and at % file_size:
            runs[-1][1].append(data)
        else:
            runs.append((at, [data]))
        end = at + len(data)
    return [(at, b"".join(parts)) for at, parts in runs]
