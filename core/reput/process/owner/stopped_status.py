"""stopped_status: what `reput status` shows of a store whose process group does not run, or cannot be asked."""

from __future__ import annotations

from pathlib import Path

import msgspec

import reput
from reput.errors import DamagedStore, GroupUnreachable, OffsetOutOfRange
from reput.process.control.control_messages import GroupStatus, WriterRow
from reput.process.control.control_socket import group_status
from reput.process.control.dispatcher_row import DispatcherRow
from reput.process.dispatcher.states import State
from reput.process.plugin.catalogue import installed_dispatchers
from reput.process.views.dead_letters import DeadLetters
from reput.process.views.gaps import Gaps
from reput.settings import LoadedSettings, Settings
from reput.store.disk.files import Clock
from reput.store.log.segments import Segments
from reput.store.record.layout import BLANK_MAGIC_CODE, BLANK_SIZE_MIN
from reput.store.recovery.damage_list import accepted_damage, accepted_end
from reput.store.recovery.found_damage import is_whole, known_damage
from reput.store.recovery.log_end import find_log_end
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors, read_dispatcher_plugins
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_identity, read_store_id
from reput.store.state.recorded_settings import meaning_on_disk
from reput.store.state.store_checkpoint import ahead_of_clock, read_checkpoint
from reput.store.state.store_lock import StoreLock

__all__ = ["UNKNOWN", "as_run_last", "stopped_status"]

# State of a dispatcher whose group runs and cannot be asked.
UNKNOWN = "UNKNOWN"
# Of a record or a blank, behind its size.
MAGIC_SIZE = 4


# Of the settings, what says which dispatchers run.
CHOICE = frozenset({"dispatchers", "message_index_enable", "enable_consume_queue_ext"})


def as_run_last(store_directory: Path, loaded: LoadedSettings) -> Settings:
    """Return the settings with the dispatchers that the store had when it was open last, unless others were given.

    Raises:
        DamagedStore: the store's record cannot be read.
    """
    names = () if loaded.explicit & CHOICE else tuple(read_dispatcher_cursors(store_directory))
    if not names:
        return loaded.settings
    plugins = read_dispatcher_plugins(store_directory) | loaded.settings.dispatcher_plugins
    return msgspec.structs.replace(loaded.settings, dispatchers=names, dispatcher_plugins=plugins)


def stopped_status(store_directory: Path, settings: Settings) -> GroupStatus:
    """Return the status of a store's group if one runs, else what is on disk.

    The dispatchers' state is then ``STOPPED``, or ``UNKNOWN`` with the reason where a group runs and cannot be asked.

    Raises:
        NotAStore: the directory holds no commit log.
    """
    unreachable: str | None = None
    try:
        status = group_status(store_directory)
        if status is not None:
            return status
    except GroupUnreachable as error:
        unreachable = str(error)
    segments = Segments(store_directory / "commitlog")
    identity = read_identity(store_directory)
    epochs = read_epochs(store_directory, read_store_id(store_directory))
    # A writer without a group that can be asked: another user's, one with mode="inline", or RocketMQ.
    lock = StoreLock.look(store_directory)
    # What was noted at the last close says nothing of dispatchers that run.
    cursors = read_dispatcher_cursors(store_directory) if unreachable is None else {}
    end = find_log_end(store_directory, segments)
    return GroupStatus(
        store=str(store_directory),
        store_id=None if identity is None else identity.store_id,
        version=reput.__version__,
        started=None,
        writer=WriterRow(
            pid=lock.pid,
            appended=end,
            durable=epochs.clean_end,
            commit_log_offset_min=segments.offset_min,
            epoch=epochs.epoch,
            state={False: State.STOPPED.name, True: State.RUNNING.name, None: UNKNOWN}[lock.held],
            reason=unreachable
            or ahead_of_clock(read_checkpoint(store_directory).physic_msg_timestamp, Clock().now_ms()),
        ),
        dispatchers=[
            stopped_row(
                segments,
                store_directory,
                name,
                settings.dispatcher_plugins.get(name, name),
                cursors.get(name),
                epochs.clean_end,
                unreachable,
            )
            for name in settings.dispatchers
        ],
        damage=known_damage(store_directory, end),
        settings=meaning_on_disk(store_directory, settings),
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
    """Return the row of a dispatcher of which only files are there; *durable_cursor* as it was noted last.

    *unreachable* says why the group that runs it cannot be asked; None: it does not run.

    After a close that was the end of it: what it is behind by, up to *clean_end*, is known. After a kill it is not.
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


def damage_where(segments: Segments, store_directory: Path, commit_log_offset: int) -> str | None:
    """Return what is wrong with the log where a view has ended, None if nothing is, or an operator has accepted it."""
    try:
        magic_code = int.from_bytes(segments.read(commit_log_offset, BLANK_SIZE_MIN)[-MAGIC_SIZE:], "big")
    except (DamagedStore, OffsetOutOfRange):
        magic_code = 0
    accepted = accepted_end(accepted_damage(store_directory), commit_log_offset)
    if magic_code == BLANK_MAGIC_CODE or accepted is not None:
        return None
    if is_whole(segments, commit_log_offset):
        return None
    return f"the log is damaged where the view ends: commit_log_offset={commit_log_offset}"
