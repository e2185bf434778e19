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
from reput_plugins.spark_export import export_job, spark_job, spark_session
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sink import SinkPlan, commit_ranges, write_ranges
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.parquet_files import lake_schema

__all__ = ["export_log", "export_typed", "lake_of", "merge", "without_spark"]


@contextlib.contextmanager
def without_spark() -> Iterator[None]:
    """Make `export` do in this process what Spark would do."""

    def run_job(session: Any, plan: Any, begin: int, until: int, on_progress: Any, **options: Any) -> None:
        (written,) = plan.write_chosen([(begin, until)], iter([pa.record_batch({"id": [0]})]))
        plan.commit_ranges([pickle.loads(written["written"][0].as_py())])

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


def export_log(store: str, lake: str, lake_format: str, batch_bytes: int, merging: bool, begun: Any) -> None:
    """Bring a lake up to the log's end, in batches of two tasks; *merging*: merge its files after each batch."""
    log, target = LogTable(store), lake_of(store, lake, lake_format)
    plan = SinkPlan(store, target.location, "export", TableOptions()).of_table()
    maintenance = Maintenance(target.location, interval_ms=1, vacuum_hours=0)
    begun.set()
    begin, end = target.committed(open_table(target.location)) or 0, log.find_durable_end()
    while begin < end:
        cuts = [begin, *(log.next_record(begin + part * batch_bytes // 2, end) for part in (1, 2))]
        tasks = [
            write_ranges(plan, iter([pa.record_batch({"begin": [low], "until": [high]})]))
            for low, high in itertools.pairwise(cuts)
            if low < high
        ]
        commit_ranges(plan, tasks)
        begin = cuts[-1]
        if merging:
            maintenance.run(lambda: None)


def export_typed(store: str, lake: str, tables: dict[str, Any], batch_bytes: int, lake_format: str, begun: Any) -> None:
    """Bring typed tables up to the log's end, in batches, and merge their files after each."""
    begun.set()
    with without_spark():
        log = LogTable(store)
        end = log.find_durable_end()
        at = 0
        while at < end:
            until = log.next_record(at + batch_bytes, end)
            at = export_job.export(store, lake, tables=tables, until=until, lake_format=lake_format).until


def merge(lake: str, begun: Any) -> None:
    """Merge the files of a lake."""
    maintenance = Maintenance(LakeLocation.of(lake), interval_ms=1, vacuum_hours=0)
    begun.set()
    maintenance.run(lambda: None)
