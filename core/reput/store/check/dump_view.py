"""Dump of a store's views, row by row, as their files hold them. `check` judges them.

A file of another size than the others, or with bytes that are no unit, has a row of its own that names it, beside the
rows that can be read. Files that retention or the deletion of a topic removes meanwhile are left out. Reading only,
streaming, without the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from reput.errors import ConfigError
from reput.settings import Settings
from reput.store.disk.file_name import file_name, parse_file_name
from reput.store.disk.open_files import OpenFiles
from reput.store.ext.consume_queue_ext import ConsumeQueueExt
from reput.store.index.index_layout import index_paths, read_header
from reput.store.index.index_sizes import IndexSizes, find_common_sizes, is_head_of, read_entries
from reput.store.queue.consume_queue import UNIT_SIZE
from reput.store.queue.consume_queue_builder import names_in, queue_directories, shown_queue_file_size
from reput.store.queue.queue_file_units import QueueFileUnits
from reput.store.state.identity import require_store

__all__ = ["VIEWS", "ConsumeQueueRow", "ExtRow", "IndexRow", "ViewDamageRow", "dump_view"]

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


class ViewDamageRow(msgspec.Struct, frozen=True, tag_field="kind", tag="damage"):
    """A file of a view that is not what was written. *file*: its path below the store."""

    file: str
    size: int
    reason: str


Row = ConsumeQueueRow | ExtRow | IndexRow | ViewDamageRow


def dump_view(
    store_directory: Path, view: str, settings: Settings, *, topic: str | None = None, queue_id: int | None = None
) -> Iterator[Row]:
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
            "Omit the topic, or use `reput query` with a key.",
        )
    require_store(store_directory)
    if view == "index":
        yield from index_rows(store_directory, IndexSizes(settings.max_hash_slot_num, settings.max_index_num))
        return
    open_files = OpenFiles()
    try:
        root = store_directory / ("consumequeue" if view == "consume_queue" else "consumequeue_ext")
        file_size = shown_queue_file_size(root) or 0
        for found_topic, found_id, directory in sorted(queue_directories(root)):
            if topic not in (None, found_topic) or queue_id not in (None, found_id):
                continue
            if view == "consume_queue":
                yield from consume_queue_rows(found_topic, found_id, directory, file_size, open_files)
            else:
                yield from ext_rows(found_topic, found_id, directory, open_files)
            yield from files_of_other_sizes(store_directory, directory, file_size)
    finally:
        open_files.close()


def consume_queue_rows(
    topic: str, queue_id: int, directory: Path, file_size: int, open_files: OpenFiles
) -> Iterator[ConsumeQueueRow | ViewDamageRow]:
    """Yield the units of one queue; after an invalid unit, which can point into no log, a row says so."""
    queue = QueueFileUnits(directory, open_files)
    for low, high in queue.used(0):
        for number, (commit_log_offset, record_size, tags_code) in enumerate(queue.read(low, high).tolist()):
            if commit_log_offset or record_size or tags_code:
                yield ConsumeQueueRow(topic, queue_id, low + number, commit_log_offset, record_size, tags_code)
            if record_size < 0 or commit_log_offset < 0 or (not record_size and (commit_log_offset or tags_code)):
                begin = (low + number) * UNIT_SIZE
                name = file_name(begin - begin % file_size)
                yield ViewDamageRow(
                    f"consumequeue/{topic}/{queue_id}/{name}", file_size, f"no unit: queue_offset={low + number}"
                )


def ext_rows(topic: str, queue_id: int, directory: Path, open_files: OpenFiles) -> Iterator[ExtRow]:
    """Yield the ext units of one queue."""
    for address, unit in ConsumeQueueExt(directory, 1, open_files).units():
        yield ExtRow(topic, queue_id, address, unit.tags_code, unit.store_timestamp, unit.filter_bit_map)


def files_of_other_sizes(store_directory: Path, directory: Path, file_size: int) -> Iterator[ViewDamageRow]:
    """Yield the files of one queue that have another size than the store's queue files have."""
    for path in sorted(directory / name for name in names_in(directory)):
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue
        # RocketMQ removes an empty last file at its next start: its making was interrupted.
        if parse_file_name(path.name) is not None and size not in (0, file_size):
            name = str(path.relative_to(store_directory))
            yield ViewDamageRow(name, size, f"the file has another size: expected={file_size}")


def index_files(directory: Path, configured: IndexSizes) -> tuple[list[Path], IndexSizes | None]:
    """Return the index files and the sizes that they have in common."""
    while True:
        paths = index_paths(directory)
        try:
            return paths, find_common_sizes(paths, configured)
        except FileNotFoundError:
            if index_paths(directory) == paths:
                raise


def index_rows(store_directory: Path, configured: IndexSizes) -> Iterator[IndexRow | ViewDamageRow]:
    """Yield the entries of all index files."""
    paths, sizes = index_files(store_directory / "index", configured)
    for path in paths:
        try:
            size = path.stat().st_size
            count = read_header(path).index_count
            if sizes is not None and (size == sizes.file_size or is_head_of(path, sizes)):
                for first, entries in read_entries(path, sizes):
                    for number, entry in enumerate(entries.tolist()):
                        yield IndexRow(path.name, first + number, *entry)
        except FileNotFoundError:
            continue
        if size and (size != sizes.file_size if sizes is not None else count > 1):
            expected = "unknown" if sizes is None else sizes.file_size
            reason = f"the file has another size: expected={expected} entries={count - 1}"
            yield ViewDamageRow(f"index/{path.name}", size, reason)
