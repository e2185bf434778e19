"""The proof on Spark: ranges of the log and files of the lake are the tasks; the driver gets the findings."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from reput.table.advice_notes import advice_noted
from reput.table.worker_memory import end_task
from reput_plugins.spark_export.engine.ranges import errors_of, parallelism
from reput_plugins.spark_export.proof.lake_check import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_runner"]

# Tasks per core: enough to even out tasks of different sizes.
TASKS_OF_CORE = 4


def spark_runner(session: SparkSession) -> Runner:
    """Return a runner that applies a function to tasks in Spark's workers."""

    def run(work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        if not tasks:
            return
        count = min(len(tasks), TASKS_OF_CORE * parallelism(session))
        # Dealt out in turn, because neighbours are often of one size.
        shares = [list(tasks[number::count]) for number in range(count)]
        frame = session.range(0, count, 1, count)
        with errors_of("check"):
            found = frame.mapInArrow(functools.partial(run_shares, work, shares), "found binary").toArrow()
        for encoded in found["found"].to_pylist():
            yield from pickle.loads(encoded)

    return run


def run_shares(
    work: Callable[[Any], Any], shares: Sequence[Sequence[Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply *work* to the tasks of the shares whose numbers are in *batches*. Runs in a worker."""
    with advice_noted():
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = [work(task) for task in shares[number]]
                yield pa.record_batch([[pickle.dumps(found)]], names=["found"])
    end_task()
