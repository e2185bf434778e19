"""Whether the index of a store has the tags of records besides their keys, as RocketMQ enters them from 5.4.0 on.

A store does not record RocketMQ's version, but the index shows it: it has the tags of a record or not. The newest
records count, because several versions may have written the store.

Source: RocketMQ store, IndexService.buildIndex; MessageRocksDBStorage, which makes ``rocksdbstore/`` from 5.4.0 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.errors import DamagedStore, NotAStore, OffsetOutOfRange
from reput.store.index.index_file import tags_hash
from reput.store.index.index_layout import ENTRY, HEADER, SLOT, index_paths, read_header
from reput.store.log.segment_reader import SegmentReader
from reput.store.log.segments import Segments
from reput.store.record.record import decode_record
from reput_hooks import Record

__all__ = ["shown_index_tags"]

# The newest entries, of any keys: far more than one record has, and read in a few milliseconds.
ENTRIES_MAX = 256


def shown_index_tags(store_directory: Path, slot_count: int, entry_count: int, begin: int = 0) -> bool | None:
    """Tell whether the index has the tags of the newest records from *begin* on; None: nothing shows it.

    Args:
        slot_count, entry_count: of an index file, if it does not show others.
        begin: commit-log offset.
    """
    try:
        segments = Segments(store_directory / "commitlog")
    except NotAStore:
        return None
    reader = SegmentReader(segments)
    try:
        shown = shown_by_entries(reader, store_directory / "index", slot_count, entry_count, begin)
    finally:
        reader.close()
    if shown is None and begin == 0 and (store_directory / "rocksdbstore").is_dir():
        # No message has tags yet. The version that made this folder enters them.
        return True
    return shown


def shown_by_entries(
    reader: SegmentReader, index_directory: Path, slot_count: int, entry_count: int, begin: int
) -> bool | None:
    """Return what the newest entries say, compared with their records; None: none of these has tags."""
    shown: bool | None = None
    left = ENTRIES_MAX
    for path in reversed(index_paths(index_directory)):
        hashes = newest_entries(path, slot_count, entry_count, left)
        left -= sum(map(len, hashes.values()))
        for commit_log_offset in sorted((offset for offset in hashes if offset >= begin), reverse=True):
            record = record_at(reader, commit_log_offset)
            if record is not None and record.tags:
                if tags_hash(record.topic, record.tags) in hashes[commit_log_offset]:
                    return True
                shown = False
        if left <= 0:
            break
    return shown


def newest_entries(path: Path, slot_count: int, entry_count: int, count_max: int) -> dict[int, list[int]]:
    """Return the hashes of the newest *count_max* entries of one file, by commit-log offset."""
    try:
        if path.stat().st_size != HEADER.size + SLOT.size * slot_count + ENTRY.size * entry_count:
            from reput.store.index.index_sizes import IndexSizes, find_index_sizes

            sizes = find_index_sizes(path, IndexSizes(slot_count, entry_count))
            if sizes is None:
                return {}
            slot_count, entry_count = sizes
        end = min(read_header(path).index_count, entry_count)
        first = max(end - count_max, 1)
        with path.open("rb") as file:
            file.seek(HEADER.size + SLOT.size * slot_count + ENTRY.size * first)
            data = file.read(ENTRY.size * (end - first))
    except FileNotFoundError:
        # Retention took it after the names were listed.
        return {}
    hashes: dict[int, list[int]] = {}
    for key_hash, commit_log_offset, _, _ in whole_entries(data):
        hashes.setdefault(commit_log_offset, []).append(key_hash)
    return hashes


def whole_entries(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the entries in *data*; a file that was cut short may end within one."""
    return ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size])


def record_at(reader: SegmentReader, commit_log_offset: int) -> Record | None:
    """Return the record at this offset, None if the log has none there, or no more."""
    try:
        segment = reader.segments.holding(commit_log_offset)
        size = int.from_bytes(reader.pread(segment, commit_log_offset, 4), "big")
        # What is no record may claim gigabytes.
        size = min(size, segment.begin + segment.size - commit_log_offset)
        return decode_record(reader.pread(segment, commit_log_offset, size))
    except (OffsetOutOfRange, DamagedStore):
        return None
