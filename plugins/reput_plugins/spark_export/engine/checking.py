"""check_store on Spark: executors verify the log range by range, and the driver walks over their results.

Executors compare the records with the views as well, and send only what a range proves about the whole: a few of its
records. The driver itself reads the ranges that prove nothing, so the report equals the local engine's. Executors
verify the next waves of ranges meanwhile.
"""

from __future__ import annotations

import functools
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from reput.settings import Settings
from reput.store.check.check import check_store as check_store_here
from reput.store.check.verified_range import RangePlan, verify_range
from reput.store.recovery.check_report import CheckReport
from reput.store.recovery.log_walk import Extent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.table import Split
    from reput_plugins.spark_export.engine.ranges import Batches

__all__ = ["check_store"]

# Ranges that each core verifies in one wave. Each wave is a job of Spark, and its planning takes time.
RANGES_OF_CORE = 8
# Waves that Spark works at or has planned, so that no core waits for the next one.
WAVES_AHEAD = 2
EXTENT_SCHEMA = pa.schema([("begin", pa.int64()), ("extent", pa.binary())])
EXTENT_COLUMNS = "begin bigint, extent binary"


def check_store(
    store: Path, settings: Settings, on_progress: Callable[[int], None], *, split_bytes: int | None = None
) -> CheckReport:
    """Verify every record of the log and compare every view with it, as `reput.store.check.check.check_store` does.

    Args:
        on_progress: called at intervals with the number of verified log bytes.
        split_bytes: log bytes that one task verifies.

    Raises:
        DispatcherError: Spark is not available, or failed.
        StoreError: as with the local engine.
    """
    from reput_plugins.spark_export.engine.ranges import SPLIT_BYTES, engine_session

    store = store.resolve()
    with engine_session(settings.spark_options, f"check {store}") as session:
        verifier = functools.partial(verified, session, split_bytes or SPLIT_BYTES)
        return check_store_here(store, settings, on_progress, verifier)


def verified(session: SparkSession, split_bytes: int, plan: RangePlan, begin: int, until: int) -> Iterator[Extent]:
    """Yield the executors' results for [begin, until), in log order."""
    from reput.table import LogTable
    from reput_plugins.spark_export.engine.ranges import errors_of, parallelism, range_frame

    splits = LogTable(plan.store).splits(begin, until, split_bytes=split_bytes)
    size = RANGES_OF_CORE * parallelism(session)
    waves = iter([splits[at : at + size] for at in range(0, len(splits), size)])
    work = functools.partial(verify_ranges, plan)

    def run(wave: list[Split]) -> list[tuple[int, bytes]]:
        frame = range_frame(
            session, plan.store, wave[0].begin, wave[-1].until, work, EXTENT_COLUMNS, split_bytes=split_bytes
        )
        with errors_of("check"):
            found = frame.toArrow()
        return sorted(zip(found["begin"].to_pylist(), found["extent"].to_pylist(), strict=True))

    with ThreadPoolExecutor(WAVES_AHEAD, "spark wave") as ahead:
        running = deque(ahead.submit(run, wave) for wave in islice(waves, WAVES_AHEAD))
        while running:
            extents = running.popleft().result()
            running.extend(ahead.submit(run, wave) for wave in islice(waves, 1))
            for _, encoded in extents:
                yield pickle.loads(encoded)


def verify_ranges(plan: RangePlan, batches: Batches) -> Batches:
    """Verify the ranges of one task. Runs in a worker."""
    from reput_plugins.spark_export.engine.ranges import ranges_in

    for begin, until in ranges_in(batches):
        for extent in verify_range(plan, begin, until):
            yield pa.record_batch([[extent.begin], [pickle.dumps(extent)]], schema=EXTENT_SCHEMA)
