"""One job of Spark: the records of a range of the log, written by its workers and committed in one transaction.

range ──▶ splits ──▶ Spark's workers decode and write ──▶ the driver commits the files of all of them
"""

from __future__ import annotations

import functools
import pickle
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput_plugins.spark_export.lake_sink import SinkPlan
    from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["Progress", "parallelism", "run_job"]

# Each task writes a file or more for each topic and day. Larger tasks write fewer and larger files, which need not be
# merged afterwards.
SPLIT_BYTES = 1 << 30
# Below this a second task costs more than it saves.
TASK_BYTES_MIN = 4 << 20
PROGRESS_SECONDS = 0.25
JOB_GROUP = "reput export"

# Is called with the log bytes done, and the total.
Progress = Callable[[int, int], None]


def run_job(
    session: SparkSession,
    plan: SinkPlan | TypedPlan,
    begin: int,
    until: int,
    on_progress: Progress | None,
    *,
    split_bytes: int = SPLIT_BYTES,
) -> None:
    """Write the records that begin in [begin, until) with Spark, and commit them in one transaction.

    Args:
        on_progress: called at intervals, on its own thread, with the exported log bytes and their total.
        split_bytes: maximum log bytes that one task decodes.
    """
    from reput_plugins.spark_export.spark_errors import spark_errors

    done = threading.Event()
    watcher = threading.Thread(
        target=watch, args=(session, until - begin, on_progress, done), name=JOB_GROUP, daemon=True
    )
    if on_progress is not None:
        watcher.start()
    try:
        with spark_errors():
            plan = msgspec.structs.replace(plan, run=uuid.uuid4().hex[:8])
            write_ranges(session, plan, begin, until, split_bytes)
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join()


def watch(session: SparkSession, byte_count: int, on_progress: Progress, done: threading.Event) -> None:
    """Report progress at intervals. Runs on its own thread, because the job blocks the caller's thread."""
    from py4j.protocol import Py4JError

    while not done.wait(PROGRESS_SECONDS):
        try:
            part = done_part(session)
        except (Py4JError, OSError):
            # Spark's JVM is gone; the job itself reports that.
            return
        on_progress(int(byte_count * part), byte_count)


def write_ranges(session: SparkSession, plan: SinkPlan | TypedPlan, begin: int, until: int, split_bytes: int) -> None:
    """Run one task per range that writes its files, and commit the files of all tasks.

    The ranges go to the workers with the function, and the results come back as rows of the frame. A Spark source and
    sink would do the same, but would start five more kinds of Python processes.
    """
    from reput.table import LogTable

    if not is_remote(session):
        session.sparkContext.setJobGroup(JOB_GROUP, JOB_GROUP, interruptOnCancel=True)
    count_min = min(parallelism(session), max((until - begin) // TASK_BYTES_MIN, 1))
    splits = LogTable(plan.store, plan.table).splits(begin, until, split_bytes=split_bytes, split_count_min=count_min)
    ranges = [(split.begin, split.until) for split in splits]
    chosen = session.range(0, len(ranges), 1, len(ranges))
    try:
        written = chosen.mapInArrow(functools.partial(plan.write_chosen, ranges), "written binary").toArrow()
    except BaseException:
        plan.remove_run()
        raise
    plan.commit_ranges([pickle.loads(row) for row in written["written"].to_pylist()])


def is_remote(session: SparkSession) -> bool:
    """Return whether the session uses Spark Connect, which has no context in this process."""
    from pyspark.sql.utils import is_remote as connected

    return bool(connected())


def parallelism(session: SparkSession) -> int:
    """Return how many tasks run at once; 1 for a remote session, where the number is unknown."""
    return 1 if is_remote(session) else session.sparkContext.defaultParallelism


def done_part(session: SparkSession) -> float:
    """Return the fraction of the job's tasks that are done, from 0 to 1."""
    if is_remote(session):
        return 0.0
    tracker = session.sparkContext.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(JOB_GROUP):
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done / total if total else 0.0
