"""How many slots and entries the index files of a store have. No field says so, but the bytes show it.

    size = 40 + 4 * slots + 20 * entries      one equation for two numbers
    header: index_count, end_offset           so the last entry is number index_count - 1, and names end_offset
    slot[key_hash mod slots] leads to it

Each place that could hold an entry with the header's end_offset implies a number of slots. The number is right if most
of the slots and chains that follow from it are in order; with a wrong one hardly any is.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reput.store.index.index_layout import ENTRY, HEADER, SLOT

__all__ = [
    "ENTRY_DTYPE",
    "SLOT_DTYPE",
    "IndexSizes",
    "find_common_sizes",
    "find_index_sizes",
    "is_head_of",
    "read_entries",
]

Array = np.ndarray[Any, Any]
SLOT_DTYPE = np.dtype(">i4")
ENTRY_DTYPE = np.dtype([("key_hash", ">i4"), ("commit_log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert SLOT_DTYPE.itemsize == SLOT.size
assert ENTRY_DTYPE.itemsize == ENTRY.size
ENTRIES_TRIED = 1000
READ_MAX = 1 << 16


class IndexSizes(NamedTuple):
    """Slots and entries of an index file; entry 0 is never used."""

    slot_count: int
    entry_count: int

    @property
    def file_size(self) -> int:
        """Bytes of the file."""
        return self.entries_at + ENTRY.size * self.entry_count

    @property
    def entries_at(self) -> int:
        """Where entry 0 begins, in bytes."""
        return HEADER.size + SLOT.size * self.slot_count


def find_index_sizes(path: Path, configured: IndexSizes) -> IndexSizes | None:
    """Return the sizes of the file at *path*: those *configured* if they fit, else those that its bytes show.

    None if they show none, as in a file without entries.
    """
    return configured if path.stat().st_size == configured.file_size else shown_sizes(path)


def find_common_sizes(paths: Sequence[Path], configured: IndexSizes) -> IndexSizes | None:
    """Return the sizes of the index files of one store, found in whichever shows them; None if none does."""
    if any(path.stat().st_size == configured.file_size for path in paths):
        return configured
    shown = next((sizes for path in paths if (sizes := shown_sizes(path)) is not None), None)
    if shown is None and any(is_head_of(path, configured) for path in paths):
        return configured
    return shown


def is_head_of(path: Path, sizes: IndexSizes) -> bool:
    """Tell whether the file at *path* was cut short, and begins like a file of these *sizes*."""
    size = path.stat().st_size
    if not sizes.entries_at + 2 * ENTRY.size <= size < sizes.file_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as memory:
        *_, index_count = HEADER.unpack_from(memory)
        there = min(index_count, (size - sizes.entries_at) // ENTRY.size)
        return there > 1 and share_in_order(memory, sizes, there, index_count) > 0.5


def shown_sizes(path: Path) -> IndexSizes | None:
    """Return the sizes that the bytes of one file show."""
    size = path.stat().st_size
    if size < HEADER.size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as memory:
        *_, end_offset, _, index_count = HEADER.unpack_from(memory)
        if index_count <= 1:
            return None
        for place in places_of(file.fileno(), memory, end_offset):
            slots_size = place - HEADER.size - ENTRY.size * (index_count - 1)
            entries_size = size - HEADER.size - slots_size
            if slots_size <= 0 or entries_size < ENTRY.size * index_count or entries_size % ENTRY.size:
                continue
            sizes = IndexSizes(slots_size // SLOT.size, entries_size // ENTRY.size)
            if share_in_order(memory, sizes, index_count, index_count) > 0.5:
                return sizes
    return None


def places_of(descriptor: int, memory: mmap.mmap, end_offset: int) -> Iterator[int]:
    """Yield where an entry with this commit-log offset could begin. Skips holes."""
    high, low = end_offset >> 32, end_offset & 0xFFFFFFFF
    at = HEADER.size
    while True:
        try:
            begin = max(os.lseek(descriptor, at, os.SEEK_DATA), HEADER.size)
            at = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError:
            # ENXIO: only a hole up to the end.
            return
        begin -= begin % SLOT.size
        count = (min(at + ENTRY.size, len(memory)) - begin) // SLOT.size
        words = np.frombuffer(memory, ">u4", count, begin).copy()
        named = (words[1:-1] == high) & (words[2:] == low)
        # A hash of zero is possible, but one in two thousand million.
        for number in np.flatnonzero(named & (words[:-2] > 0)).tolist():
            yield begin + SLOT.size * number


def share_in_order(memory: mmap.mmap, sizes: IndexSizes, there: int, index_count: int) -> float:
    """Return how many of the newest entries, of one, are where slots and chains of these sizes lead.

    *there*: the number behind the last entry that the bytes hold; *index_count*: the same by the header.
    """
    slots: Array = np.frombuffer(memory, SLOT_DTYPE, sizes.slot_count, HEADER.size)
    entries: Array = np.frombuffer(memory, ENTRY_DTYPE, there, sizes.entries_at)
    numbers = np.arange(max(1, there - ENTRIES_TRIED), there)
    hashes, previous = entries["key_hash"][numbers].astype(np.int64), entries["previous"][numbers].astype(np.int64)
    slot_of = hashes % sizes.slot_count
    heads = slots[slot_of].astype(np.int64)
    right = (hashes >= 0) & (previous >= 0) & (previous < numbers) & (heads >= numbers) & (heads < index_count)
    linked = np.flatnonzero(right & (previous > 0))
    of_previous = entries["key_hash"][previous[linked]].astype(np.int64) % sizes.slot_count
    right[linked] = of_previous == slot_of[linked]
    return float(right.mean())


def read_entries(path: Path, sizes: IndexSizes) -> Iterator[tuple[int, Array]]:
    """Yield (number of the first, entries) of the file at *path*, all entries in order, a bounded number at a time.

    For a file that was cut short, only the whole ones.
    """
    size = path.stat().st_size
    if size < sizes.entries_at:
        return
    with path.open("rb", buffering=0) as file:
        *_, index_count = HEADER.unpack(file.read(HEADER.size))
        end = min(index_count, sizes.entry_count, (size - sizes.entries_at) // ENTRY.size)
        for first in range(1, end, READ_MAX):
            file.seek(sizes.entries_at + ENTRY.size * first)
            yield first, np.frombuffer(file.read(ENTRY.size * min(READ_MAX, end - first)), ENTRY_DTYPE)
