"""DispatcherRow: what `reput status` shows of one dispatcher: from its cell while it runs, else from its files.

Unknown values are None.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

import msgspec

from reput.errors import DamagedStore, OffsetOutOfRange, StoreError
from reput.process.dispatcher.states import State
from reput.process.frames.protocols import CursorNumbers, FrameHeader
from reput.process.plugin.catalogue import CatalogueEntry, installed_dispatchers
from reput.process.system.memory import anonymous_memory
from reput.process.views.dead_letters import DeadLetters
from reput.process.views.gaps import Gaps
from reput.store.log.segments import Segments
from reput.store.record.layout import BLANK_MAGIC_CODE, BLANK_SIZE_MIN, MAGIC_CODE_AT, STORE_TIMESTAMP_END_MAX
from reput.store.record.record import store_timestamp_of
from reput.store.recovery.damage_list import accepted_damage, accepted_end
from reput.store.recovery.found_damage import is_whole

__all__ = ["UNKNOWN", "DispatcherRow", "StatusCell", "dispatcher_row", "stopped_row", "store_timestamp_at"]

# State of a dispatcher whose group runs and cannot be asked.
UNKNOWN = "UNKNOWN"


class DispatcherRow(msgspec.Struct, frozen=True):
    """One dispatcher; None: unknown.

    Attributes:
        plugin: name of the entry point that creates it; the dispatcher's own unless the configuration sets another.
        state: docs/operators.md has the list.
        progress, durable_cursor: commit-log offsets up to which the view is readable, and survives a power cut.
        lag_bytes, lag_messages: records not yet dispatched.
        lag_seconds: age of the oldest of them.
        lapped_count: how often it was too slow for the ring and continued from the log.
        gap_bytes: log bytes that retention removed before the view had them.
        rejected_count: records in the dead-letter file.
        backstop_count: wake-ups by a timer that found work; each is a bug in reput.
        heartbeat_age_ms: time since the dispatcher last showed that it runs.
        rss_bytes: anonymous resident memory of the process.
        rebuild_progress: progress of the view that is being rebuilt beside this one; None: no rebuild is running.
        error: the last error; None: none since the last successful start. During a rebuild: the reason for it.
        counters: the plugin's own numbers, by name.
    """

    name: str
    plugin: str
    distribution: str | None
    version: str | None
    pid: int | None
    state: str
    progress: int | None
    durable_cursor: int | None
    lag_bytes: int | None
    lag_messages: int | None
    lag_seconds: float | None
    restart_count: int | None
    lapped_count: int | None
    gap_bytes: int | None
    rejected_count: int | None
    backstop_count: int | None
    heartbeat_age_ms: int | None
    rss_bytes: int | None
    error: str | None
    counters: dict[str, int]
    rebuild_progress: int | None


class StatusCell(Protocol):
    """The numbers of a cell, as `reput.ring.cell.CellView`."""

    @property
    def state(self) -> int | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def progress(self) -> int | None: ...
    @property
    def durable_cursor(self) -> CursorNumbers | None: ...
    @property
    def ordinal_dispatched(self) -> int | None: ...
    @property
    def restart_count(self) -> int: ...
    @property
    def lapped_count(self) -> int: ...
    @property
    def gap_bytes(self) -> int: ...
    @property
    def rejected_count(self) -> int: ...
    @property
    def backstop_count(self) -> int: ...
    @property
    def heartbeat_ns(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def counters(self) -> dict[str, int]: ...


def dispatcher_row(
    entry: CatalogueEntry,
    cell: StatusCell,
    header: FrameHeader,
    store_directory: Path,
    rebuild_progress: int | None = None,
) -> DispatcherRow:
    """Return the current row of one dispatcher."""
    name = entry.name
    # Read the dispatcher's numbers before the writer's, so that a lag is never negative.
    ordinal_dispatched, progress, durable = cell.ordinal_dispatched, cell.progress, cell.durable_cursor
    ordinal, appended = header.ordinal, header.appended
    pid, heartbeat, state = cell.pid, cell.heartbeat_ns, cell.state
    lag_bytes = lag_messages = lag_seconds = None
    if appended is not None and progress is not None:
        lag_bytes = max(0, appended - progress)
        if lag_bytes == 0:
            lag_messages, lag_seconds = 0, 0.0
        else:
            oldest = store_timestamp_at(store_directory, progress)
            lag_seconds = None if oldest is None else max(0.0, time.time() - oldest / 1000)
            if ordinal is not None and ordinal_dispatched is not None:
                lag_messages = max(0, ordinal - ordinal_dispatched)
    # The cell of a dispatcher that has not run since the writer started is empty; read its files instead.
    return DispatcherRow(
        name=name,
        plugin=entry.plugin,
        distribution=entry.distribution,
        version=entry.version,
        pid=pid,
        state=(State.STOPPED if state is None else State(state)).name,
        progress=progress,
        durable_cursor=None if durable is None else durable.commit_log_offset,
        lag_bytes=lag_bytes,
        lag_messages=lag_messages,
        lag_seconds=lag_seconds,
        restart_count=cell.restart_count,
        lapped_count=cell.lapped_count,
        gap_bytes=cell.gap_bytes if heartbeat is not None else Gaps(store_directory, name).size,
        rejected_count=cell.rejected_count if heartbeat is not None else len(DeadLetters(store_directory, name)),
        backstop_count=cell.backstop_count,
        heartbeat_age_ms=None if heartbeat is None else max(0, time.monotonic_ns() - heartbeat) // 1_000_000,
        rss_bytes=None if pid is None else anonymous_memory(pid),
        error=cell.error,
        counters=cell.counters,
        rebuild_progress=rebuild_progress,
    )


def stopped_row(
    segments: Segments,
    store_directory: Path,
    name: str,
    plugin: str,
    durable_cursor: int | None,
    clean_end: int | None,
    unreachable: str | None,
) -> DispatcherRow:
    """Return the row of a dispatcher that has no cell, from its files.

    Args:
        durable_cursor: as the store noted it last; None: it noted none.
        clean_end: end of the log at the last clean close, up to which the lag is known; None: there was a kill.
        unreachable: why the group that runs the dispatcher cannot be asked; None: it does not run.
    """
    entry = installed_dispatchers().get(plugin)
    if entry is not None and entry.rivals:
        # Which of them would run is not known.
        entry = None
    lag_bytes = None if durable_cursor is None or clean_end is None else max(clean_end - durable_cursor, 0)
    error = damage_where(segments, store_directory, durable_cursor) if lag_bytes and durable_cursor else None
    dead_letters, gaps = DeadLetters(store_directory, name), Gaps(store_directory, name)
    damaged_lines = [*dead_letters.damaged_lines(), *gaps.damaged_lines]
    return DispatcherRow(
        name=name,
        plugin=plugin,
        distribution=entry.distribution if entry else None,
        version=entry.version if entry else None,
        pid=None,
        state=State.STOPPED.name if unreachable is None else UNKNOWN,
        progress=None,
        durable_cursor=durable_cursor,
        lag_bytes=lag_bytes,
        lag_messages=None,
        lag_seconds=None,
        restart_count=None,
        lapped_count=None,
        gap_bytes=gaps.size,
        rejected_count=len(dead_letters),
        backstop_count=None,
        heartbeat_age_ms=None,
        rss_bytes=None,
        error=unreachable or error or (str(damaged_lines[0]) if damaged_lines else None),
        counters={},
        rebuild_progress=None,
    )


def store_timestamp_at(store_directory: Path, commit_log_offset: int) -> int | None:
    """Return the store time of the first record at or after the offset, ms since 1970; None if none can be read."""
    try:
        segments = Segments(store_directory / "commitlog")
        for _ in range(2):
            segment = segments.find(commit_log_offset)
            if segment is None:
                return None
            size = min(STORE_TIMESTAMP_END_MAX, segment.begin + segment.size - commit_log_offset)
            head = segments.read(commit_log_offset, size)
            if int.from_bytes(head[MAGIC_CODE_AT:BLANK_SIZE_MIN], "big") != BLANK_MAGIC_CODE:
                return store_timestamp_of(head)
            commit_log_offset = segment.end
    except (StoreError, OSError):
        # Retention may remove the segment during the read.
        return None
    return None


def damage_where(segments: Segments, store_directory: Path, commit_log_offset: int) -> str | None:
    """Return what is wrong with the log where a view has ended, None if nothing is, or an operator has accepted it."""
    try:
        magic_code = int.from_bytes(segments.read(commit_log_offset, BLANK_SIZE_MIN)[MAGIC_CODE_AT:], "big")
    except (DamagedStore, OffsetOutOfRange):
        magic_code = 0
    accepted = accepted_end(accepted_damage(store_directory), commit_log_offset)
    if magic_code == BLANK_MAGIC_CODE or accepted is not None:
        return None
    if is_whole(segments, commit_log_offset):
        return None
    return f"the log is damaged where the view ends: commit_log_offset={commit_log_offset}"
