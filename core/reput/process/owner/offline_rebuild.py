"""Rebuilding: dispatchers rebuild their views from the log, in processes of their own.

`rebuild` builds into another directory. It runs an ordinary process group with the same supervisor and loops, but its
ring never has a frame: the dispatchers read the log up to its end at the start, flush, and end. The store is only read.

`rebuild_in_place` asks the group of an open store to rebuild beside its running dispatchers, see `LiveRebuild`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from reput.errors import ConfigError, DamagedStore, DispatcherError, GroupUnreachable
from reput.process.control.control_messages import RebuiltView, Request
from reput.process.control.control_socket import await_reply, group_status
from reput.process.dispatcher.states import State
from reput.process.group.group_context import GroupContext
from reput.process.logs.exception_text import exception_message
from reput.process.owner.process_group import ProcessGroup
from reput.process.plugin.catalogue import select_dispatchers
from reput.process.plugin.external_views import described, refuse_elsewhere
from reput.ring import RingMemory, RingWriter
from reput.settings import Settings
from reput.store.log.segments import Segments
from reput.store.recovery.recreated_queues import RECREATED_QUEUES, seal_recreated_queues
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_store_id, require_store
from reput.store.state.recorded_settings import building_settings
from reput_hooks import replace_durably

__all__ = ["RebuildRow", "rebuild", "rebuild_in_place"]

RING_CAPACITY = 1 << 16
LOOK_S = 0.02
STATUS_INTERVAL_S = 0.2


class RebuildRow(msgspec.Struct, frozen=True):
    """One finished view.

    Attributes:
        records: number of records given to the view.
        bytes: size of these records in the log.
        seconds: from the start of the processes until the view was durable.
        target: the directory that holds it.
        swapped: whether it replaced the store's own view.
    """

    view: str
    records: int | None
    bytes: int
    seconds: float
    target: str
    swapped: bool


def rebuild(
    store_directory: Path,
    views: Sequence[str],
    target: Path,
    settings: Settings,
    *,
    force: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[RebuildRow]:
    """Rebuild *views* of a store side by side in *target*, laid out like a store; yield each when it is finished.

    Args:
        force: allow views that lie elsewhere; their dispatchers are told that it is a rehearsal.
        on_progress: called with view, bytes done and total bytes, a few dozen times a second.

    Raises:
        ConfigError: a view is unknown, its options are wrong, it lies elsewhere, or *target* already holds it.
        NotAStore: there is no log.
        DamagedStore: the log is damaged, and the damage was not accepted.
        DispatcherError: a dispatcher failed; the text says why.
    """
    from reput.store.recovery.log_end import find_log_end
    from reput.store.recovery.recovery import present_recreated_queues

    require_store(store_directory)
    store_directory, target = store_directory.resolve(), target.resolve()
    refuse_target(store_directory, target, views)
    refuse_elsewhere(described(select_dispatchers(views, settings.dispatcher_plugins), settings), force=force)
    segments = Segments(store_directory / "commitlog")
    begin, end = segments.offset_min, find_log_end(store_directory, segments)
    store_id = read_store_id(store_directory)
    recreated = present_recreated_queues(store_directory, segments, store_id)
    (target / "reput").mkdir(parents=True, exist_ok=True)
    if recreated:
        replace_durably(target / "reput" / RECREATED_QUEUES, seal_recreated_queues(recreated))
    memory = RingMemory.create(RING_CAPACITY, max(settings.dispatcher_count_max, len(views)))
    try:
        writer = RingWriter(
            memory,
            appended=end,
            durable=end,
            commit_log_offset_min=begin,
            epoch=read_epochs(store_directory, store_id).epoch,
            ordinal=0,
        )
        settings = building_settings(store_directory, msgspec.structs.replace(settings, dispatchers=tuple(views)))
        group = ProcessGroup(GroupContext(store_directory, store_id, settings, target), memory)
        try:
            started = time.monotonic()
            group.start()
            group.begin_drain()
            yield from finished_views(store_directory, group, begin, end, started, target, on_progress)
        finally:
            group.kill()
            writer.close()
    finally:
        memory.close()
    with contextlib.suppress(OSError):
        # Only the lock of the ended group is left in it.
        (target / "reput" / "group.lock").unlink()


def rebuild_in_place(
    store_directory: Path,
    views: Sequence[str],
    *,
    force: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[RebuildRow]:
    """Ask the group of an open store to rebuild *views* and swap them in.

    Args:
        force: allow views that lie elsewhere, which sends the whole log there again.
        on_progress: as in `rebuild`; also called for views that are rebuilt along with the requested ones.

    Raises:
        ConfigError: a view lies elsewhere, and *force* is not set.
        DispatcherError: no group runs, a view is not enabled, or could not be built. The old views remain.
    """

    def tell() -> None:
        # During the swap a group may answer late; only the reply to the request matters.
        status = None
        with contextlib.suppress(GroupUnreachable):
            status = group_status(store_directory)
        if status is None or on_progress is None or status.writer.appended is None:
            return
        begin = status.writer.commit_log_offset_min or 0
        for row in status.dispatchers:
            if row.rebuild_progress is not None:
                on_progress(row.name, row.rebuild_progress - begin, status.writer.appended - begin)

    asked = Request("rebuild", names=tuple(views), force=force)
    built = msgspec.json.decode(await_reply(store_directory, asked, tell, STATUS_INTERVAL_S), type=list[RebuiltView])
    target = str(store_directory.resolve())
    return [RebuildRow(row.view, row.records, row.bytes, row.seconds, target, swapped=True) for row in built]


def refuse_target(store_directory: Path, target: Path, views: Sequence[str]) -> None:
    """Refuse a target in which files would be overwritten or a view continued.

    Raises:
        ConfigError: it is the store itself, lies in it, or already holds one of the views.
    """
    if target == store_directory or store_directory in target.parents:
        raise ConfigError(
            f"the target lies in the store: target={target} store={store_directory}",
            "Name a directory outside of the store.",
        )
    for view in views:
        if (target / "reput" / "views" / view).exists():
            raise ConfigError(f"the target already holds this view: view={view} target={target}", "Name another one.")


def finished_views(
    store_directory: Path,
    group: ProcessGroup,
    begin: int,
    end: int,
    started: float,
    target: Path,
    on_progress: Callable[[str, int, int], None] | None,
) -> Iterator[RebuildRow]:
    """Yield each view when it is durable up to *end*.

    DamagedStore: a view stopped before damage of the log.
    DispatcherError: a view will never be durable, for another reason.
    """
    pause = threading.Event()
    waiting = list(group.members)
    while waiting:
        # Before looking at the views: a group that ended before makes no progress afterwards.
        ended = group.ended
        for view in list(waiting):
            cell = group.cell(view)
            if on_progress is not None:
                on_progress(view, (cell.progress or begin) - begin, end - begin)
            if (group.durable_cursor(view) or 0) >= end and cell.pid is None:
                waiting.remove(view)
                seconds = time.monotonic() - started
                yield RebuildRow(view, cell.ordinal_dispatched, end - begin, seconds, str(target), swapped=False)
            elif ended or State(cell.state or 0) in (State.FATAL, State.BROKEN):
                refuse_damage(store_directory, view, cell.progress, end)
                raise DispatcherError(
                    f"the view could not be built: view={view} progress={cell.progress} "
                    f"error={exception_message(cell.error)}",
                    f"See {target / 'reput' / 'log' / 'group.log'} for the details.",
                )
        pause.wait(LOOK_S)


def refuse_damage(store_directory: Path, view: str, progress: int | None, end: int) -> None:
    """Check whether a view ended before bytes of the log that are not a record.

    Raises:
        DamagedStore: it did.
    """
    from reput.store.log.log_scan import LogScan
    from reput.store.recovery.damage_list import accepted_damage
    from reput.store.recovery.log_walk import LogWalk

    if progress is None or progress >= end:
        return
    scan = LogScan(store_directory, passed_over=accepted_damage(store_directory), verify=True)
    if progress in scan.passed_over:
        return
    try:
        scan.locate(progress, end)
    except DamagedStore as error:
        walk = LogWalk(scan.segments)
        try:
            following = walk.find_record(progress + 1)
        finally:
            walk.close()
        raise DamagedStore(
            f"the log is damaged, so the view ends there: view={view} from={progress} "
            f"until={end if following is None else following} reason={error}",
            "See `reput check STORE` for what is damaged; then decide: `reput repair STORE --cut-at O` or `--accept "
            "FROM..UNTIL`.",
        ) from None
    finally:
        scan.close()
