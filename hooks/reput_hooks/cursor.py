"""Cursor: how far a view has taken in the commit log."""

from __future__ import annotations

import msgspec

__all__ = ["Cursor"]


class Cursor(msgspec.Struct, frozen=True, order=False):
    """A position in one history of one store's log.

    Attributes:
        store_id: 32 hex digits; the host refuses a cursor of another store.
        epoch: number of the log's history; a new one begins at each truncation, and when another program has written.
        commit_log_offset: the view has every record that begins below it, and no other.
        store_timestamp: of the last record below it, milliseconds since 1970 UTC; 0 before the first.
    """

    store_id: str
    epoch: int
    commit_log_offset: int
    store_timestamp: int
