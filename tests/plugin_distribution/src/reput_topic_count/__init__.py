"""Count messages per topic. Cursor and totals are one file, replaced as a whole, so a replay counts nothing twice."""

from __future__ import annotations

from collections import Counter

import msgspec

from reput_hooks import CommitLogDispatcher, Cursor, DispatchBatch, DispatcherContext, hookimpl, replace_durably

__all__ = ["Saved", "TopicCount", "reput_create_dispatcher"]


class Saved(msgspec.Struct):
    """The content of the file: the number of records per topic below the cursor."""

    cursor: Cursor | None
    count: dict[str, int]


class TopicCount(CommitLogDispatcher):
    """The counts in memory, and the file with the counts of the last flush."""

    def __init__(self, context: DispatcherContext) -> None:
        self.file = context.directory / "topic_count.json"
        saved = msgspec.json.decode(self.file.read_bytes(), type=Saved) if self.file.exists() else Saved(None, {})
        self.count = Counter(saved.count)
        self.end = saved.cursor

    def start(self) -> Cursor | None:
        """Return the cursor that was saved with the counts."""
        return self.end

    def dispatch(self, batch: DispatchBatch) -> None:
        """Count the batch."""
        self.count.update(request.topic for request in batch)
        self.end = batch.end

    def flush(self) -> Cursor | None:
        """Save counts and cursor together."""
        replace_durably(self.file, msgspec.json.encode(Saved(self.end, self.count)))
        return self.end


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> TopicCount:
    """Return the dispatcher of this process."""
    return TopicCount(context)
