"""The dispatcher `index`: messages by key, ``index/``.

New keys overwrite slots, so a replay alone would not give the same bytes. The durable state is the cursor, the file
names and the header of the newest file. A start cuts the files back to that state and reads the log from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reput.store.builder_dispatcher import BuilderDispatcher
from reput.store.disk.files import Clock, Files
from reput.store.disk.shortages import retry_on_shortage
from reput.store.index.index_builder import IndexBuilder, IndexCursor, IndexState
from reput.store.index.index_layout import IndexHeader
from reput.store.log.segments import Segments
from reput.store.record.record import decode_record
from reput.store.service.threads import Threads
from reput_hooks import (
    CommitLogDispatcher,
    Cursor,
    DispatchBatch,
    DispatcherContext,
    DispatcherDescription,
    hookimpl,
)

__all__ = ["IndexDispatcher"]

FOLDER = "index"


class IndexDispatcher(BuilderDispatcher[IndexBuilder, IndexCursor]):
    """Builds the key index of one store."""

    def __init__(
        self,
        context: DispatcherContext,
        files: Files | None = None,
        clock: Clock | None = None,
        threads: Threads | None = None,
    ) -> None:
        files = files or Files()
        builder = IndexBuilder(
            context.folder(FOLDER),
            context.settings["max_hash_slot_num"],
            context.settings["max_index_num"],
            with_tags=context.settings["index_tags"],
            files=files,
            clock=clock,
        )
        super().__init__(context, builder, IndexCursor, files, threads)

    def restore(self, kept: IndexCursor) -> None:
        self.builder.restore(kept.state)

    def adopt(self) -> IndexCursor | None:
        from reput.store.recovery.index_adoption import adopt_index

        state, complete_to = adopt_index(self.builder, self.context.store_directory)
        if not complete_to:
            return None
        self.builder.restore(state)
        # Epoch 1 is the one in which reput found the store, so a truncation since then is applied here, too.
        return IndexCursor(Cursor(self.context.store_id, 1, complete_to, 0), state)

    def begin_empty(self) -> None:
        self.builder.restore(IndexState([], IndexHeader()))

    def state_to_keep(self, cursor: Cursor) -> IndexCursor:
        return IndexCursor(cursor, self.builder.state())

    def state_below(self, cursor: Cursor) -> IndexCursor:
        segments = Segments(self.context.store_directory / "commitlog")

        def store_timestamp_of(commit_log_offset: int) -> int:
            size = int.from_bytes(segments.read(commit_log_offset, 4), "big")
            return decode_record(segments.read(commit_log_offset, size)).store_timestamp

        state = self.builder.state_below(self.builder.names, cursor.commit_log_offset, store_timestamp_of)
        return IndexCursor(cursor, state)

    def dispatch(self, batch: DispatchBatch) -> None:
        with retry_on_shortage("no room for index entries"):
            self.builder.put(batch)
        self.end = batch.end


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    return IndexDispatcher(context)


@hookimpl
def reput_read_view(folders: Sequence[Path]) -> list[bytes]:
    # A file's name is its creation time; equal indexes have the same bytes in that order.
    return [path.read_bytes() for path in sorted(folders[1].glob("*"))]


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    return DispatcherDescription(
        reads="appended", store_folders=(FOLDER,), batch_record_count_max=65_536, batch_size_max=1 << 30
    )
