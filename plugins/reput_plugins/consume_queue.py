"""The dispatcher `consume_queue`: what consumers read, ``consumequeue/{topic}/{queueId}/``.

Each unit has one place, so a replay writes the same bytes again. The cursor stands in one file with the ends of all
queues; what lies behind those ends at a start is zeroed, because a reader takes whatever is below the progress.
"""

from __future__ import annotations

import msgspec

from reput.store.consume_queue_builder import ConsumeQueueBuilder, QueueEnds
from reput.store.identity import was_clean_when_adopted
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

__all__ = ["ConsumeQueueDispatcher"]

FOLDER = "consumequeue"


class ConsumeQueueState(msgspec.Struct, frozen=True):
    """The cursor, and the ends of all queues as of there."""

    cursor: Cursor
    ends: QueueEnds


class ConsumeQueueDispatcher(CommitLogDispatcher):
    """Builds the consume queues of one store."""

    def __init__(self, context: DispatcherContext) -> None:
        self.context = context
        self.path = context.directory / "cursor"
        self.builder = ConsumeQueueBuilder(context.folder(FOLDER), context.settings["mapped_file_size_consume_queue"])
        self.end: Cursor | None = None

    def start(self) -> Cursor | None:
        """Go on behind the durable units; of a store that RocketMQ closed, behind the last of its units."""
        state = read_sealed(self.path, ConsumeQueueState)
        if state is not None:
            self.builder.ends = state.ends
            self.builder.cut_to_ends()
            self.end = state.cursor
            return state.cursor
        store = self.context.store_directory
        if was_clean_when_adopted(store) and self.builder.root.is_dir():
            complete_to = self.builder.adopt(Segments(store / "commitlog").offset_end)
            if complete_to:
                self.end = Cursor(self.context.store_id, 1, complete_to, 0)
                return self.end
        # Unknown units may be incomplete anywhere: all are written again, each at its own place.
        self.builder.cut_to_ends()
        return None

    def dispatch(self, batch: DispatchBatch) -> None:
        self.builder.dispatch(batch)
        self.end = batch.end

    def flush(self) -> Cursor | None:
        if self.end is not None:
            self.builder.flush()
            replace_durably(self.path, seal(ConsumeQueueState(self.end, self.builder.ends)))
        return self.end

    def truncate(self, cursor: Cursor) -> None:
        self.builder.truncate(cursor.commit_log_offset)
        self.end = cursor
        self.flush()

    def expire(self, commit_log_offset_min: int) -> None:
        self.builder.expire(commit_log_offset_min)

    def delete_topic(self, topic: str) -> None:
        self.builder.delete_topic(topic)
        self.flush()

    def close(self) -> None:
        self.builder.close()


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    return ConsumeQueueDispatcher(context)


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    return DispatcherDescription(
        reads="appended",
        after=("consume_queue_ext",),
        after_failed="proceed",
        store_folders=(FOLDER,),
    )
