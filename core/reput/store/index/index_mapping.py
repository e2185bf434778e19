"""IndexMapping: one index file, mapped for its one writer while others read it; `index_layout` draws it.

Entries are written first, then the header, then the slots. A reader that follows a slot therefore finds a whole entry,
and a reader that stops at the header's count misses no earlier entry.

The slots follow from the entries: each leads to the newest entry with its hash. Cutting the file back to a number of
entries therefore restores the same bytes, whatever a crash left in the slots.

Source: RocketMQ store, IndexFile.putKey and IndexHeader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from reput.kernel import Kernel
from reput.store.disk.files import Files
from reput.store.index.index_layout import ENTRY, HEADER, SLOT, IndexHeader

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

__all__ = ["IndexKey", "IndexMapping", "index_file_size"]

SLOTS_AT = HEADER.size
assert SLOTS_AT % SLOT.size == 0
SECONDS_MAX = 0x7FFFFFFF
# Space is asked for in steps, so that a full disk is an error of the step and not a fault of a write.
RESERVE_SIZE = 4 << 20
# Entries that are looked at in one go when slots are found again.
CHUNK_COUNT = 1 << 18

# (key_hash, commit_log_offset, store_timestamp)
IndexKey: TypeAlias = tuple[int, int, int]


def index_file_size(slot_count: int, entry_count: int) -> int:
    """Return the bytes of an index file."""
    return SLOTS_AT + SLOT.size * slot_count + ENTRY.size * entry_count


class IndexMapping:
    """Room has to be reserved before anything is put.

    Attributes:
        header: as it is in the file.
    """

    def __init__(self, path: Path, slot_count: int, entry_count: int, files: Files) -> None:
        """Map an existing file of the full size; its space up to the entries it holds is reserved.

        Raises:
            OSError: the disk has no room.
        """
        self.path = path
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.files = files
        self.entries_at = SLOTS_AT + SLOT.size * slot_count
        self.mapping = files.map(path, index_file_size(slot_count, entry_count))
        self.memory = self.mapping.memory
        self.reserved = 0
        try:
            # Before the first look: on tmpfs reading a hole takes a page, and is a fault where there is none.
            self.mapping.reserve(0, self.entries_at)
            self.reserved = self.entries_at
            self.header = IndexHeader(*HEADER.unpack_from(self.memory))
            self.header.index_count = max(self.header.index_count, 1)
            self.reserve(0)
        except BaseException:
            self.mapping.close()
            raise

    @property
    def room(self) -> int:
        """How many entries fit yet. The first one is never used."""
        return max(self.entry_count - self.header.index_count, 0)

    def reserve(self, count: int) -> None:
        """Have room on the disk for *count* further entries.

        Raises:
            OSError: it has none.
        """
        needed = self.entries_at + ENTRY.size * (self.header.index_count + count)
        if needed > self.reserved:
            end = min(needed + RESERVE_SIZE, len(self.memory))
            self.mapping.reserve(self.reserved, end - self.reserved)
            self.reserved = end

    def begin_behind(self, before: IndexHeader) -> None:
        """Take over where the file before ended, as a new file does."""
        if before.end_offset > 0:
            self.header.begin_offset = self.header.end_offset = before.end_offset
        if before.end_timestamp > 0:
            self.header.begin_timestamp = self.header.end_timestamp = before.end_timestamp
        self.write_header()

    def put(self, keys: Sequence[IndexKey]) -> None:
        """Add *keys*, for which there is room, one by one."""
        memory, header, slot_count = self.memory, self.header, self.slot_count
        first = header.index_count
        newest: dict[int, int] = {}
        entries: list[bytes] = []
        for number, (key_hash, commit_log_offset, store_timestamp) in enumerate(keys, first):
            slot_at = SLOTS_AT + SLOT.size * (key_hash % slot_count)
            previous = newest.get(slot_at)
            if previous is None:
                (previous,) = SLOT.unpack_from(memory, slot_at)
                if not 0 < previous < first:
                    previous = 0
            seconds = seconds_between(header.begin_timestamp, store_timestamp)
            if number == 1:
                header.begin_offset, header.begin_timestamp = commit_log_offset, store_timestamp
            header.hash_slot_count += previous == 0
            newest[slot_at] = number
            entries.append(ENTRY.pack(key_hash, commit_log_offset, seconds, previous))
        _, header.end_offset, header.end_timestamp = keys[-1]
        header.index_count = first + len(keys)
        begin = self.entries_at + ENTRY.size * first
        memory[begin : begin + ENTRY.size * len(entries)] = b"".join(entries)
        self.write_header()
        for slot_at, number in newest.items():
            memory[slot_at : slot_at + SLOT.size] = SLOT.pack(number)

    def put_columns(self, hashes: Array, offsets: Array, timestamps: Array) -> None:
        """Add keys, for which there is room, all at once; they come in the order of the log."""
        import numpy as np

        from reput.store.index.index_sizes import ENTRY_DTYPE

        count, header = len(hashes), self.header
        first = header.index_count
        # Slot and place in one word: sorting words is several times as fast as a stable sort of the slots.
        slot_and_place = ((hashes % self.slot_count).astype(np.uint64) << np.uint64(32)) | np.arange(
            count, dtype=np.uint64
        )
        slot_and_place.sort()
        slot = (slot_and_place >> np.uint64(32)).astype(np.intp)
        place = (slot_and_place & np.uint64(0xFFFFFFFF)).astype(np.intp)
        opens = np.ones(count, bool)
        np.not_equal(slot[1:], slot[:-1], out=opens[1:])
        slots = self.slot_array()
        before = slots[slot[opens]].byteswap().view(np.int32)
        before[(before < 0) | (before >= first)] = 0
        previous = np.empty(count, np.int32)
        previous[place[1:]] = place[:-1] + first
        previous[place[opens]] = before
        begin = header.begin_timestamp
        if first == 1:
            header.begin_offset, header.begin_timestamp = int(offsets[0]), int(timestamps[0])
        if header.begin_timestamp > 0:
            seconds = np.clip((timestamps - header.begin_timestamp) // 1000, 0, SECONDS_MAX)
        else:
            seconds = np.zeros(count, np.int64)
        if first == 1:
            # The first entry of a file counts from where the file before ended.
            seconds[0] = seconds_between(begin, int(timestamps[0]))
        entries = np.empty(count, ENTRY_DTYPE)
        entries["key_hash"] = hashes
        entries["commit_log_offset"] = offsets
        entries["seconds"] = seconds
        entries["previous"] = previous
        header.hash_slot_count += int((before == 0).sum())
        header.index_count = first + count
        header.end_offset, header.end_timestamp = int(offsets[-1]), int(timestamps[-1])
        entries_begin = self.entries_at + ENTRY.size * first
        self.memory[entries_begin : entries_begin + ENTRY.size * count] = entries.tobytes()
        self.write_header()
        closes = np.append(opens[1:], True)
        slots[slot[closes]] = (place[closes] + first).astype(np.uint32).byteswap()

    def put_packed(self, kernel: Kernel, keys: bytes, first: int, count: int) -> None:
        """Add *count* of the keys that the kernel has found, for which there is room, from number *first* on."""
        kernel.put_index_keys(self.memory, self.slot_count, self.entry_count, self.header, keys, first, count)

    def write_header(self) -> None:
        """Put the header into the file, where the count stays 0 until there is an entry."""
        *fields, index_count = msgspec.structs.astuple(self.header)
        self.memory[: HEADER.size] = HEADER.pack(*fields, index_count if index_count > 1 else 0)

    def restore(self, header: IndexHeader) -> None:
        """Cut the file back to *header*: zeros behind its entries, and each slot leads to the newest that stays.

        After a power cut any page may be as it was at any time since the last force, so every slot is looked at.
        """
        import numpy as np

        end = header.index_count
        slots = self.slot_array()
        # A slot below the count is as it was when the entries were counted: slots only grow.
        wrong = np.flatnonzero(slots.byteswap() >= end)
        if len(wrong):
            newest = self.newest_entries(end)
            slots[wrong] = newest[wrong].byteswap()
        self.zero_entries(end)
        self.header = msgspec.structs.replace(header)
        self.write_header()

    def ends_as(self, header: IndexHeader) -> bool:
        """Tell whether the last entry of *header* is there, and is of the record that it names."""
        count = header.index_count
        return count == 1 or (count <= self.entry_count and self.offset_at(count - 1) == header.end_offset)

    def is_consistent(self) -> bool:
        """Tell whether the entries are in the order of the log and end as the header says, and the slots fit them."""
        import numpy as np

        count = self.header.index_count
        if not self.ends_as(self.header):
            return False
        before = 0
        for first in range(1, count, CHUNK_COUNT):
            offsets = self.entry_array(first, min(CHUNK_COUNT, count - first))["commit_log_offset"].astype(np.int64)
            if offsets[0] < before or (offsets[1:] < offsets[:-1]).any():
                return False
            before = int(offsets[-1])
        return bool((self.slot_array().byteswap() == self.newest_entries(count)).all())

    def header_below(self, commit_log_offset: int, store_timestamp_of: Callable[[int], int]) -> IndexHeader | None:
        """Return the header that the file had before the record at *commit_log_offset*; None: it had no entry yet."""
        low, high = 1, self.header.index_count
        while low < high:
            middle = (low + high) // 2
            if self.offset_at(middle) < commit_log_offset:
                low = middle + 1
            else:
                high = middle
        if low == 1:
            return None
        if low == self.header.index_count:
            return msgspec.structs.replace(self.header)
        last = self.offset_at(low - 1)
        return msgspec.structs.replace(
            self.header,
            end_offset=last,
            end_timestamp=store_timestamp_of(last),
            hash_slot_count=self.header.hash_slot_count - self.opening_count(low),
            index_count=low,
        )

    def offset_at(self, number: int) -> int:
        """Return the commit-log offset in one entry."""
        _, offset, _, _ = ENTRY.unpack_from(self.memory, self.entries_at + ENTRY.size * number)
        return int(offset)

    def opening_count(self, first: int) -> int:
        """Return how many entries from *first* on were the first of their slot."""
        count = 0
        for number in range(first, self.header.index_count, CHUNK_COUNT):
            entries = self.entry_array(number, min(CHUNK_COUNT, self.header.index_count - number))
            count += int((entries["previous"] == 0).sum())
        return count

    def newest_entries(self, end: int) -> Array:
        """Return for each slot the highest number below *end* of an entry with its hash, 0 without one."""
        import numpy as np

        newest = np.zeros(self.slot_count, np.uint32)
        for first in range(1, end, CHUNK_COUNT):
            entries = self.entry_array(first, min(CHUNK_COUNT, end - first))
            numbers = np.arange(first, first + len(entries), dtype=np.uint32)
            np.maximum.at(newest, entries["key_hash"] % self.slot_count, numbers)
        return newest

    def zero_entries(self, end: int) -> None:
        """Have zeros from entry *end* on."""
        file = self.files.open(self.path)
        try:
            file.zero_behind(self.entries_at + ENTRY.size * end)
        finally:
            file.close()

    def entry_array(self, first: int, count: int) -> Array:
        """Return *count* entries from number *first* on, as they lie in the file."""
        import numpy as np

        from reput.store.index.index_sizes import ENTRY_DTYPE

        return np.frombuffer(self.memory, ENTRY_DTYPE, count, self.entries_at + ENTRY.size * first)

    def slot_array(self) -> Array:
        """Return the slots, as words of the machine: each is read and written as one."""
        import numpy as np

        return np.frombuffer(self.memory, np.uint32, self.slot_count, SLOTS_AT)

    def force(self) -> None:
        """Force the file to disk."""
        self.mapping.force()

    def close(self) -> None:
        """Unmap the file."""
        self.mapping.close()


def seconds_between(begin_timestamp: int, store_timestamp: int) -> int:
    """Return what an entry says of its record's store time."""
    if begin_timestamp <= 0:
        return 0
    return min(max(store_timestamp - begin_timestamp, 0) // 1000, SECONDS_MAX)
