"""Index: which records have which key, as readers see it.

A file is a header, slots and entries, big-endian; entry 0 is never used. Its name is the local time of its making.

    at                  size  field
     0                     8  begin_timestamp    store time of the first entry's record, ms
     8                     8  end_timestamp      of the last one's
    16                     8  begin_offset       commit-log offset of the first entry's record
    24                     8  end_offset         of the last one's
    32                     4  hash_slot_count    slots in use
    36                     4  index_count        number of the next entry; 0 before the first, which is 1
    40 + 4*s               4  slot s             newest entry whose key_hash mod slots is s, 0: none
    40 + 4*slots + 20*e   20  entry e
                     0     4  key_hash           |Java hashCode of topic#key, or of topic#T#tags|
                     4     8  commit_log_offset
                    12     4  seconds            between begin_timestamp and the record's store time
                    16     4  previous           entry of the same slot before this one, 0: none

Only the hash of a key stands in the index, so whoever asks compares the keys of the records that it names. From 5.4.0
on RocketMQ also enters the tags of each record, as one text.

Source: RocketMQ store, IndexHeader, IndexFile.putKey, IndexFile.selectPhyOffset and IndexService.queryOffset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct

import msgspec

from reput.errors import DamagedStore
from reput.filter.string_hash import string_hash
from reput.store.open_files import DirectoryStamp, OpenFiles

__all__ = [
    "ENTRY",
    "HEADER",
    "SLOT",
    "TAGS_TYPE",
    "FoundOffsets",
    "Index",
    "IndexHeader",
    "index_paths",
    "key_hash",
    "read_header",
    "read_headers",
    "tags_hash",
]

HEADER = Struct(">qqqqii")
# What tells tags from a key of the same text: MessageConst.INDEX_TAG_TYPE.
TAGS_TYPE = "T"
SLOT = Struct(">i")
ENTRY = Struct(">iqii")
assert HEADER.size == 40
assert ENTRY.size == 20


class IndexHeader(msgspec.Struct):
    """The header's fields. Of a file without entries *index_count* is 1: the number of the first."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1


class FoundOffsets:
    """What a query found: *offsets* newest first, and how far the newest file of the index goes."""

    __slots__ = ("last_update_offset", "last_update_timestamp", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.last_update_timestamp = 0
        self.last_update_offset = 0


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which a key of a topic stands in the index."""
    code = abs(string_hash(f"{topic}#{key}"))
    return code if code <= 0x7FFFFFFF else 0


def tags_hash(topic: str, tags: str) -> int:
    """Return the hash under which the tags of a record stand in an index that has tags."""
    return key_hash(topic, f"{TAGS_TYPE}#{tags}")


class Index:
    """All index files of a store."""

    def __init__(self, directory: Path, slot_count: int, entry_count: int, files: OpenFiles) -> None:
        """*slot_count* and *entry_count* as configured; files that show others are read by those."""
        self.directory = directory
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.files = files
        self.stamp = DirectoryStamp(directory)
        self.listed: list[tuple[str, int | None]] = []
        self.unfinished = False

    def query(
        self, wanted: int, count_max: int, begin: int, end: int, progress: int, agrees: Callable[[int], bool]
    ) -> FoundOffsets:
        """Return the commit-log offsets below *progress* of records under a hash, newest first, at most *count_max*.

        Args:
            wanted: what `key_hash` or `tags_hash` gives.
            begin, end: store time in ms, both included; the index knows it to the second.
            agrees: tells whether the record at a commit-log offset has the key, or the tags.

        Raises:
            DamagedStore: a file that may hold some of them was cut short.
        """
        found = FoundOffsets()
        if count_max <= 0:
            return found
        for path, slot_count in self.newest_first():
            try:
                if slot_count is None:
                    raise self.unreadable(path)
                header = HEADER.unpack(self.files.read(path, HEADER.size, 0))
                begin_timestamp, end_timestamp, _, end_offset, _, index_count = header
                if index_count <= 1:
                    # Made, but without an entry: RocketMQ leaves it with the times of the file before, reput with none.
                    continue
                if found.last_update_timestamp == 0:
                    found.last_update_timestamp, found.last_update_offset = end_timestamp, end_offset
                if overlaps(begin, end, begin_timestamp, end_timestamp):
                    for offset in self.select(path, slot_count, wanted, begin_timestamp, begin, end):
                        if offset < progress and offset not in found.offsets and agrees(offset):
                            found.offsets.append(offset)
                            if len(found.offsets) >= count_max:
                                return found
            except FileNotFoundError:
                # Retention took it after the names were listed, with records that are gone, too.
                continue
            if begin_timestamp < begin:
                break
        return found

    def newest_first(self) -> list[tuple[str, int | None]]:
        """Return the files and their numbers of slots, newest first; those without an entry are left out.

        None: the file has entries, and shows no sizes that they could be found by.
        """
        if self.stamp.changed() or self.unfinished:
            while True:
                try:
                    self.look_at_files(index_paths(self.directory))
                    break
                except FileNotFoundError:
                    # Retention took a file after the names were listed; the others are looked at again.
                    continue
        return self.listed

    def look_at_files(self, paths: Sequence[Path]) -> None:
        """Find out how many slots each file has.

        Raises:
            FileNotFoundError: one of them is gone.
        """
        sizes = [(path, self.slot_count_of(path, paths)) for path in reversed(paths)]
        self.unfinished = any(slot_count is None for _, slot_count in sizes)
        self.listed = [
            (str(path), slot_count)
            for path, slot_count in sizes
            if slot_count is not None or read_header(path).index_count > 1
        ]

    def slot_count_of(self, path: Path, paths: Sequence[Path]) -> int | None:
        """Return how many slots one file of *paths* has, None if nothing shows that."""
        configured = HEADER.size + SLOT.size * self.slot_count + ENTRY.size * self.entry_count
        if path.stat().st_size == configured:
            return self.slot_count
        from reput.store.index_sizes import IndexSizes, find_common_sizes, find_index_sizes, is_head_of

        sizes = IndexSizes(self.slot_count, self.entry_count)
        shown = find_index_sizes(path, sizes)
        if shown is None:
            # It may have been cut short; then the others show what it began with.
            common = find_common_sizes(paths, sizes)
            shown = common if common is not None and is_head_of(path, common) else None
        return None if shown is None else shown.slot_count

    def unreadable(self, path: str) -> DamagedStore:
        """Return the error that says that a file was cut short."""
        return DamagedStore(
            f"index file was cut short, or has other sizes than the settings say: path={path} "
            f"size={os.stat(path).st_size} entries={read_header(Path(path)).index_count - 1}",
            "Name its sizes with --set maxHashSlotNum=N --set maxIndexNum=N, or build the index again: "
            "`reput rebuild STORE index`.",
        )

    def select(
        self, path: str, slot_count: int, wanted: int, begin_timestamp: int, begin: int, end: int
    ) -> Iterator[int]:
        """Yield the offsets of one file's entries under *wanted*, newest first.

        The header's count is no bound: beside a live builder a slot may lead to an entry that came after it was read.

        Raises:
            DamagedStore: the file was cut short before one of them.
        """
        read = self.files.read
        (number,) = SLOT.unpack(read(path, SLOT.size, HEADER.size + SLOT.size * (wanted % slot_count)))
        entries_at = HEADER.size + SLOT.size * slot_count
        while number > 0:
            data = read(path, ENTRY.size, entries_at + ENTRY.size * number)
            if len(data) < ENTRY.size:
                # A file has its full size from its making on.
                raise self.unreadable(path)
            code, offset, seconds, previous = ENTRY.unpack(data)
            if seconds < 0:
                return
            timestamp = begin_timestamp + seconds * 1000
            if code == wanted and begin <= timestamp <= end:
                yield offset
            # A chain only leads back; whatever does not is left over from a crash.
            if previous >= number or timestamp < begin:
                return
            number = previous


def index_paths(directory: Path) -> list[Path]:
    """Return the files in the order of their names, which is that of their making."""
    try:
        with os.scandir(directory) as entries:
            # Whoever opened somebody's pipe would wait for its other end.
            files = [entry.name for entry in entries if entry.is_file()]
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(files) if name.isascii() and name.isdigit()]


def read_header(path: Path) -> IndexHeader:
    """Return the header of one file."""
    with path.open("rb") as file:
        header = IndexHeader(*HEADER.unpack(file.read(HEADER.size).ljust(HEADER.size, b"\0")))
    header.index_count = max(header.index_count, 1)
    return header


def read_headers(directory: Path) -> list[IndexHeader]:
    """Return the headers of all files, oldest first."""
    return [read_header(path) for path in index_paths(directory)]


def overlaps(begin: int, end: int, begin_timestamp: int, end_timestamp: int) -> bool:
    """Whether a file may hold something of [begin, end], by RocketMQ's rule."""
    return (
        (begin < begin_timestamp and end > end_timestamp)
        or begin_timestamp <= begin <= end_timestamp
        or begin_timestamp <= end <= end_timestamp
    )
