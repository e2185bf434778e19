"""Ledger: a dispatcher that reads only durable records, and checks that they stay durable.

Its view is the list of all records, in one file with the cursor. Records that it has seen must never be lost.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from reput.store.disk.files import Files
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.disk.shortages import retry_on_shortage
from reput_hooks import CommitLogDispatcher, Cursor, DispatchBatch, DispatcherContext, DispatcherDescription

__all__ = ["DESCRIPTION", "Ledger"]

DESCRIPTION = DispatcherDescription(reads="durable")


class LedgerFile(msgspec.Struct):
    """Commit-log offset, size and queue offset of each record, and where they end."""

    cursor: Cursor
    records: list[tuple[int, int, int]]


class Ledger(CommitLogDispatcher):
    """*complain* is called with violations of the store."""

    def __init__(self, context: DispatcherContext, files: Files, complain: Callable[[str], None]) -> None:
        self.path = context.directory / "ledger"
        self.files = files
        self.complain = complain
        self.end: Cursor | None = None
        self.records: list[tuple[int, int, int]] = []

    def start(self) -> Cursor | None:
        saved = read_sealed(self.path, LedgerFile)
        if saved is not None:
            self.end, self.records = saved.cursor, saved.records
        return self.end

    def dispatch(self, batch: DispatchBatch) -> None:
        if self.end is not None and batch.commit_log_offset != self.end.commit_log_offset:
            self.complain(f"a batch leaves a gap: begin={batch.commit_log_offset} end={self.end.commit_log_offset}")
        for request in batch:
            if self.records and request.commit_log_offset < sum(self.records[-1][:2]):
                self.complain(f"a record comes again: commit_log_offset={request.commit_log_offset}")
            self.records.append((request.commit_log_offset, request.record_size, request.queue_offset))
        self.end = batch.end

    def flush(self) -> Cursor | None:
        if self.end is not None:
            with retry_on_shortage("the ledger cannot be written"):
                self.files.replace(self.path, seal(LedgerFile(self.end, self.records)))
        return self.end

    def truncate(self, cursor: Cursor) -> None:
        assert self.end is not None
        if self.records and sum(self.records[-1][:2]) > cursor.commit_log_offset:
            self.complain(
                f"what was durable is taken back: from={cursor.commit_log_offset} until={self.end.commit_log_offset}"
            )
        self.end = cursor

    def expire(self, commit_log_offset_min: int) -> None:
        """The list stays complete."""
