"""The dispatcher `index`: messages by key, ``index/``.

Slots are overwritten as keys come, so a replay alone would not give the same bytes. The durable state is the cursor,
the names of the files and the header of the newest; at a start the files are cut back to it, and the log is read from
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from reput.errors import DamagedStore
from reput.store.files import Clock, Files
from reput.store.identity import was_clean_when_adopted
from reput.store.index_builder import IndexBuilder, IndexCursor, IndexState
from reput.store.index_file import IndexHeader
from reput.store.record import decode_record
from reput.store.sealed_file import read_sealed, seal
from reput.store.segments import Segments
from reput.store.shortages import retry_on_shortage
from reput_hooks import (
    CommitLogDispatcher,
    Cursor,
    DispatchBatch,
    DispatcherContext,
    DispatcherDescription,
    RebuildNeeded,
    hookimpl,
)

__all__ = ["IndexDispatcher"]

FOLDER = "index"


class IndexDispatcher(CommitLogDispatcher):
    """Builds the key index of one store."""

    def __init__(self, context: DispatcherContext, files: Files | None = None, clock: Clock | None = None) -> None:
        self.context = context
        self.files = files or Files()
        self.path = context.directory / "cursor"
        self.builder = IndexBuilder(
            context.folder(FOLDER),
            context.settings["max_hash_slot_num"],
            context.settings["max_index_num"],
            files=self.files,
            clock=clock,
        )
        self.end: Cursor | None = None

    def start(self) -> Cursor | None:
        """Go on behind the durable entries; of a store that RocketMQ closed, behind the last of its entries."""
        with self.rebuild_if_damaged(), retry_on_shortage("the view cannot be brought to its cursor"):
            known = read_sealed(self.path, IndexCursor)
            if known is not None:
                self.builder.restore(known.state)
                self.end = known.cursor
                return self.end
            store = self.context.store_directory
            if was_clean_when_adopted(store):
                from reput.store.index_adoption import adopt_index

                state, complete_to = adopt_index(self.builder, store)
                if complete_to:
                    self.builder.restore(state)
                    # As of the epoch in which reput found the store: a cut since then is made here, too.
                    self.end = Cursor(self.context.store_id, 1, complete_to, 0)
                    return self.flush()
            # A RocketMQ that was killed leaves an index that may lack any entry, so all of it is built again.
            self.builder.restore(IndexState([], IndexHeader()))
        return None

    @contextmanager
    def rebuild_if_damaged(self) -> Iterator[None]:
        """Have the view built again where it is not what its cursor says: deleted, or replaced by an older copy."""
        try:
            yield
        except DamagedStore as error:
            self.context.logger.error("%s", error)
            raise RebuildNeeded from error

    def dispatch(self, batch: DispatchBatch) -> None:
        with retry_on_shortage("no room for index entries"):
            self.builder.put(batch)
        self.end = batch.end

    def flush(self) -> Cursor | None:
        if self.end is not None:
            self.keep(self.builder.force())
        return self.end

    def keep(self, state: IndexState) -> None:
        """Write the cursor and *state* durably."""
        assert self.end is not None
        with retry_on_shortage("the cursor cannot be written"):
            self.files.replace(self.path, seal(IndexCursor(self.end, state)))

    def truncate(self, cursor: Cursor) -> None:
        # The shorter state is kept before anything is cut: a crash in the middle is then one behind it.
        self.builder.force()
        segments = Segments(self.context.store_directory / "commitlog")

        def store_timestamp_of(commit_log_offset: int) -> int:
            size = int.from_bytes(segments.read(commit_log_offset, 4), "big")
            return decode_record(segments.read(commit_log_offset, size)).store_timestamp

        with self.rebuild_if_damaged(), retry_on_shortage("the view cannot be brought to its cursor"):
            state = self.builder.state_below(self.builder.names, cursor.commit_log_offset, store_timestamp_of)
            self.end = cursor
            self.keep(state)
            self.builder.restore(state)

    def expire(self, commit_log_offset_min: int) -> None:
        expired = self.builder.expire(commit_log_offset_min)
        if expired:
            # Files go only after the state that does not need them is on disk.
            self.flush()
            for path in expired:
                self.files.remove(path)

    def close(self) -> None:
        self.builder.close()


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    return IndexDispatcher(context)


@hookimpl
def reput_read_view(folders: Sequence[Path]) -> list[bytes]:
    # A file's name is the time at which it was made; equal indexes have the same bytes in that order.
    return [path.read_bytes() for path in sorted(folders[1].glob("*"))]


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    return DispatcherDescription(reads="appended", store_folders=(FOLDER,))
