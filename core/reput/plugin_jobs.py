"""Plugin jobs: work on a whole store that plugins bring, found by entry point and imported when a command needs it.

    group           an entry                               what the plugin brings
    reput.exports   delta, delta_follow                    a function that copies the log into a table
                    delta_check                            a function that compares such a table with the log
                    delta_optimize, delta_vacuum           a function that merges or removes files of such a table
    reput.engines   spark                                  another engine for `check` and `rebuild`

An engine has ``check_store(store, settings, on_progress)`` and ``rebuild(store, views, target, settings,
on_progress)``; their results are those of the local engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import ConfigError, DispatcherError

if TYPE_CHECKING:
    from reput.process.owner.offline_rebuild import RebuildRow
    from reput.settings import Settings

__all__ = [
    "DELTA",
    "DELTA_CHECK",
    "DELTA_FOLLOW",
    "DELTA_OPTIMIZE",
    "DELTA_VACUUM",
    "LOCAL",
    "find_engine",
    "find_export",
    "rebuild_with",
]

EXPORTS = "reput.exports"
DELTA = "delta"
DELTA_FOLLOW = "delta_follow"
DELTA_CHECK = "delta_check"
DELTA_OPTIMIZE = "delta_optimize"
DELTA_VACUUM = "delta_vacuum"

ENGINES = "reput.engines"
LOCAL = "local"


def find_export(name: str) -> Any:
    """Return the export of that name.

    Raises:
        DispatcherError: no installed plugin has it.
    """
    export, _ = find_job(EXPORTS, name)
    if export is None:
        raise DispatcherError(f"no such export is installed: export={name}", "Install reput with its plugins again.")
    return export


def find_engine(name: str) -> Any:
    """Return the engine of that name.

    Raises:
        ConfigError: no installed plugin has it.
    """
    engine, installed = find_job(ENGINES, name)
    if engine is None:
        raise ConfigError(f"no such engine is installed: engine={name} installed={','.join((LOCAL, *installed))}")
    return engine


def find_job(group: str, name: str) -> tuple[Any, list[str]]:
    """Return the job *name* of an entry-point group, None if it is not installed; and the names that are."""
    # Imported here, because most commands do not need it.
    from importlib import metadata

    points = metadata.entry_points(group=group)
    for point in points.select(name=name):
        return point.load(), sorted(points.names)
    return None, sorted(points.names)


def rebuild_with(engine: Any) -> Any:
    """Return `reput.process.owner.offline_rebuild.rebuild`, with *engine* doing the work."""
    from reput.process.owner.offline_rebuild import RebuildRow, refuse_target
    from reput.process.plugin.catalogue import select_dispatchers

    def rebuild(
        store_directory: Path,
        views: Sequence[str],
        target: Path,
        settings: Settings,
        *,
        on_progress: Callable[[str, int, int], None],
    ) -> Iterator[RebuildRow]:
        refuse_target(store_directory.resolve(), target.resolve(), views)
        select_dispatchers(views, settings.dispatcher_plugins)
        for built in engine.rebuild(store_directory, views, target, settings, on_progress):
            keep_refused(store_directory, target, built.view, built.refused)
            yield RebuildRow(built.view, built.records, built.bytes, built.seconds, built.target, swapped=False)

    return rebuild


def keep_refused(store_directory: Path, target: Path, view: str, refused: Sequence[tuple[int, str]]) -> None:
    """Add the records that the engine rejected for *view* to its dead letters, as its dispatcher does."""
    if not refused:
        return
    from reput.process.views.dead_letters import DeadLetter, DeadLetters
    from reput.store.log.segments import Segments
    from reput.store.record.record import decode_record
    from reput.store.state.epochs import read_epochs
    from reput.store.state.identity import read_store_id

    segments = Segments(store_directory / "commitlog")
    epoch = read_epochs(store_directory, read_store_id(store_directory)).epoch
    letters = DeadLetters(target, view)
    for commit_log_offset, reason in refused:
        size = int.from_bytes(segments.read(commit_log_offset, 4), "big")
        data = segments.read(commit_log_offset, size)
        record = decode_record(data)
        letters.add(
            DeadLetter(
                timestamp=time.time_ns() // 1_000_000,
                epoch=epoch,
                commit_log_offset=commit_log_offset,
                record_size=size,
                topic=record.topic,
                queue_id=record.queue_id,
                queue_offset=record.queue_offset,
                reason=reason,
                record=bytes(data),
            )
        )
