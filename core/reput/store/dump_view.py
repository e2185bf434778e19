"""What the views of a store hold, row by row, as it stands in their files: nothing is judged here. See `check`.

Reading only, streaming, without the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from reput.errors import ConfigError
from reput.settings import Settings
from reput.store.consume_queue_builder import queue_directories
from reput.store.consume_queue_ext import ConsumeQueueExt
from reput.store.identity import require_store
from reput.store.index_file import index_paths
from reput.store.index_sizes import IndexSizes, find_common_sizes, read_entries
from reput.store.open_files import OpenFiles
from reput.store.queue_file_units import QueueFileUnits

__all__ = ["VIEWS", "ConsumeQueueRow", "ExtRow", "IndexRow", "dump_view"]

VIEWS = ("consume_queue", "consume_queue_ext", "index")


class ConsumeQueueRow(msgspec.Struct, frozen=True):
    """One unit of a consume queue. A pre-blank unit has the record size 2147483647."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    record_size: int
    tags_code: int


class ExtRow(msgspec.Struct, frozen=True):
    """One ext unit, and the address by which a queue's unit leads to it."""

    topic: str
    queue_id: int
    address: int
    tags_code: int
    store_timestamp: int
    filter_bit_map: bytes | None


class IndexRow(msgspec.Struct, frozen=True):
    """One entry of the index: *position* in *file*, *seconds* as stored, *previous* entry of its slot, 0 without."""

    file: str
    position: int
    key_hash: int
    commit_log_offset: int
    seconds: int
    previous: int


def dump_view(
    store_directory: Path, view: str, settings: Settings, *, topic: str | None = None, queue_id: int | None = None
) -> Iterator[ConsumeQueueRow | ExtRow | IndexRow]:
    """Yield everything that a view holds, units of a queue in its order, queues and files in the order of their names.

    Args:
        settings: where index files do not show their sizes, these hold.
        topic, queue_id: only these queues. The index does not know them.

    Raises:
        NotAStore: the directory holds no commit log.
        ConfigError: there is no such view, or *topic* or *queue_id* were given for the index.
    """
    if view not in VIEWS:
        raise ConfigError(f"no such view: view={view!r}", f"One of {', '.join(VIEWS)}.")
    if view == "index" and (topic is not None or queue_id is not None):
        raise ConfigError(
            f"entries of the index know hashes of keys, not topics: topic={topic!r} queue_id={queue_id}",
            "Leave the topic out, or use `reput query` with a key.",
        )
    require_store(store_directory)
    if view == "index":
        yield from index_rows(store_directory, IndexSizes(settings.max_hash_slot_num, settings.max_index_num))
        return
    open_files = OpenFiles()
    try:
        root = store_directory / ("consumequeue" if view == "consume_queue" else "consumequeue_ext")
        rows = consume_queue_rows if view == "consume_queue" else ext_rows
        for found_topic, found_id, directory in sorted(queue_directories(root)):
            if topic in (None, found_topic) and queue_id in (None, found_id):
                yield from rows(found_topic, found_id, directory, open_files)
    finally:
        open_files.close()


def consume_queue_rows(topic: str, queue_id: int, directory: Path, open_files: OpenFiles) -> Iterator[ConsumeQueueRow]:
    """Yield the units of one queue."""
    queue = QueueFileUnits(directory, open_files)
    for low, high in queue.used(0):
        for number, (commit_log_offset, record_size, tags_code) in enumerate(queue.read(low, high).tolist()):
            if record_size:
                yield ConsumeQueueRow(topic, queue_id, low + number, commit_log_offset, record_size, tags_code)


def ext_rows(topic: str, queue_id: int, directory: Path, open_files: OpenFiles) -> Iterator[ExtRow]:
    """Yield the ext units of one queue."""
    for address, unit in ConsumeQueueExt(directory, 1, open_files).units():
        yield ExtRow(topic, queue_id, address, unit.tags_code, unit.store_timestamp, unit.filter_bit_map)


def index_rows(store_directory: Path, configured: IndexSizes) -> Iterator[IndexRow]:
    """Yield the entries of all index files."""
    paths = index_paths(store_directory / "index")
    sizes = find_common_sizes(paths, configured)
    if sizes is None:
        return
    for path in paths:
        for first, entries in read_entries(path, sizes):
            for number, entry in enumerate(entries.tolist()):
                yield IndexRow(path.name, first + number, *entry)
