"""GroupStatus: the status of a store for `reput status`: writer, a row per dispatcher, damage and settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import reput
from reput.process.control.dispatcher_row import DispatcherRow
from reput.store.recovery.found_damage import DamageRow, known_damage
from reput.store.state.lease_row import LeaseRow
from reput.store.state.store_lock import read_writer

__all__ = ["GroupStatus", "WriterRow", "status_of_group"]


class WriterRow(msgspec.Struct, frozen=True):
    """The writer, as `reput status` shows it; None: unknown.

    Attributes:
        appended, durable: commit-log offsets up to which records are readable, or forced to disk.
        epoch: number of the log's history.
        state: ``RUNNING``, ``READ_ONLY``, ``STOPPED`` or ``UNKNOWN``.
        reason: why the writer refuses messages, or a notice for operators.
    """

    pid: int | None
    appended: int | None
    durable: int | None
    commit_log_offset_min: int | None
    epoch: int | None
    state: str
    reason: str | None


class GroupStatus(msgspec.Struct, frozen=True):
    """The status of a whole group.

    Attributes:
        store_id: None if reput has never written the store.
        started: when the store was opened, ms since 1970; None: no process has it open for writing.
        waiting_delays: delayed messages not yet due, by delay level; None: unknown.
        half_messages: half messages of open transactions; None: unknown.
        statistics: the other fields of `reput.StoreStatistics`; None: the process that has it open was not asked.
        settings: those that decide what the store's bytes mean, by name; see `reput.store.state.recorded_settings`.
        damage: known damage in the log: damage that an operator has accepted, and damage that the writer's readers
            found and would find again.
        lease: this node's role under a lease; None: it has none, or the process was not asked.
        kernel: version of the kernel that the writer puts through; None: it uses no kernel, or there is no writer.
    """

    store: str
    store_id: str | None
    version: str
    started: int | None
    writer: WriterRow
    dispatchers: list[DispatcherRow]
    supervisor_pid: int | None = None
    waiting_delays: dict[int, int] | None = None
    half_messages: int | None = None
    statistics: dict[str, Any] | None = None
    damage: list[DamageRow] = []
    settings: dict[str, Any] = {}
    kernel: str | None = None
    lease: LeaseRow | None = None


def status_of_group(
    store_directory: Path,
    store_id: str | None,
    writer: WriterRow,
    dispatchers: Iterable[DispatcherRow],
    settings: dict[str, Any],
    *,
    started: int | None,
    supervisor_pid: int | None = None,
) -> GroupStatus:
    """Return the status of a store, whether a group runs or not, with its damage up to the writer's end.

    Args:
        settings: the meaning of the settings, by name.
    """
    claimed = None if started is None else read_writer(store_directory)
    return GroupStatus(
        store=str(store_directory),
        store_id=store_id,
        version=reput.__version__,
        started=started,
        writer=writer,
        dispatchers=list(dispatchers),
        supervisor_pid=supervisor_pid,
        damage=known_damage(store_directory, writer.appended),
        settings=settings,
        kernel=None if claimed is None else claimed.kernel,
    )
