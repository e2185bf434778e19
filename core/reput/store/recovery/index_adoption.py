"""How far the index of a store reaches that RocketMQ closed cleanly, so that reput can continue it.

After a kill, RocketMQ drops its partial index file and dispatches again only from a later record on, so the index may
have holes between two of its files. reput takes it over up to the first hole.

Source: RocketMQ store, IndexService.load and CommitLog.recoverAbnormally.
"""

from __future__ import annotations

from pathlib import Path

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.index.index_builder import IndexBuilder, IndexState, keys_of
from reput.store.index.index_layout import IndexHeader, index_paths, read_header
from reput.store.log.log_scan import LogScan
from reput.store.record.layout import SIZE
from reput_hooks import Record

__all__ = ["adopt_index"]


def adopt_index(builder: IndexBuilder, store_directory: Path) -> tuple[IndexState, int]:
    """Return what of the index below *builder* is whole, and up to where no record lacks its keys; 0: nothing is.

    Nothing is changed.
    """
    nothing = IndexState([], IndexHeader()), 0
    scan = LogScan(store_directory)
    try:
        paths = index_paths(builder.directory)
        # A file without an entry says nothing, and comes again with the next record.
        while paths and read_header(paths[-1]).index_count == 1:
            paths.pop()
        complete_to = scan.offset_min
        for number, path in enumerate(paths):
            header = read_header(path)
            is_last = number == len(paths) - 1
            if not is_whole(builder, path.name, is_last) or has_keys(
                scan, complete_to, header.begin_offset, with_tags=builder.with_tags
            ):
                return whole_part(builder, paths[:number], scan) if number else nothing
            if header.end_offset >= scan.offset_min:
                complete_to = max(complete_to, header.end_offset + record_at(scan, header.end_offset).record_size)
        if not paths:
            return nothing
        if is_full(builder, paths[-1].name):
            return whole_part(builder, paths, scan)
        return IndexState([path.name for path in paths], read_header(paths[-1])), complete_to
    except (DamagedStore, OffsetOutOfRange):
        return nothing
    finally:
        scan.close()


def whole_part(builder: IndexBuilder, paths: list[Path], scan: LogScan) -> tuple[IndexState, int]:
    """Return what `adopt_index` does where only *paths* are whole: up to the last record in them, without it.

    Some of that record's keys may have stood in the file that follows.
    """
    end = read_header(paths[-1]).end_offset
    return builder.state_below([path.name for path in paths], end, lambda at: record_at(scan, at).store_timestamp), end


def is_whole(builder: IndexBuilder, name: str, is_last: bool) -> bool:
    """Tell whether a file's entries fit its header. The last one, which RocketMQ may not have forced, is read whole."""
    file = builder.map(name)
    try:
        return file.is_consistent() if is_last else file.ends_as(file.header)
    finally:
        file.close()


def is_full(builder: IndexBuilder, name: str) -> bool:
    """Tell whether a file has no room. Then one may have followed it, which is gone."""
    file = builder.map(name)
    try:
        return file.room == 0
    finally:
        file.close()


def has_keys(scan: LogScan, begin: int, end: int, *, with_tags: bool) -> bool:
    """Tell whether a record in [begin, end) has a key, which is then missing in the index."""
    while begin < end:
        scanned = scan.scan(begin, end)
        for request in scanned.columns:
            if next(keys_of(request, with_tags=with_tags), None) is not None:
                return True
        begin = scanned.end
    return False


def record_at(scan: LogScan, commit_log_offset: int) -> Record:
    """Return the record at this offset."""
    return scan.read(commit_log_offset, int.from_bytes(scan.segments.read(commit_log_offset, SIZE.size), "big"))
