"""An exporter for tests that kill it: the work of Spark's workers and driver, in one process, as fast as possible."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from reput.table import LogTable, TableOptions
from reput_plugins.spark_export import commit_pacer, follow, follow_job, spark_job, spark_session
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.parquet_files import lake_schema

__all__ = ["follow_to_the_end", "lake_of", "merge", "without_spark"]


@contextlib.contextmanager
def without_spark(task_count: int = 1) -> Iterator[None]:
    """Make `export` and `follow` do in this process what Spark would do, in *task_count* tasks for each range."""

    def run_job(session: Any, plan: Any, begin: int, until: int, on_progress: Any, **options: Any) -> None:
        log = LogTable(plan.store, plan.table)
        cuts = (log.next_record(begin + (until - begin) * part // task_count, until) for part in range(1, task_count))
        ranges = list(itertools.pairwise([begin, *cuts, until]))
        chosen = [pa.record_batch({"id": [number]}) for number in range(len(ranges))]
        written = [next(plan.write_chosen(ranges, iter([batch]))) for batch in chosen]
        plan.commit_ranges([pickle.loads(task["written"][0].as_py()) for task in written])

    with (
        patch.object(spark_job, "run_job", run_job),
        patch.object(spark_session, "spark_session", lambda *_, **__: contextlib.nullcontext()),
    ):
        yield


def lake_of(store: str, lake: str, lake_format: str = "delta") -> Lake:
    """Return the lake of a store, created if necessary."""
    from reput.store.state.epochs import read_epochs

    found = Lake(
        LakeLocation.of(lake, lake_format=lake_format), "export", read_epochs(Path(store), LogTable(store).store_id)
    )
    found.create(lake_schema(TableOptions().row_format), None)
    return found


class AtTheEnd(Exception):
    """The lake has the whole log."""


def follow_to_the_end(
    store: str,
    lake: str,
    lake_format: str,
    batch_bytes: int,
    merging: bool,
    tables: dict[str, Any] | None,
    begun: Any,
) -> None:
    """Follow a log up to its end, in transactions of *batch_bytes*; *merging*: maintain the lake after each."""

    def notice(done: int, total: int) -> None:
        if done == total:
            raise AtTheEnd

    begun.set()
    with contextlib.ExitStack() as small:
        small.enter_context(without_spark(2))
        small.enter_context(patch.object(commit_pacer, "BATCH_BYTES_MAX", batch_bytes))
        small.enter_context(patch.object(follow_job, "COMPACT_INTERVAL_MS", int(merging)))
        small.enter_context(contextlib.suppress(AtTheEnd))
        for _ in follow(store, lake, tables=tables, interval_ms=1, lake_format=lake_format, on_progress=notice):
            pass


def merge(lake: str, begun: Any) -> None:
    """Merge the files of a lake."""
    maintenance = Maintenance(LakeLocation.of(lake), interval_ms=1, vacuum_hours=0)
    begun.set()
    maintenance.run(lambda: None)
