"""check_store on Spark: executors verify the log range by range, and the driver walks over their results.

Executors send the records without their bodies. The driver compares one wave of ranges while executors verify the
next. The driver itself reads everything that is not a plain record. So the report equals the local engine's.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from reput.settings import Settings
from reput.store.check.check import check_store as check_store_here
from reput.store.recovery.check_report import CheckReport
from reput.store.recovery.log_walk import Extent
from reput.store.recovery.verified_walk import verify_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput_plugins.spark_export.engine.ranges import Batches

__all__ = ["check_store"]

# Ranges that each core verifies in one wave.
RANGES_OF_CORE = 2
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
        verifier = functools.partial(verified, session, store, settings.message_delay_level, split_bytes or SPLIT_BYTES)
        return check_store_here(store, settings, on_progress, verifier)


def verified(
    session: SparkSession, store: Path, message_delay_level: str, split_bytes: int, begin: int, until: int
) -> Iterator[Extent]:
    """Yield the executors' results for [begin, until), in log order."""
    from reput.table import LogTable
    from reput_plugins.spark_export.engine.ranges import errors_of, parallelism, range_frame

    splits = LogTable(store).splits(begin, until, split_bytes=split_bytes)
    size = RANGES_OF_CORE * parallelism(session)
    waves = [splits[at : at + size] for at in range(0, len(splits), size)]
    work = functools.partial(verify_ranges, str(store), message_delay_level)

    def run(wave_begin: int, wave_until: int) -> list[tuple[int, bytes]]:
        frame = range_frame(session, str(store), wave_begin, wave_until, work, EXTENT_COLUMNS, split_bytes=split_bytes)
        with errors_of("check"):
            found = frame.toArrow()
        return sorted(zip(found["begin"].to_pylist(), found["extent"].to_pylist(), strict=True))

    with ThreadPoolExecutor(1, "spark wave") as ahead:
        running = [ahead.submit(run, wave[0].begin, wave[-1].until) for wave in waves[:1]]
        for number in range(len(waves)):
            extents = running.pop().result()
            if number + 1 < len(waves):
                running.append(ahead.submit(run, waves[number + 1][0].begin, waves[number + 1][-1].until))
            for _, encoded in extents:
                yield pickle.loads(encoded)


def verify_ranges(store: str, message_delay_level: str, batches: Batches) -> Batches:
    """Verify the ranges of one task. Runs in a worker."""
    from reput_plugins.spark_export.engine.ranges import ranges_in

    for begin, until in ranges_in(batches):
        for extent in verify_range(Path(store), message_delay_level, begin, until):
            yield pa.record_batch([[extent.begin], [pickle.dumps(extent)]], schema=EXTENT_SCHEMA)
