"""DispatcherHost: a store whose dispatchers are run by a test, batch by batch, with restarts and cuts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from reput.settings import Settings
from reput.store.log.log_scan import LogScan
from reput.store.record.delay_level import DelayHistory
from reput.store.state.identity import read_store_id
from reput_hooks import Cursor, DispatchBatch, DispatchColumns, DispatchRequest, Record
from reput_hooks.dispatch import ROW_SIZE

__all__ = ["Context", "cut_into_batches", "log_batch", "view_bytes"]


class Number:
    """A counter of a dispatcher."""

    value = 0


class Log:
    """Whole records of a store."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def read(self, request: DispatchRequest) -> Record:
        scan = LogScan(self.store)
        try:
            return scan.read(request.commit_log_offset, request.record_size)
        finally:
            scan.close()

    def read_many(self, batch: Iterable[DispatchRequest]) -> list[Record]:
        return [self.read(request) for request in batch]


class Context:
    """The host's context for the dispatcher *name*, which builds a view of *store* below *root*.

    Attributes:
        rejected: (commit-log offset, reason) of each dead letter.
    """

    def __init__(self, name: str, store: Path, root: Path, settings: Settings) -> None:
        self.name = name
        self.root = root
        self.directory = root / "reput" / "views" / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.options = None
        self.rehearsal = False
        self.settings: Mapping[str, Any] = msgspec.structs.asdict(settings)
        self.store_directory = store
        self.store_id = read_store_id(store)
        self.log = Log(store)
        self.logger = logging.getLogger(f"reput.dispatcher.{name}")
        self.counters: dict[str, Number] = {}
        self.rejected: list[tuple[int, str]] = []

    def folder(self, name: str) -> Path:
        return self.root / name

    def counter(self, name: str) -> Number:
        return self.counters.setdefault(name, Number())

    def reject(self, request: DispatchRequest, reason: str) -> None:
        self.rejected.append((request.commit_log_offset, reason))

    def alive(self) -> None:
        """There is no time limit."""


def log_batch(
    store: Path,
    begin: int | None = None,
    until: int | None = None,
    *,
    needs_properties: bool = False,
    settings: Settings | None = None,
) -> DispatchBatch:
    """Return all requests of a store's log from *begin* on as one batch of several parts, up to the end of the data.

    *until*: only records that begin below.
    """
    history = DelayHistory([(0, settings.message_delay_level)]) if settings else None
    scan = LogScan(store, needs_properties=needs_properties, delay_history=history)
    try:
        at = first = scan.offset_min if begin is None else begin
        limit = scan.segments.offset_end if until is None else until
        parts: list[DispatchColumns] = []
        timestamp = 0
        while at < limit and has_record(scan, at):
            scanned = scan.scan(at, limit, 1 << 16)
            if len(scanned.columns):
                parts.append(scanned.columns)
                timestamp = scanned.store_timestamp
            at = scanned.end
    finally:
        scan.close()
    return DispatchBatch(first, Cursor(read_store_id(store), 1, at, timestamp), parts)


def has_record(scan: LogScan, commit_log_offset: int) -> bool:
    """Tell whether the log has data at this offset: a record or a blank begins with its size."""
    segment = scan.segments.find(commit_log_offset)
    return segment is not None and scan.segments.read(commit_log_offset, 4) != bytes(4)


def cut_into_batches(batch: DispatchBatch, sizes: Iterator[int]) -> Iterator[DispatchBatch]:
    """Split *batch* into batches with the numbers of records in *sizes*."""
    rows, queues, texts = batch.columns()
    text_ends = rows["texts_size"].cumsum()
    at = 0
    begin = batch.commit_log_offset
    while at < len(rows):
        count = min(next(sizes), len(rows) - at)
        chosen = rows[at : at + count]
        text_begin = int(text_ends[at - 1]) if at else 0
        at += count
        last = at == len(rows)
        end = batch.end.commit_log_offset if last else int(chosen["commit_log_offset"][-1] + chosen["record_size"][-1])
        cursor = Cursor(batch.end.store_id, batch.end.epoch, end, int(chosen["store_timestamp"][-1]))
        data = chosen.tobytes()
        assert len(data) == count * ROW_SIZE
        yield DispatchBatch(begin, cursor, [DispatchColumns(queues, data, texts[text_begin : int(text_ends[at - 1])])])
        begin = end


def view_bytes(folder: Path) -> dict[str, bytes]:
    """Return path → bytes of every file of a view."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
