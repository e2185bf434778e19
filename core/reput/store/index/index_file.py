"""Index: the index of a store, as readers see it. `index_layout` draws the bytes.

Source: RocketMQ store, IndexFile.selectPhyOffset and IndexService.queryOffset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reput.errors import DamagedStore
from reput.filter.string_hash import string_hash
from reput.store.disk.open_files import DirectoryStamp, OpenFiles
from reput.store.index.index_chain import BrokenChain, read_chain
from reput.store.index.index_layout import ENTRY, HEADER, SLOT, IndexHeader, index_paths, read_header
from reput_hooks import Record

__all__ = [
    "TAGS_TYPE",
    "FoundOffsets",
    "Index",
    "hashes_of",
    "index_damage",
    "key_hash",
    "tags_hash",
]

# Distinguishes tags from a key with the same text: MessageConst.INDEX_TAG_TYPE.
TAGS_TYPE = "T"


class FoundOffsets:
    """The result of a query: *offsets* newest first, and how far the newest file of the index goes."""

    __slots__ = ("last_update_offset", "last_update_timestamp", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.last_update_timestamp = 0
        self.last_update_offset = 0


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which the index holds a key of a topic."""
    code = abs(string_hash(f"{topic}#{key}"))
    return code if code <= 0x7FFFFFFF else 0


def tags_hash(topic: str, tags: str) -> int:
    """Return the hash under which the tags of a record stand in an index that has tags."""
    return key_hash(topic, f"{TAGS_TYPE}#{tags}")


def hashes_of(record: Record) -> set[int]:
    """Return the hashes under which a record may stand in the index."""
    hashes = {key_hash(record.topic, key) for key in (record.uniq_key, *record.keys) if key}
    return hashes | {tags_hash(record.topic, record.tags)} if record.tags else hashes


def index_damage(where: str, what: str) -> DamagedStore:
    """Return the error for damage *what* of the index at *where*, which is ``name=value``."""
    return DamagedStore(
        f"the index is damaged: {where}: {what}",
        "See `reput check STORE`; `reput rebuild STORE index` rebuilds it from the log.",
    )


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
        # Path → the header whose offsets and times were compared with the entries and the log.
        self.compared: dict[str, IndexHeader] = {}

    def query(
        self,
        wanted: int,
        count_max: int,
        begin: int,
        end: int,
        progress: int,
        agrees: Callable[[int], bool],
        stored_at: Callable[[int], int | None] = lambda commit_log_offset: None,
    ) -> FoundOffsets:
        """Return the commit-log offsets below *progress* of records under a hash, newest first, at most *count_max*.

        Args:
            wanted: the result of `key_hash` or `tags_hash`.
            begin, end: store time in ms, both included; the index is precise to the second.
            agrees: whether the record at a commit-log offset has the key, or the tags.
            stored_at: returns the store time of the record at a commit-log offset, None if the log no longer has it.

        Raises:
            DamagedStore: a file that may hold some of them was cut short, or contradicts itself or the log.
        """
        try:
            return self.search(wanted, count_max, begin, end, progress, agrees, stored_at)
        except DamagedStore:
            # A live builder writes entries, header and slots one after the other, and may just have changed them.
            self.stamp.forget()
            return self.search(wanted, count_max, begin, end, progress, agrees, stored_at)

    def search(
        self,
        wanted: int,
        count_max: int,
        begin: int,
        end: int,
        progress: int,
        agrees: Callable[[int], bool],
        stored_at: Callable[[int], int | None],
    ) -> FoundOffsets:
        """Do what `query` promises, as the files are in this moment."""
        found = FoundOffsets()
        if count_max <= 0:
            return found
        for path, slot_count in self.newest_first():
            try:
                if slot_count is None:
                    raise self.unreadable(path)
                header = self.header(path)
                if header.index_count <= 1 and not self.has_entry(path, slot_count, wanted):
                    # Made, but without an entry: RocketMQ leaves it with the times of the file before, reput with none.
                    continue
                if found.last_update_timestamp == 0:
                    found.last_update_timestamp, found.last_update_offset = header.end_timestamp, header.end_offset
                if overlaps(begin, end, header.begin_timestamp, header.end_timestamp):
                    for offset in self.select(path, slot_count, wanted, header, begin, end):
                        if offset is None:
                            self.compare(path, slot_count, header, stored_at)
                        elif offset < progress and offset not in found.offsets and agrees(offset):
                            found.offsets.append(offset)
                            if len(found.offsets) >= count_max:
                                return found
                else:
                    self.compare(path, slot_count, header, stored_at)
                if header.begin_timestamp < begin:
                    self.compare(path, slot_count, header, stored_at)
                    break
            except FileNotFoundError:
                # Retention took it after the names were listed, with records that are gone, too.
                continue
        return found

    def header(self, path: str) -> IndexHeader:
        """Return the header of one file as it is now."""
        return IndexHeader(*HEADER.unpack(self.read(path, HEADER.size, 0)))

    def read(self, path: str, size: int, at: int) -> bytes:
        """Return bytes of one file.

        Raises:
            DamagedStore: it was cut short before their end.
        """
        data = self.files.read(path, size, at)
        if len(data) < size:
            raise self.unreadable(path)
        return data

    def has_entry(self, path: str, slot_count: int, wanted: int) -> bool:
        """Return False if the slot of this hash is empty, in a file whose header says that it has no entry.

        Raises:
            DamagedStore: the slot leads to an entry.
        """
        (number,) = SLOT.unpack(self.read(path, SLOT.size, HEADER.size + SLOT.size * (wanted % slot_count)))
        if not number:
            return False
        count = self.header(path).index_count
        raise index_damage(f"path={path}", f"a slot leads to an entry, and there is none: entry={number} count={count}")

    def compare(self, path: str, slot_count: int, header: IndexHeader, stored_at: Callable[[int], int | None]) -> None:
        """Compare a header whose times have excluded an entry with the first and the last entry, and with the log.

        Raises:
            DamagedStore: the header contradicts them.
        """
        if self.compared.get(path) == header:
            return
        entries_at = HEADER.size + SLOT.size * slot_count
        for number, offset, timestamp in (
            (1, header.begin_offset, header.begin_timestamp),
            (header.index_count - 1, header.end_offset, header.end_timestamp),
        ):
            own_offset = ENTRY.unpack(self.read(path, ENTRY.size, entries_at + ENTRY.size * number))[1]
            stored = stored_at(own_offset) if own_offset == offset else None
            if own_offset != offset or stored not in (None, timestamp):
                raise index_damage(
                    f"path={path}",
                    f"the header contradicts an entry: entry={number} header_offset={offset} "
                    f"entry_offset={own_offset} header_timestamp={timestamp} store_timestamp={stored}",
                )
        self.compared[path] = header

    def newest_first(self) -> list[tuple[str, int | None]]:
        """Return the files and their numbers of slots, newest first; those without an entry are left out.

        None: the file has entries, but does not show the sizes needed to find them.
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
        from reput.store.index.index_sizes import IndexSizes, find_common_sizes, find_index_sizes, is_head_of

        sizes = IndexSizes(self.slot_count, self.entry_count)
        shown = find_index_sizes(path, sizes)
        if shown is None:
            # It may have been cut short; then the other files show its original sizes.
            common = find_common_sizes(paths, sizes)
            shown = common if common is not None and is_head_of(path, common) else None
        return None if shown is None else shown.slot_count

    def entry_count_of(self, path: str, slot_count: int) -> int:
        """Return how many entries one file has room for; 0 if it is gone."""
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return 0
        return max(0, (size - HEADER.size - SLOT.size * slot_count) // ENTRY.size)

    def unreadable(self, path: str) -> DamagedStore:
        """Return the error that says that a file was cut short."""
        return DamagedStore(
            f"index file was cut short, or has other sizes than the settings say: path={path} "
            f"size={os.stat(path).st_size} entries={read_header(Path(path)).index_count - 1}",
            "Name its sizes with --set maxHashSlotNum=N --set maxIndexNum=N, or rebuild the index: "
            "`reput rebuild STORE index`.",
        )

    def select(
        self, path: str, slot_count: int, wanted: int, header: IndexHeader, begin: int, end: int
    ) -> Iterator[int | None]:
        """Yield the offsets of one file's entries under *wanted*, newest first; None once if times leave one out.

        Raises:
            DamagedStore: the file was cut short before one of them, or they are not what was written.
        """

        def read(size: int, at: int) -> bytes:
            return self.files.read(path, size, at)

        try:
            yield from read_chain(read, slot_count, wanted, header, begin, end)
        except EOFError:
            # A file has its full size from its making on.
            raise self.unreadable(path) from None
        except BrokenChain as error:
            raise index_damage(f"path={path}", str(error)) from None


def overlaps(begin: int, end: int, begin_timestamp: int, end_timestamp: int) -> bool:
    """Whether a file may hold something of [begin, end], by RocketMQ's rule."""
    return (
        (begin < begin_timestamp and end > end_timestamp)
        or begin_timestamp <= begin <= end_timestamp
        or begin_timestamp <= end <= end_timestamp
    )
