"""Ranges of the log as a Spark frame, one task each, processed by a Python function.

Spark sees only the begin and end of a range and the rows that the function yields for it; the Python workers read the
bytes of the log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from reput.errors import DispatcherError
from reput.table.advice_notes import advice_noted
from reput_plugins.spark_export.requirements import require_packages
from reput_plugins.spark_export.spark_errors import spark_errors
from reput_plugins.spark_export.spark_job import parallelism
from reput_plugins.spark_export.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SPLIT_BYTES", "Batches", "engine_session", "errors_of", "parallelism", "range_frame", "ranges_in"]

SPLIT_BYTES = 32 << 20

Batches = Iterator[pa.RecordBatch]


@contextmanager
def engine_session(settings: Mapping[str, str], what: str) -> Iterator[SparkSession]:
    """Yield a session for the bulk work *what*.

    Raises:
        DispatcherError: Spark is not available, or does not start.
    """
    require_packages("pandas")
    # More heap than an export's: the results of the ranges reach the driver through its JVM.
    with spark_session(settings, f"reput {what}", driver_memory="1g") as session:
        yield session


def range_frame(
    session: SparkSession,
    store: str,
    begin: int,
    until: int,
    work: Callable[[Batches], Batches],
    schema: str,
    *,
    split_bytes: int = SPLIT_BYTES,
) -> DataFrame:
    """Return the frame of the rows that *work* yields for the ranges of [begin, until)."""
    ranges = (
        session.read.format("reput")
        .option("schemaMode", "ranges")
        .option("startingOffsets", begin)
        .option("endingOffsets", until)
        .option("splitBytes", split_bytes)
        .option("minPartitions", parallelism(session))
        # The caller has determined the log's end, and a running broker does not force it to disk for this job.
        .option("reads", "appended")
        .load(store)
    )
    return ranges.mapInArrow(functools.partial(noted, work), schema)


def noted(work: Callable[[Batches], Batches], batches: Batches) -> Batches:
    """Yield the results of *work*; put the advice of a reput error into its traceback. Runs in a worker."""
    with advice_noted():
        yield from work(batches)


def ranges_in(batches: Batches) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a task."""
    for batch in batches:
        for row in batch.to_pylist():
            yield row["begin"], row["until"]


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Raise Spark errors from inside the block as reput errors.

    Raises:
        DispatcherError: Spark failed.
        ReputError: the error that a worker raised.
    """
    try:
        with spark_errors():
            yield
    except DispatcherError as error:
        raise DispatcherError(f"Spark failed: work={what} error={error}", error.advice) from error
