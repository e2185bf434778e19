"""RetriedBatch: a batch, or the rest of one, that the plugin gets again after `RetryLater`."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from reput.errors import DispatcherError
from reput.process.frames.frame import cut_columns
from reput_hooks import Cursor, DispatchBatch

__all__ = ["RetriedBatch", "rest_of"]


class RetriedBatch(NamedTuple):
    """A batch to dispatch again at *at* (monotonic seconds)."""

    batch: DispatchBatch
    ordinal: int | None
    at: float


def rest_of(batch: DispatchBatch, until: object, name: str) -> DispatchBatch:
    """Return the part of *batch* behind *until*; the plugin has accepted the part before it.

    Raises:
        DispatcherError: *until* is not the end of a record in the batch.
    """
    place = until.commit_log_offset if isinstance(until, Cursor) and until.store_id == batch.end.store_id else None
    if place is None or not batch.commit_log_offset <= place < batch.end.commit_log_offset:
        raise DispatcherError(
            f"RetryLater takes a cursor in the batch, before its end: dispatcher={name} until={until!r:.200} "
            f"begin={batch.commit_log_offset} end={batch.end.commit_log_offset}",
            "Make it with `batch.cursor_behind(request)`; return if the whole batch was taken in.",
        )
    parts = [cut_columns(part, place, batch.end.commit_log_offset, len(part)).columns for part in batch.parts]
    rest = DispatchBatch(place, batch.end, [part for part in parts if len(part)])
    behind = itertools.takewhile(lambda request: request.commit_log_offset < place, batch)
    if any(request.commit_log_offset + request.record_size > place for request in behind):
        raise DispatcherError(
            f"RetryLater takes a cursor at the end of a record: dispatcher={name} until={place}",
            "Make it with `batch.cursor_behind(request)`.",
        )
    return rest
