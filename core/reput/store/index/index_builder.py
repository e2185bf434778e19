"""IndexBuilder: the key index of a store, brought up to the commit log batch by batch.

    batch ──▶ keys and their hashes ──▶ room in the newest file and in as many new ones as it takes ──▶ entries
                                        (a full disk is found here, before anything has changed)

One writer. The kernel, where it is installed, takes in every batch. Without it, a small batch is put key by key, a
larger one at once with numpy, which is then loaded. All put the same entries. Slots are overwritten, so a replay over
existing entries would not give the same file: `restore` first cuts off the entries behind the durable state.

Source: RocketMQ store, IndexService.buildIndex, retryGetAndCreateIndexFile and deleteExpiredFile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reput.errors import DamagedStore
from reput.kernel import INDEX_KEY_SIZE, kernel
from reput.store.disk.file_runs import removal_order
from reput.store.disk.files import Clock, Files, Progress
from reput.store.index.index_file import key_hash, tags_hash
from reput.store.index.index_layout import IndexHeader, index_paths, read_header
from reput.store.index.index_mapping import IndexKey, IndexMapping, index_file_size
from reput.store.record.layout import TRANSACTION_ROLLBACK_TYPE
from reput_hooks import Cursor, DispatchBatch, DispatchRequest

if TYPE_CHECKING:
    from reput.store.index.index_keys import KeyHashes

__all__ = ["IndexBuilder", "IndexCursor", "IndexState", "keys_of", "next_name"]

# Below this, the fixed cost of numpy's calls is more than the keys cost one by one.
BULK_ROWS_MIN = 8
MS = timedelta(milliseconds=1)


class IndexState(msgspec.Struct, frozen=True):
    """The index's state: its files by name, oldest first, and the header of the last one."""

    names: list[str]
    header: IndexHeader


class IndexCursor(msgspec.Struct, frozen=True):
    """The sealed file ``cursor`` beside the view's files: the cursor, and the index's state there."""

    cursor: Cursor
    state: IndexState


class IndexBuilder:
    """Writes the index files in *directory*; the newest one stays mapped."""

    def __init__(
        self,
        directory: Path,
        slot_count: int,
        entry_count: int,
        *,
        with_tags: bool = False,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Change nothing yet; see `restore`.

        Args:
            slot_count, entry_count: of a new file, unless those that are there have others.
            with_tags: enter the tags of each record, too, as RocketMQ does from 5.4.0 on.

        Raises:
            ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
        """
        self.directory = directory
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.with_tags = with_tags
        self.files = files or Files()
        self.clock = clock or Clock()
        self.names: list[str] = []
        self.last: IndexMapping | None = None
        # Files that are full, but not yet forced, and those of them that are being forced beside.
        self.full: list[IndexMapping] = []
        self.full_to_force: list[IndexMapping] = []
        self.names_changed = False
        self.names_to_force = False
        self.hashes: KeyHashes | None = None
        self.kernel = kernel()

    # Taking in.

    def put(self, batch: DispatchBatch) -> None:
        """Add the keys of all records of *batch*, which continues where the last one ended.

        Raises:
            OSError: the disk has no room; nothing was changed.
        """
        count = len(batch)
        if not count:
            return
        at = 0
        found = self.kernel.index_keys(batch.parts, self.with_tags) if self.kernel is not None else None
        if self.kernel is not None and found is not None:
            packed, keys_end_batch = found
            for file, taken in self.places(len(packed) // INDEX_KEY_SIZE, keys_end_batch):
                file.put_packed(self.kernel, packed, at, taken)
                at += taken
        elif count < BULK_ROWS_MIN:
            requests = list(batch)
            keys = [key for request in requests for key in keys_of(request, with_tags=self.with_tags)]
            keys_end_batch = bool(keys) and keys[-1][1] == requests[-1].commit_log_offset
            for file, taken in self.places(len(keys), keys_end_batch):
                file.put(keys[at : at + taken])
                at += taken
        else:
            hashes, offsets, timestamps = self.key_columns(batch)
            keys_end_batch = bool(len(offsets)) and offsets[-1] == batch.columns()[0]["commit_log_offset"][-1]
            for file, taken in self.places(len(hashes), keys_end_batch):
                end = at + taken
                file.put_columns(hashes[at:end], offsets[at:end], timestamps[at:end])
                at = end

    def key_columns(self, batch: DispatchBatch) -> tuple[Any, Any, Any]:
        """Return hash, commit-log offset and store time of each key of *batch*."""
        if self.hashes is None:
            from reput.store.index.index_keys import KeyHashes

            self.hashes = KeyHashes()
        rows, queues, texts = batch.columns()
        row, hashes, _ = self.hashes.find(rows, queues, texts, with_tags=self.with_tags)
        rolled_back = (rows["sys_flag"] & TRANSACTION_ROLLBACK_TYPE) == TRANSACTION_ROLLBACK_TYPE
        if rolled_back.any():
            kept = ~rolled_back[row]
            row, hashes = row[kept], hashes[kept]
        return hashes, rows["commit_log_offset"][row], rows["store_timestamp"][row]

    def places(self, key_count: int, keys_end_batch: bool) -> Iterator[tuple[IndexMapping, int]]:
        """Make room for the keys of at least one record, then yield each file and how many of the keys go there.

        RocketMQ requests a file with room once per record, with or without keys. So the record that follows the one
        which filled a file creates the next file. *keys_end_batch*: the last key is of the last record.

        Raises:
            OSError: there is no room; nothing was changed.
        """
        room = self.last.room if self.last is not None else 0
        here = min(room, key_count)
        capacity = self.entry_count - 1
        further: list[int] = []
        left = key_count - here
        while left or (room == 0 and not further):
            further.append(min(capacity, left))
            left -= further[-1]
        left_in_file = capacity - further[-1] if further else room - here
        if left_in_file == 0 and not keys_end_batch:
            further.append(0)
        if here:
            assert self.last is not None
            self.last.reserve(here)
        made = self.make_files(further)
        if here:
            assert self.last is not None
            yield self.last, here
        for file, count in zip(made, further, strict=True):
            if self.last is not None:
                file.begin_behind(self.last.header)
                self.full.append(self.last)
            self.last = file
            self.names.append(file.path.name)
            self.names_changed = True
            if count:
                yield file, count

    def make_files(self, counts: list[int]) -> list[IndexMapping]:
        """Make files with room for so many keys.

        Raises:
            OSError: there is no room, and none of them is left. It names the directory.
        """
        made: list[IndexMapping] = []
        name = self.names[-1] if self.names else ""
        path: Path | None = None
        try:
            for count in counts:
                self.files.make_directory(self.directory)
                name = next_name(name, self.clock.now_ms())
                path = self.directory / name
                self.files.create(path, index_file_size(self.slot_count, self.entry_count))
                made.append(IndexMapping(path, self.slot_count, self.entry_count, self.files))
                made[-1].reserve(count)
        except BaseException as error:
            if isinstance(error, OSError):
                # The file is removed, and the next try gives it another name.
                error.filename = str(self.directory)
            for file in made:
                file.close()
            for path_made in {file.path for file in made} | ({path} if path is not None and path.exists() else set()):
                self.files.remove(path_made)
            raise
        return made

    # Forcing, and the state kept beside the cursor.

    def begin_force(self) -> Callable[[Progress], None]:
        """Return a function that forces all entries put so far, as `state` describes them now; any thread may call it.

        Entries put meanwhile do no harm: `IndexMapping.restore` finds the slots that lead to them. After the function
        has returned, call `end_force`; after a failure, or without waiting for it, `abandon_force`.
        """
        self.abandon_force()
        self.full_to_force, self.full = self.full, []
        self.names_to_force, self.names_changed = self.names_changed, False
        files = [*self.full_to_force, *([self.last] if self.last is not None else [])]
        directories = [self.directory, self.directory.parent] if self.names_to_force else []

        def force(on_progress: Progress) -> None:
            for file in files:
                file.force()
                on_progress()
            for directory in directories:
                self.files.force_directory(directory)

        return force

    def end_force(self) -> None:
        """Close the files that were full at `begin_force`; they are on disk now."""
        while self.full_to_force:
            self.full_to_force.pop().close()
        self.names_to_force = False

    def abandon_force(self) -> None:
        """Make the next force cover everything that the last one was meant to cover."""
        self.full = [*self.full_to_force, *self.full]
        self.full_to_force = []
        self.names_changed |= self.names_to_force
        self.names_to_force = False

    def state(self) -> IndexState:
        """Return the state of the index: its files and the newest header."""
        header = self.last.header if self.last is not None else IndexHeader()
        return IndexState(list(self.names), msgspec.structs.replace(header))

    def restore(self, state: IndexState) -> None:
        """Bring the files to *state*, which the caller keeps durably: what lies before or behind goes.

        Raises:
            DamagedStore: the files do not hold what *state* says.
        """
        self.close()
        found = [path.name for path in index_paths(self.directory)]
        for name in removal_order(found, set(state.names)):
            self.files.remove(self.directory / name)
        missing = sorted(set(state.names) - set(found))
        if missing:
            raise DamagedStore(f"index file is gone: name={missing[0]} directory={self.directory}")
        self.names = list(state.names)
        if not state.names:
            return
        last = self.map(state.names[-1])
        self.last = last
        # The next files are like this one: the program that made it is configured so.
        self.slot_count, self.entry_count = last.slot_count, last.entry_count
        for name in state.names[:-1]:
            self.sizes_of(self.directory / name)
        count = state.header.index_count
        if not last.ends_as(state.header):
            raise DamagedStore(
                f"index file does not match its cursor: path={last.path} index_count={count} "
                f"end_offset={state.header.end_offset}"
            )
        last.restore(state.header)

    def map(self, name: str) -> IndexMapping:
        """Map one file, with the numbers of slots and entries that it shows if they are not those configured.

        Raises:
            DamagedStore: it has another size than the settings give it, and does not show why.
        """
        path = self.directory / name
        slot_count, entry_count = self.sizes_of(path)
        return IndexMapping(path, slot_count, entry_count, self.files)

    def sizes_of(self, path: Path) -> tuple[int, int]:
        """Return how many slots and entries a file has.

        Raises:
            DamagedStore: as `map`.
        """
        slot_count, entry_count = self.slot_count, self.entry_count
        size = path.stat().st_size
        if size != index_file_size(slot_count, entry_count):
            from reput.store.index.index_sizes import IndexSizes, find_index_sizes

            shown = find_index_sizes(path, IndexSizes(slot_count, entry_count))
            if shown is None:
                raise DamagedStore(
                    f"index file has another size than the settings give it: path={path} size={size} "
                    f"max_hash_slot_num={slot_count} max_index_num={entry_count}"
                )
            slot_count, entry_count = shown
        return slot_count, entry_count

    # Cutting.

    def state_below(
        self, names: list[str], commit_log_offset: int, store_timestamp_of: Callable[[int], int]
    ) -> IndexState:
        """Return what the files *names* hold without the entries of records from *commit_log_offset* on.

        Changes nothing.

        Args:
            store_timestamp_of: gives the store time of the record at a commit-log offset.
        """
        for number in range(len(names) - 1, -1, -1):
            name = names[number]
            file = self.last if self.last is not None and name == self.last.path.name else self.map(name)
            try:
                header = file.header_below(commit_log_offset, store_timestamp_of)
            finally:
                if file is not self.last:
                    file.close()
            if header is not None:
                return IndexState(names[: number + 1], header)
        return IndexState([], IndexHeader())

    def expire(self, commit_log_offset_min: int) -> list[Path]:
        """Leave out the leading files whose records all lie below *commit_log_offset_min*, never the last; return them.

        Remove them once the state without them is durable.

        Source: RocketMQ store, IndexService.deleteExpiredFile.
        """
        expired: list[Path] = []
        for name in self.names[:-1]:
            path = self.directory / name
            if read_header(path).end_offset >= commit_log_offset_min:
                break
            expired.append(path)
        del self.names[: len(expired)]
        return expired

    def close(self) -> None:
        """Unmap all files."""
        self.abandon_force()
        for file in (*self.full, *([self.last] if self.last is not None else [])):
            file.close()
        self.full.clear()
        self.last = None
        self.names = []


def keys_of(request: DispatchRequest, *, with_tags: bool) -> Iterator[IndexKey]:
    """Yield the index keys of one record."""
    if request.sys_flag & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_ROLLBACK_TYPE:
        return
    topic, offset, timestamp = request.topic, request.commit_log_offset, request.store_timestamp
    if request.uniq_key is not None:
        yield key_hash(topic, request.uniq_key), offset, timestamp
    if request.keys:
        for key in request.keys.split(" "):
            if key:
                yield key_hash(topic, key), offset, timestamp
    if with_tags and request.tags is not None:
        yield tags_hash(topic, request.tags), offset, timestamp


def next_name(last_name: str, now_ms: int) -> str:
    """Return the name of the next file: the local time, and at least 1 ms behind *last_name*, "" if there is none.

    Names define the order of the files, so they keep growing when the clock goes back.
    """
    name = format_name(datetime.fromtimestamp(now_ms // 1000) + timedelta(milliseconds=now_ms % 1000))
    if name > last_name:
        return name
    try:
        return format_name(datetime.strptime(last_name[:14], "%Y%m%d%H%M%S") + MS * (int(last_name[14:]) + 1))
    except ValueError:
        return str(int(last_name) + 1)


def format_name(local_time: datetime) -> str:
    """Return a local time to the millisecond, in 17 digits."""
    return f"{local_time:%Y%m%d%H%M%S}{local_time.microsecond // 1000:03d}"
