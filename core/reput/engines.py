"""Engines: who else can do the store's bulk work, found by entry point and imported when one is asked for.

An engine has ``check_store(store, settings, on_progress)`` and ``rebuild(store, views, target, settings,
on_progress)``; what they give is what the local engine gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import ConfigError

if TYPE_CHECKING:
    from reput.process.owner.offline_rebuild import RebuildRow
    from reput.settings import Settings

__all__ = ["LOCAL", "find_engine", "rebuild_with"]

ENTRY_POINT_GROUP = "reput.engines"
LOCAL = "local"


def find_engine(name: str) -> Any:
    """Return the engine of that name, which a plugin brings.

    Raises:
        ConfigError: none does.
    """
    # Here, because most commands have no use for it.
    from importlib import metadata

    points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    for point in points.select(name=name):
        return point.load()
    raise ConfigError(
        f"no such engine is installed: engine={name} installed={','.join((LOCAL, *sorted(points.names)))}"
    )


def rebuild_with(engine: Any) -> Any:
    """Return `reput.process.owner.offline_rebuild.rebuild`, with the work done by *engine*."""
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
    """Put the records that *view* could not take with its dead letters, as its dispatcher does."""
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
