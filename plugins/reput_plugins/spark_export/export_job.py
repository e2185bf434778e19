"""export: one batch job that brings a lake up to the log's durable end, then stops.

The driver plans ranges, Spark's workers decode and write them, one transaction adds all of it. A second run finds
nothing to do; a run that was killed left files that no transaction names, and the next begins where the lake ends.
"""

from __future__ import annotations

import functools
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.errors import ConfigError, DispatcherError
from reput.store.state.identity import require_store
from reput_plugins.spark_export.options import EXPORT_NAME
from reput_plugins.spark_export.requirements import require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.table import BadRange
    from reput_plugins.spark_export.lake_sink import SinkPlan

__all__ = ["ExportReport", "export", "refuse_other_settings", "run_job"]

SPLIT_BYTES = 128 << 20
# Below this a second task costs more than it saves.
TASK_BYTES_MIN = 4 << 20
# Who exports this much will do so again; with less, making the archive would take longer than all the rest.
CLASS_ARCHIVE_BYTES = 256 << 20
PROGRESS_SECONDS = 0.25
JOB_GROUP = "reput export"

Progress = Callable[[int, int], None]


class ExportReport(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """What one export did: *records* in *files* of *bytes*, for the log from *begin* to *until*.

    *table_version* is the lake's, *seconds* are from the call on, Spark's start included. *damage* are the ranges that
    were left out, with ``on_corruption="report"``.
    """

    begin: int
    until: int
    records: int
    files: int
    bytes: int
    seconds: float
    table_version: int
    damage: tuple[BadRange, ...] = ()


def export(
    store: Path | str,
    lake: Path | str,
    *,
    topics: Iterable[str] | None = None,
    until: int | None = None,
    name: str = EXPORT_NAME,
    settings: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    fail_on_data_loss: bool = True,
    on_corruption: str = "fail",
    store_id: str | None = None,
    accept_truncation: bool = False,
    on_progress: Progress | None = None,
) -> ExportReport:
    """Bring the Delta table *lake* up to the durable end of the log of *store*, exactly once.

    *lake* is a folder, or the address of a place in an object store, as ``s3://bucket/lake``.

    A Spark session that the program has is used and left as it is; else one is started, and stopped at the end.

    Args:
        topics: names; None: every topic. A lake keeps to its first choice.
        until: commit-log offset to stop at, where a record begins; None: the durable end.
        name: of the export, as the table knows it.
        settings: ``spark.*`` settings, such as ``spark.master`` or ``spark.remote``.
        storage_options: settings of the Delta library for a lake in an object store, such as ``AWS_REGION``.
        fail_on_data_loss: refuse to go on where the log was trimmed above what the lake has.
        on_corruption: what bytes mean that are no records, or a body that does not have its CRC: ``fail``, or
            ``report``: they are left out, and named in the report and in the lake's transaction.
        store_id: what the lake calls this store; None: it is known by its own id, or by the marks in the lake.
        accept_truncation: take rows out of the lake where the log has another history, also if nothing that both have
            shows from where on. Without it that is refused, with the number of rows.
        on_progress: called now and then with the bytes of the log that are done, and all that are to be done.

    Raises:
        DispatcherError: pyspark, deltalake or Java is missing, Spark fails, or another exporter keeps this lake.
        ConfigError: *lake* is another's table, or keeps other topics; the store does not have one of *topics*; a
            setting is not one of Spark's.
        StoreError: *store* is none, is damaged, or is not the one that the lake holds; the lake has rows that the log
            contradicts, and nobody has accepted that they go.
    """
    began = time.monotonic()
    refuse_other_settings(settings or {})
    require_store(Path(store))
    require_packages("pandas")
    # Only now: they load the packages whose absence was to be told in a sentence.
    from reput.table import LogTable, table_options
    from reput.table.asked_names import require_topics
    from reput.table.range_reader import pass_trimmed
    from reput_plugins.spark_export.lake_continuation import continue_lake
    from reput_plugins.spark_export.lake_location import LakeLocation
    from reput_plugins.spark_export.lake_sink import SinkPlan
    from reput_plugins.spark_export.maintenance import Maintenance
    from reput_plugins.spark_export.parquet_files import lake_schema
    from reput_plugins.spark_export.spark_session import spark_session

    store_directory, location = Path(store).absolute(), LakeLocation.of(lake, storage_options)
    chosen = None if topics is None else sorted(set(topics))
    options = table_options(
        topics=None if chosen is None else frozenset(chosen),
        fail_on_data_loss=fail_on_data_loss,
        on_corruption=on_corruption,
    )
    log = LogTable(store_directory, options)
    target = continue_lake(location, name, log, topics=chosen, store_id=store_id, accept_truncation=accept_truncation)
    schema = lake_schema(options.row_format)
    table = location.open()
    if table is None:
        # A lake goes on without a topic that was deleted meanwhile.
        require_topics(log, chosen or ())
    committed = None if table is None else target.committed(table)
    begin = log.offset_min if committed is None else pass_trimmed(committed, log.offset_min, fail_on_data_loss)
    end = log.find_durable_end()
    end = end if until is None else min(end, until)
    if end <= begin:
        table = target.create(schema, chosen)
        return ExportReport(begin, begin, 0, 0, 0, time.monotonic() - began, table.version())
    plan = SinkPlan(
        str(store_directory), location, name, options, store_id=target.epochs.store_id, store_name=target.store_name
    )
    worthwhile = end - begin >= CLASS_ARCHIVE_BYTES
    with spark_session(settings or {}, f"reput export {plan.store}", make_class_archive=worthwhile) as session:
        # Not before Spark runs: what cannot be filled is not made.
        target.create(schema, chosen)
        run_job(session, plan, begin, end, on_progress)
    table = target.create(schema, chosen)
    added = target.last_commit(table, end)
    if added is None:
        raise DispatcherError(f"the lake does not have what was written: lake={location.address} until={end}")
    # A single run takes no file away from whoever reads the table as it was.
    if Maintenance(location, interval_ms=0, vacuum_hours=0).run(lambda: None):
        table = location.table()
    return ExportReport(
        added.begin,
        added.until,
        added.records,
        added.files,
        added.bytes,
        time.monotonic() - began,
        table.version(),
        added.damage,
    )


def refuse_other_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings that are not Spark's.

    Raises:
        ConfigError: one is not.
    """
    for setting in settings:
        if not setting.startswith("spark."):
            raise ConfigError(f"an export takes settings of Spark's: setting={setting}", "Write --set spark.X=Y.")


def run_job(
    session: SparkSession,
    plan: SinkPlan,
    begin: int,
    until: int,
    on_progress: Progress | None,
    *,
    split_bytes: int = SPLIT_BYTES,
) -> None:
    """Have Spark write the records that begin in [begin, until), and commit them in one transaction.

    Args:
        on_progress: called now and then, on a thread of its own, with the bytes of the log that are done, and all.
        split_bytes: of the log, that one task decodes at most.
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
            write_ranges(session, msgspec.structs.replace(plan, run=uuid.uuid4().hex[:8]), begin, until, split_bytes)
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join()


def watch(session: SparkSession, byte_count: int, on_progress: Progress, done: threading.Event) -> None:
    """Tell now and then how much is done. Runs on a thread of its own, because the job keeps the caller's."""
    from py4j.protocol import Py4JError

    while not done.wait(PROGRESS_SECONDS):
        try:
            part = done_part(session)
        except (Py4JError, OSError):
            # Spark's JVM is gone. The job meets that, too, and says it.
            return
        on_progress(int(byte_count * part), byte_count)


def write_ranges(session: SparkSession, plan: SinkPlan, begin: int, until: int, split_bytes: int) -> None:
    """Have one task for each range write its files, and commit what they tell of.

    The ranges go to the workers with the function, and what they wrote comes back as the frame's rows: through a source
    and a sink of Spark's it would be the same, but five more kinds of Python processes would have to start for it.
    """
    from reput.table import LogTable
    from reput_plugins.spark_export.lake_sink import commit_ranges, remove_run, write_chosen

    if not is_remote(session):
        session.sparkContext.setJobGroup(JOB_GROUP, JOB_GROUP, interruptOnCancel=True)
    count_min = min(parallelism(session), max((until - begin) // TASK_BYTES_MIN, 1))
    splits = LogTable(plan.store, plan.table).splits(begin, until, split_bytes=split_bytes, split_count_min=count_min)
    ranges = [(split.begin, split.until) for split in splits]
    chosen = session.range(0, len(ranges), 1, len(ranges))
    try:
        written = chosen.mapInArrow(functools.partial(write_chosen, plan, ranges), "written binary").toArrow()
    except BaseException:
        remove_run(plan)
        raise
    commit_ranges(plan, [pickle.loads(row) for row in written["written"].to_pylist()])


def is_remote(session: SparkSession) -> bool:
    """Tell whether the session is one of Spark Connect, which has no context in this process."""
    from pyspark.sql.utils import is_remote as connected

    return bool(connected())


def parallelism(session: SparkSession) -> int:
    """Return how many tasks run at once; one where that cannot be known from here."""
    return 1 if is_remote(session) else session.sparkContext.defaultParallelism


def done_part(session: SparkSession) -> float:
    """Return which part of the job's tasks is done, from 0 to 1."""
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
