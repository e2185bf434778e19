"""stopped_status: the status of a store whose process group does not run, or cannot be asked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.errors import GroupUnreachable
from reput.process.control.control_socket import group_status
from reput.process.control.dispatcher_row import UNKNOWN, stopped_row
from reput.process.control.group_status import GroupStatus, WriterRow, status_of_group
from reput.process.dispatcher.states import State
from reput.settings import LoadedSettings, Settings
from reput.store.disk.files import Clock
from reput.store.log.segments import Segments
from reput.store.recovery.log_end import find_log_end
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors, read_dispatcher_plugins
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_identity, read_store_id
from reput.store.state.recorded_settings import meaning_on_disk
from reput.store.state.store_checkpoint import ahead_of_clock, read_checkpoint
from reput.store.state.store_lock import StoreLock

__all__ = ["as_run_last", "stopped_status"]

# Settings that determine which dispatchers run.
CHOICE = frozenset({"dispatchers", "message_index_enable", "enable_consume_queue_ext"})


def as_run_last(store_directory: Path, loaded: LoadedSettings) -> Settings:
    """Return the settings with the dispatchers of the store's last opening, unless the settings name others.

    Raises:
        DamagedStore: the store's record cannot be read.
    """
    names = () if loaded.explicit & CHOICE else tuple(read_dispatcher_cursors(store_directory))
    if not names:
        return loaded.settings
    plugins = read_dispatcher_plugins(store_directory) | loaded.settings.dispatcher_plugins
    return msgspec.structs.replace(loaded.settings, dispatchers=names, dispatcher_plugins=plugins)


def stopped_status(store_directory: Path, settings: Settings) -> GroupStatus:
    """Return the status of a store's group if one runs, otherwise the status on disk.

    In the latter case the dispatchers' state is ``STOPPED``, or ``UNKNOWN`` with the reason if the group cannot be
    asked.

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
    # A writer without a reachable group: another user's, one with mode="inline", or RocketMQ.
    lock = StoreLock.look(store_directory)
    # The record of the last close does not apply to running dispatchers.
    cursors = read_dispatcher_cursors(store_directory) if unreachable is None else {}
    end = find_log_end(store_directory, segments)
    return status_of_group(
        store_directory,
        None if identity is None else identity.store_id,
        WriterRow(
            pid=lock.pid,
            appended=end,
            durable=epochs.clean_end,
            commit_log_offset_min=segments.offset_min,
            epoch=epochs.epoch,
            state={False: State.STOPPED.name, True: State.RUNNING.name, None: UNKNOWN}[lock.held],
            reason=unreachable
            or ahead_of_clock(read_checkpoint(store_directory).physic_msg_timestamp, Clock().now_ms()),
        ),
        [
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
        meaning_on_disk(store_directory, settings),
        started=None,
    )
