"""rebuild on Spark: many executors build consume queues, their ext files and the key index from the log.

    consume_queue_ext   ranges ──▶ units ──▶ shuffled by queue, sorted by place ──▶ ext files and addresses of queues
    consume_queue       ranges ──▶ units ──▶ shuffled by queue, sorted by place ──▶ whole queues, with those addresses
    index               ranges ──▶ keys  ──▶ numbered, shuffled by file          ──▶ whole index files

The tasks use the dispatchers' builders, so the bytes are the same. As in a local rebuild, a view is durable before its
cursor is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.errors import ConfigError
from reput.settings import Settings
from reput.store.log.segments import Segments
from reput.store.recovery.log_end import find_log_end
from reput.store.recovery.recovery import present_recreated_queues
from reput.store.recovery.recreated_queues import recreation_offsets
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_store_id, require_store
from reput.store.state.recorded_settings import building_settings
from reput.store.state.topic_deletions import TopicDeletions, last_deletions
from reput_hooks import Cursor, replace_durably
from reput_plugins.spark_export.engine.rebuild_plan import Built, RebuildPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BuiltView", "rebuild"]


class BuiltView(msgspec.Struct, frozen=True):
    """One built view: the number of *records* it was built from, and *bytes* of the log.

    *refused*: (commit-log offset, reason) of each record that can have no unit.
    """

    view: str
    records: int
    bytes: int
    seconds: float
    target: str
    refused: list[tuple[int, str]]


def rebuild(
    store: Path,
    views: Sequence[str],
    target: Path,
    settings: Settings,
    on_progress: Callable[[str, int, int], None],
    *,
    split_bytes: int | None = None,
) -> Iterator[BuiltView]:
    """Build *views* of a store into *target*, laid out as a store; yield each when it is durable.

    Args:
        on_progress: called with the view, bytes done and total bytes.
        split_bytes: log bytes that one task reads.

    Raises:
        ConfigError: a view is not one that Spark builds.
        DispatcherError: Spark is not available, or failed.
        DamagedStore: the log is damaged, and the damage was not accepted.
        NotAStore: there is no log.
    """
    from reput_plugins.spark_export.engine.ext_building import build_ext
    from reput_plugins.spark_export.engine.index_building import build_index
    from reput_plugins.spark_export.engine.queue_building import build_queues
    from reput_plugins.spark_export.engine.ranges import SPLIT_BYTES, engine_session

    builders: dict[str, Callable[[SparkSession, RebuildPlan, Cursor], Built]] = {
        # First, because the queues refer to its units.
        "consume_queue_ext": build_ext,
        "consume_queue": build_queues,
        "index": build_index,
    }
    for view in views:
        if view not in builders:
            raise ConfigError(
                f"Spark does not build this view: view={view} built={','.join(builders)}",
                "Name the views to build, or use the local engine.",
            )
    require_store(store)
    store, target = store.resolve(), target.resolve()
    segments = Segments(store / "commitlog")
    begin, until = segments.offset_min, find_log_end(store, segments)
    deletions = last_deletions(TopicDeletions(store).following(begin))
    store_id = read_store_id(store)
    recreated_at = recreation_offsets(present_recreated_queues(store, segments, store_id))
    settings = building_settings(store, settings)
    plan = RebuildPlan(
        str(store), str(target), begin, until, settings, split_bytes or SPLIT_BYTES, deletions, recreated_at
    )
    end = Cursor(store_id, read_epochs(store, store_id).epoch, until, 0)
    with engine_session(settings.spark_options, f"rebuild {store}") as session:
        for view in sorted(views, key=list(builders).index):
            began = time.monotonic()
            on_progress(view, 0, until - begin)
            built = builders[view](session, plan, end)
            folder = target / "reput" / "views" / view
            folder.mkdir(parents=True, exist_ok=True)
            replace_durably(folder / "cursor", built.sealed_state)
            on_progress(view, until - begin, until - begin)
            yield BuiltView(view, built.records, until - begin, time.monotonic() - began, str(target), built.refused)
