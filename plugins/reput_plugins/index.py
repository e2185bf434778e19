"""The dispatcher `index`: messages by key, ``index/``.

Slots are overwritten as keys come, so a replay alone would not give the same bytes. The durable state is the cursor and
the header of the newest file; at a start the files are cut back to it - entries behind it zeroed, slots led past
them - and the log is read from there.
"""

from __future__ import annotations

import msgspec

from reput.store.identity import was_clean_when_adopted
from reput.store.index_builder import IndexBuilder, IndexState
from reput.store.sealed_file import read_sealed, seal
from reput.store.segments import Segments
from reput_hooks import (
    CommitLogDispatcher,
    Cursor,
    DispatchBatch,
    DispatcherContext,
    DispatcherDescription,
    hookimpl,
    replace_durably,
)

__all__ = ["IndexDispatcher"]

FOLDER = "index"


class IndexCursor(msgspec.Struct, frozen=True):
    """The cursor, and the files as of there."""

    cursor: Cursor
    state: IndexState


class IndexDispatcher(CommitLogDispatcher):
    """Builds the index files of one store."""

    def __init__(self, context: DispatcherContext) -> None:
        self.context = context
        self.path = context.directory / "cursor"
        self.builder = IndexBuilder(
            context.folder(FOLDER), context.settings["max_hash_slot_num"], context.settings["max_index_num"]
        )
        self.end: Cursor | None = None

    def start(self) -> Cursor | None:
        """Go on behind the durable entries; of a store that RocketMQ closed, behind the last of its entries."""
        known = read_sealed(self.path, IndexCursor)
        if known is not None:
            self.builder.cut(known.state)
            self.end = known.cursor
            return known.cursor
        store = self.context.store_directory
        if was_clean_when_adopted(store):
            complete_to = self.builder.adopt(Segments(store / "commitlog"))
            if complete_to:
                self.end = Cursor(self.context.store_id, 1, complete_to, 0)
                return self.end
        # A RocketMQ that was killed leaves an index that may lack any entry, so all of it is built again.
        self.builder.clear()
        return None

    def dispatch(self, batch: DispatchBatch) -> None:
        self.builder.dispatch(batch)
        self.end = batch.end

    def flush(self) -> Cursor | None:
        if self.end is not None:
            state = self.builder.flush()
            replace_durably(self.path, seal(IndexCursor(self.end, state)))
        return self.end

    def truncate(self, cursor: Cursor) -> None:
        self.builder.truncate(cursor.commit_log_offset)
        self.end = cursor
        self.flush()

    def expire(self, commit_log_offset_min: int) -> None:
        self.builder.expire(commit_log_offset_min)

    def close(self) -> None:
        self.builder.close()


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    return IndexDispatcher(context)


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    return DispatcherDescription(reads="appended", store_folders=(FOLDER,))
