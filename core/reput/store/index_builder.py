"""IndexBuilder: writes which records have which key, into hash index files.

A file is a header, slots and entries, big-endian; entry 0 is never used.

    at                  size  field
     0                     8  begin_timestamp    store time of the first entry's record, ms
     8                     8  end_timestamp      of the last one's
    16                     8  begin_offset       commit-log offset of the first entry's record
    24                     8  end_offset         of the last one's
    32                     4  hash_slot_count    slots in use
    36                     4  index_count        number of the next entry; 0 before the first, which is 1
    40 + 4*s               4  slot s             newest entry whose key_hash mod slots is s, 0: none
    40 + 4*slots + 20*e   20  entry e
                     0     4  key_hash           |Java hashCode of topic#key|
                     4     8  commit_log_offset
                    12     4  seconds            between begin_timestamp and the record's store time
                    16     4  previous           entry of the same slot before this one, 0: none

One writer, others read the mapping meanwhile: an entry is written before the slot that leads to it.

Source: RocketMQ store, IndexFile.putKey, IndexHeader and IndexService.buildIndex.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from reput.filter.string_hash import string_hash
from reput.store.index_file import HEADER, IndexHeader, index_paths, read_header
from reput.store.record import TRANSACTION_ROLLBACK_TYPE
from reput.store.segments import Segments
from reput_hooks import DispatchBatch, RebuildNeeded

__all__ = ["IndexBuilder", "IndexFile", "IndexState"]

HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 40
ENTRY = np.dtype([("key_hash", ">i4"), ("commit_log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY_SIZE = 20
assert ENTRY.itemsize == ENTRY_SIZE
SECONDS_MAX = 0x7FFFFFFF
RESERVE_SIZE = 8 << 20

Array = np.ndarray[Any, Any]


class IndexState(msgspec.Struct, frozen=True):
    """What is durable: the files by name, and the header of the last of them."""

    names: list[str]
    header: IndexHeader


class IndexFile:
    """One file, mapped for writing."""

    def __init__(self, path: Path, slot_count: int, entry_count: int) -> None:
        self.path = path
        self.slot_count = slot_count
        self.entry_count = entry_count
        size = HEADER_SIZE + 4 * slot_count + ENTRY_SIZE * entry_count
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self.descriptor).st_size < size:
            os.ftruncate(self.descriptor, size)
        self.mapped = mmap.mmap(self.descriptor, size)
        self.memory = memoryview(self.mapped)
        self.slots: Array = np.frombuffer(self.mapped, ">i4", slot_count, HEADER_SIZE)
        self.entries: Array = np.frombuffer(self.mapped, ENTRY, entry_count, HEADER_SIZE + 4 * slot_count)
        self.header = IndexHeader(*HEADER.unpack_from(self.mapped))
        self.header.index_count = max(self.header.index_count, 1)
        # Room for the slots: a full disk is to be an error here, and no fault when one is written.
        os.posix_fallocate(self.descriptor, 0, HEADER_SIZE + 4 * slot_count)
        self.reserved = HEADER_SIZE + 4 * slot_count

    @property
    def full(self) -> bool:
        """Whether no entry fits any more."""
        return self.header.index_count >= self.entry_count

    def put(self, hashes: Array, offsets: Array, timestamps: Array) -> int:
        """Add entries in their order until the file is full; return how many were taken."""
        header = self.header
        first = header.index_count
        count = min(len(hashes), self.entry_count - first)
        if count <= 0:
            return 0
        self.reserve(HEADER_SIZE + 4 * self.slot_count + ENTRY_SIZE * (first + count))
        hashes, offsets, timestamps = hashes[:count], offsets[:count], timestamps[:count]
        slot = hashes % self.slot_count
        order = np.argsort(slot, kind="stable")
        ordered = slot[order]
        opens = np.empty(count, bool)
        opens[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=opens[1:])
        old = self.slots[ordered[opens]].astype(np.int64)
        old[(old < 0) | (old > first)] = 0
        previous = np.empty(count, np.int64)
        previous[order[1:]] = order[:-1] + first
        previous[order[opens]] = old
        entries = np.empty(count, ENTRY)
        entries["key_hash"] = hashes
        entries["commit_log_offset"] = offsets
        entries["seconds"] = self.seconds(timestamps, first)
        entries["previous"] = previous
        self.entries[first : first + count] = entries
        closes = np.append(opens[1:], True)
        self.slots[ordered[closes]] = order[closes] + first
        if first <= 1:
            header.begin_offset = int(offsets[0])
            header.begin_timestamp = int(timestamps[0])
        header.hash_slot_count += int((old == 0).sum())
        header.index_count = first + count
        header.end_offset = int(offsets[-1])
        header.end_timestamp = int(timestamps[-1])
        self.write_header()
        return count

    def seconds(self, timestamps: Array, first: int) -> Array:
        """Return the time differences. The first entry of a rotated file counts from the end of the file before."""
        begin = self.header.begin_timestamp
        base = int(timestamps[0]) if first <= 1 else begin
        seconds = (timestamps - base) // 1000 if base > 0 else np.zeros(len(timestamps), np.int64)
        if first <= 1:
            seconds[0] = (int(timestamps[0]) - begin) // 1000 if begin > 0 else 0
        return np.clip(seconds, 0, SECONDS_MAX)

    def write_header(self) -> None:
        """Put the header into the file."""
        self.memory[:HEADER_SIZE] = HEADER.pack(*msgspec.structs.astuple(self.header))

    def reserve(self, until: int) -> None:
        """Reserve room on the disk in steps."""
        if until > self.reserved:
            end = min(max(until, self.reserved + RESERVE_SIZE), len(self.memory))
            os.posix_fallocate(self.descriptor, self.reserved, end - self.reserved)
            self.reserved = end

    def cut(self, header: IndexHeader) -> None:
        """Go back to *header*: the entries from its count on are zeroed, and no slot leads to one.

        What the disk has of them after a power cut may be any part, so all slots are looked at.
        """
        first = header.index_count
        beyond = np.flatnonzero(self.slots >= first)
        if len(beyond):
            # The newest entry of each slot among those that stay; of equal places the last assignment holds.
            newest = np.zeros(self.slot_count, ">i4")
            newest[self.entries["key_hash"][1:first] % self.slot_count] = np.arange(1, first)
            self.slots[beyond] = newest[beyond]
        used = self.used_entries(first)
        if used > first:
            self.entries[first:used] = np.zeros(used - first, ENTRY)
        self.header = msgspec.structs.replace(header)
        self.write_header()

    def used_entries(self, first: int) -> int:
        """Return behind which entry the file has nothing but zeros, at least *first*."""
        at = HEADER_SIZE + 4 * self.slot_count + ENTRY_SIZE * first
        end = at
        while True:
            try:
                at = os.lseek(self.descriptor, at, os.SEEK_DATA)
            except OSError:
                break
            data = os.pread(self.descriptor, 1 << 20, at)
            if not data:
                break
            used = len(data.rstrip(b"\0"))
            if used:
                end = at + used
            at += len(data)
        return min(-(-(end - HEADER_SIZE - 4 * self.slot_count) // ENTRY_SIZE), self.entry_count)

    def force(self) -> None:
        """Force the file to disk."""
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Unmap the file."""
        del self.slots, self.entries
        self.memory.release()
        self.mapped.close()
        os.close(self.descriptor)


class IndexBuilder:
    """All index files of a store, of which the last is written."""

    def __init__(self, directory: Path, slot_count: int, entry_count: int) -> None:
        self.directory = directory
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.last: IndexFile | None = None
        self.unforced: list[IndexFile] = []
        self.queue_bases = QueueBases()

    def names(self) -> list[str]:
        """Return the names of the files, oldest first."""
        return [path.name for path in index_paths(self.directory)]

    def open_last(self) -> None:
        """Go on in the newest file."""
        names = self.names()
        if names:
            self.last = IndexFile(self.directory / names[-1], self.slot_count, self.entry_count)
            self.unforced = [self.last]

    def cut(self, state: IndexState) -> None:
        """Go back to *state*: what was written after it comes again.

        Raises:
            RebuildNeeded: a file of it is gone.
        """
        names = self.names()
        if state.names and state.names[-1] not in names:
            raise RebuildNeeded(f"index file is missing: name={state.names[-1]}")
        for name in names:
            if not state.names or name > state.names[-1]:
                (self.directory / name).unlink()
        if state.names:
            self.open_last()
            assert self.last is not None
            self.last.cut(state.header)

    def clear(self) -> None:
        """Remove all files."""
        self.close()
        for name in self.names():
            (self.directory / name).unlink()

    def adopt(self, segments: Segments) -> int:
        """Take over files that a RocketMQ closed; return where the last indexed record ends, 0 without one."""
        self.open_last()
        if self.last is None or self.last.header.index_count <= 1:
            return 0
        offset = self.last.header.end_offset
        return offset + int.from_bytes(segments.read(offset, 4), "big")

    def truncate(self, commit_log_offset: int) -> None:
        """Forget all entries of records at or behind *commit_log_offset*."""
        while self.last is not None:
            count = self.last.header.index_count
            offsets = self.last.entries["commit_log_offset"][1:count]
            kept = int(np.searchsorted(offsets, commit_log_offset, "left"))
            if kept == count - 1:
                return
            if kept == 0:
                path = self.last.path
                self.last.close()
                path.unlink()
                self.last = None
                self.unforced = []
                self.open_last()
                continue
            self.last.cut(self.header_of(self.last, kept))

    def header_of(self, file: IndexFile, kept: int) -> IndexHeader:
        """Return the header that *file* had with its first *kept* entries.

        The end's store time is known to the second only; nothing is decided by less.
        """
        entry = file.entries[kept]
        slots = file.entries["key_hash"][1 : kept + 1] % file.slot_count
        begin = file.header.begin_timestamp
        return IndexHeader(
            begin,
            begin + int(entry["seconds"]) * 1000 if kept > 1 else begin,
            file.header.begin_offset,
            int(entry["commit_log_offset"]),
            len(np.unique(slots)),
            kept + 1,
        )

    def expire(self, commit_log_offset_min: int) -> None:
        """Remove leading files whose records all lie below *commit_log_offset_min*; never the last.

        Source: RocketMQ store, IndexService.deleteExpiredFile.
        """
        for name in self.names()[:-1]:
            path = self.directory / name
            if read_header(path).end_offset >= commit_log_offset_min:
                return
            path.unlink()

    def close(self) -> None:
        """Unmap the files."""
        for file in self.unforced:
            file.close()
        self.unforced = []
        self.last = None

    def dispatch(self, batch: DispatchBatch) -> None:
        """Add the keys of all records of *batch*."""
        rows, queues, texts = batch.columns()
        done = self.last.header.end_offset if self.last is not None and self.last.header.index_count > 1 else -1
        row, hashes = key_hashes(rows, queues, texts, self.queue_bases)
        wanted = (rows["sys_flag"][row] & TRANSACTION_ROLLBACK_TYPE) != TRANSACTION_ROLLBACK_TYPE
        wanted &= rows["commit_log_offset"][row] > done
        if not wanted.all():
            row, hashes = row[wanted], hashes[wanted]
        offsets, timestamps = rows["commit_log_offset"][row], rows["store_timestamp"][row]
        at = 0
        while at < len(hashes):
            file = self.last
            if file is None or file.full:
                file = self.rotate()
            at += file.put(hashes[at:], offsets[at:], timestamps[at:])

    def rotate(self) -> IndexFile:
        """Begin the next file."""
        before = self.last
        self.directory.mkdir(parents=True, exist_ok=True)
        file = IndexFile(self.new_path(), self.slot_count, self.entry_count)
        if before is not None and before.header.end_offset > 0:
            file.header.begin_offset = file.header.end_offset = before.header.end_offset
            file.header.begin_timestamp = file.header.end_timestamp = before.header.end_timestamp
            file.write_header()
        self.last = file
        self.unforced.append(file)
        return file

    def new_path(self) -> Path:
        """Return a path named by the local time, behind all names there are."""
        names = self.names()
        now = time.time_ns() // 1_000_000
        while True:
            local = time.localtime(now // 1000)
            name = time.strftime("%Y%m%d%H%M%S", local) + f"{now % 1000:03d}"
            if not names or name > names[-1]:
                return self.directory / name
            # The clock went back, or two files in a millisecond: names order the files, so take the next free one.
            return self.directory / str(int(names[-1]) + 1)

    def flush(self) -> IndexState:
        """Force all files to disk and return what is durable now."""
        for file in self.unforced:
            file.force()
            if file is not self.last:
                file.close()
        self.unforced = [self.last] if self.last is not None else []
        header = self.last.header if self.last is not None else IndexHeader()
        return IndexState(self.names(), msgspec.structs.replace(header))


class QueueBases(dict[str, int]):
    """Hash of ``topic#``, by topic."""

    def __missing__(self, topic: str) -> int:
        base = self[topic] = string_hash(topic + "#") & 0xFFFFFFFF
        return base


def key_hashes(rows: Array, queues: list[tuple[str, int]], texts: bytes, bases: QueueBases) -> tuple[Array, Array]:
    """Return for each key of each record, in order, the number of its row and its hash as the index has it.

    The keys of a record are its unique key and then the non-empty parts of its KEYS, which single spaces separate.
    """
    ends = np.cumsum(rows["texts_size"].astype(np.int64))
    begins = ends - rows["texts_size"]
    uniq_size = np.maximum(rows["uniq_key_size"].astype(np.int64), 0)
    keys_size = np.maximum(rows["keys_size"].astype(np.int64), 0)
    data = np.frombuffer(texts, np.uint8)
    with_keys = keys_size > 0
    keys_begin = (begins + uniq_size)[with_keys]
    keys_end = keys_begin + keys_size[with_keys]
    spaces = np.flatnonzero(data == 32)
    if len(spaces) and len(keys_begin):
        owner = np.searchsorted(keys_begin, spaces, "right") - 1
        spaces = spaces[(owner >= 0) & (spaces < keys_end[np.maximum(owner, 0)])]
        part_begin = np.sort(np.concatenate((keys_begin, spaces + 1)))
        part_end = np.sort(np.concatenate((keys_end, spaces)))
    else:
        part_begin, part_end = keys_begin, keys_end
    with_uniq = uniq_size > 0
    begin = np.concatenate((begins[with_uniq], part_begin))
    size = np.concatenate((uniq_size[with_uniq], part_end - part_begin))
    kept = size > 0
    begin, size = begin[kept], size[kept]
    order = np.argsort(begin, kind="stable")
    begin, size = begin[order], size[order]
    row = np.searchsorted(ends, begin, "right")
    piece, unit_count = java_hashes(texts, data, begin, size)
    base = np.array([bases[topic] for topic, _ in queues], np.uint32)[rows["queue_index"][row]]
    code = base * powers_of_31(unit_count) + piece
    signed = code.view(np.int32).astype(np.int64)
    hashes = np.abs(signed)
    hashes[hashes > SECONDS_MAX] = 0
    return row, hashes


def powers_of_31(sizes: Array) -> Array:
    """Return 31 to the power of each size, modulo 2**32."""
    longest = int(sizes.max()) if len(sizes) else 0
    powers = np.empty(longest + 1, np.uint32)
    powers[0] = 1
    powers[1:] = np.cumprod(np.full(longest, 31, np.uint32), dtype=np.uint32)
    return powers[sizes]


def java_hashes(texts: bytes, data: Array, begin: Array, size: Array) -> tuple[Array, Array]:
    """Return Java's String.hashCode of each piece of *texts*, as unsigned 32 bits, and its count of UTF-16 units.

    By Horner's rule, a column of characters at a time; the longest pieces come first, so that each column is a slice.
    """
    count = len(begin)
    order = np.argsort(-size, kind="stable")
    at, length = begin[order], size[order]
    code = np.zeros(count, np.uint32)
    longest = int(length[0]) if count else 0
    taller = np.searchsorted(-length, -np.arange(longest), "left")
    for column, live in enumerate(taller.tolist()):
        code[:live] = code[:live] * np.uint32(31) + data[at[:live] + column]
    result = np.empty(count, np.uint32)
    result[order] = code
    unit_count = size
    if not texts.isascii():
        unit_count = size.copy()
        for number in np.flatnonzero(size > 0).tolist():
            part = texts[begin[number] : begin[number] + size[number]]
            if not part.isascii():
                key = part.decode("utf-8", "replace")
                result[number] = string_hash(key) & 0xFFFFFFFF
                unit_count[number] = len(key.encode("utf-16-le")) // 2
    return result, unit_count
