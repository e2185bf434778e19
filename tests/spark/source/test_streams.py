"""``spark.readStream.format("reput")``: offsets, limits, restarts, and what is refused."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import reput
from reput.errors import StoreError
from reput.store.disk.sealed_file import seal
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.spark


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of 60 records in several segments."""
    log = WrittenLog(tmp_path / "store")
    append(log, 60)
    return log


def append(log: WrittenLog, count: int) -> None:
    """Append records and write them."""
    for _ in range(count):
        number = len(log.offsets)
        log.append(b"body %d" % number * 10, store_timestamp=START_MS + 1000 * number)
    log.save()


def append_others(log: WrittenLog, count: int) -> None:
    """Append records that `append` never writes, as after a cut."""
    for _ in range(count):
        log.append(b"another body", store_timestamp=START_MS + 1_000_000 + len(log.offsets))
    log.save()


class Run:
    """One run of a query up to the end of the log, into Parquet files."""

    def __init__(self, spark: Any, store: Path, *, once: bool = False, **options: Any) -> None:
        root = store.parent
        self.target = root / "rows"
        frame = spark.readStream.format("reput").options(**options).load(str(store)).select("commitLogOffset")
        writer = frame.writeStream.format("parquet").trigger(**({"once": True} if once else {"availableNow": True}))
        self.query = writer.option("checkpointLocation", str(root / "checkpoint")).start(str(self.target))
        try:
            self.query.awaitTermination()
        finally:
            self.query.stop()

    def offsets(self, spark: Any) -> list[int]:
        """Return the commit-log offsets that all runs have written so far."""
        rows = spark.read.schema("commitLogOffset bigint").parquet(str(self.target)).collect()
        return sorted(row["commitLogOffset"] for row in rows)

    def batches(self) -> list[tuple[int, int]]:
        """Return (begin, end) of this run's micro-batches with rows."""
        found: Iterator[Any] = (progress["sources"][0] for progress in self.query.recentProgress)
        ranges = [(position(source["startOffset"]), position(source["endOffset"])) for source in found]
        return [(begin, end) for begin, end in ranges if begin != end]


def position(offset: Any) -> int:
    """Return the commit-log offset reported by Spark, 0 before the first one."""
    known = json.loads(offset) if isinstance(offset, str) else offset
    return known["offset"] if known else 0


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({}, id="none", marks=pytest.mark.long),
        pytest.param({"maxBytesPerTrigger": "3000"}, id="bytes", marks=pytest.mark.long),
        pytest.param({"maxOffsetsPerTrigger": "7"}, id="records"),
    ],
)
def test_every_record_comes_once_in_one_batch_or_many(spark: Any, log: WrittenLog, limit: dict[str, str]):
    """A limit divides the backlog into micro-batches at records; AvailableNow reads them all and ends."""
    run = Run(spark, log.store, startingOffsets="earliest", splitBytes="1000", **limit)
    assert run.offsets(spark) == log.offsets
    ends = [end for _, end in run.batches()]
    assert ends[-1] == log.end
    assert set(ends) <= {*log.offsets, log.end}
    assert (len(ends) > 1) == bool(limit)


def test_progress_reports_have_the_lag(spark: Any, log: WrittenLog):
    """After each micro-batch; Spark accepts a least number of records, which a run up to the end does not wait for."""
    from pyspark_reput import stream_lag

    options = {"minOffsetsPerTrigger": "1000", "maxBytesPerTrigger": "3000"}
    run = Run(spark, log.store, startingOffsets="earliest", **options)
    assert run.offsets(spark) == log.offsets
    ends = [end for _, end in run.batches()]
    lags = [lag.bytes for progress in run.query.recentProgress for lag in stream_lag(progress)]
    assert lags[: len(ends)] == [log.end - end for end in ends]
    assert stream_lag(run.query)[0].records == 0
    append(log, 9)
    last = Run(spark, log.store, minOffsetsPerTrigger="1000")
    assert last.offsets(spark) == log.offsets


def test_real_time_mode_is_refused(spark: Any, log: WrittenLog, tmp_path: Path):
    """Spark says so when such a query starts: none of its Python sources has that mode."""
    frame = spark.readStream.format("reput").load(str(log.store)).select("tags")
    writer = frame.writeStream.format("console").outputMode("update").trigger(realTime="5 minutes")
    with pytest.raises(Exception, match=r"input stream .*Python.* is not supported in Real-time Mode"):
        writer.option("checkpointLocation", str(tmp_path / "real-time")).start().awaitTermination(60)


def test_once_is_one_batch_of_all_that_is_there(spark: Any, log: WrittenLog):
    """Spark's trigger of that name requests everything, whatever the limit of a micro-batch."""
    run = Run(spark, log.store, once=True, startingOffsets="earliest", maxBytesPerTrigger="3000")
    assert run.offsets(spark) == log.offsets
    assert run.batches() == [(0, log.end)]


@pytest.mark.long
def test_a_run_ends_while_a_writer_appends(spark: Any, tmp_path: Path):
    """With the records at its start, or slightly more; the next one continues after them."""
    stopped = threading.Event()
    with reput.open(
        tmp_path / "store",
        dispatchers=[],
        mode="inline",
        flush_disk_type="SYNC_FLUSH",
        sync_flush_timeout=60_000,
        mapped_file_size_commit_log=65536,
    ) as store:

        def put(count: int) -> None:
            store.put_batch([reput.Message("orders", b"x" * 100) for _ in range(count)])

        def append() -> None:
            while not stopped.wait(0.02):
                put(5)

        put(300)
        begun = store.appended
        writer = threading.Thread(target=append)
        writer.start()
        try:
            run = Run(spark, store.directory, startingOffsets="earliest", maxBytesPerTrigger="20000")
        finally:
            stopped.set()
            writer.join()
        (*_, (_, end)) = batches = run.batches()
        assert len(batches) > 1
        assert begun <= end < store.appended
        offsets = [record.commit_log_offset for record in store.records(0)]
        assert run.offsets(spark) == [at for at in offsets if at < end]
        assert Run(spark, store.directory).offsets(spark) == offsets


def test_a_restart_goes_on_where_the_checkpoint_is(spark: Any, log: WrittenLog):
    """A second run reads the appended records, across segments, and none twice."""
    Run(spark, log.store, startingOffsets="earliest")
    append(log, 70)
    run = Run(spark, log.store, startingOffsets="earliest")
    assert run.offsets(spark) == log.offsets
    assert Run(spark, log.store).batches() == []


def test_a_new_stream_begins_with_what_comes(spark: Any, log: WrittenLog):
    """Without an option a stream begins at the end, like Spark's Kafka source."""
    old = list(log.offsets)
    Run(spark, log.store)
    append(log, 5)
    assert Run(spark, log.store).offsets(spark) == log.offsets[len(old) :]


def test_a_stream_begins_at_a_time(spark: Any, log: WrittenLog):
    """The first record of that time or later is the first row."""
    run = Run(spark, log.store, startingTimestamp=START_MS + 40_500)
    assert run.offsets(spark) == log.offsets[41:]


def test_a_checkpoint_of_another_store_is_refused(spark: Any, log: WrittenLog):
    """The offsets of one store are meaningless in another."""
    Run(spark, log.store, startingOffsets="earliest")
    other = WrittenLog(log.store)
    other.append(b"another history", store_timestamp=START_MS)
    append(other, 90)
    with pytest.raises(
        Exception,
        match=r"(?s)the checkpoint belongs to another store: .*Advice: Start the query with its own checkpoint",
    ):
        Run(spark, other.store, startingOffsets="earliest")


def test_a_brokers_retention_brings_no_row_again(spark: Any, golden: Callable[[str], Path]):
    """The directory of a broker that reput never opened has no id; the query recognises it by records it has read."""
    store = golden("basic-5.3") / "store"
    run = Run(spark, store, startingOffsets="earliest")
    offsets = run.offsets(spark)
    assert len(offsets) == 822
    shutil.rmtree(store / "commitlog")
    shutil.copytree(golden("aged-5.3") / "head-before" / "store" / "commitlog", store / "commitlog")
    again = Run(spark, store, startingOffsets="earliest")
    assert again.batches() == []
    assert again.offsets(spark) == offsets


def test_a_checkpoint_of_a_history_that_was_cut_is_refused(log: WrittenLog):
    """The error has the position; a checkpoint below the cut continues, in the new epoch."""
    from pyspark_reput import DefaultSource

    def reader() -> Any:
        source = DefaultSource({"path": str(log.store), "startingOffsets": "latest"})
        return source.streamReader(source.schema())

    (log.store / "reput").mkdir()
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, "ab" * 16, {})))
    above = reader().initialOffset()
    below = {**above, "offset": log.offsets[10]}
    epochs = read_epochs(log.store, above["store"])
    cut = log.offsets[25]
    (log.store / "reput" / "epochs").write_bytes(epochs.begin(cut, START_MS).seal())
    del log.data[cut:], log.offsets[25:]
    append_others(log, 35)
    with pytest.raises(
        StoreError, match=f"cut below the checkpoint: cut_at={cut} checkpoint_offset={above['offset']} "
    ):
        reader().position(above)
    assert reader().position(below) == log.offsets[10]
    assert reader().initialOffset()["epoch"] == above["epoch"] + 1


def test_records_that_retention_deleted_are_data_loss(spark: Any, log: WrittenLog):
    """A stream that lags behind retention fails, or continues with the rest, as requested."""
    # A store that reput writes keeps its id when its first segment is removed.
    (log.store / "reput").mkdir()
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, "ab" * 16, {})))
    Run(spark, log.store, startingOffsets="earliest")
    append(log, 200)
    for segment in sorted((log.store / "commitlog").iterdir())[:4]:
        segment.unlink()
    kept = min(int(path.name) for path in (log.store / "commitlog").iterdir())
    assert kept > log.offsets[60]
    with pytest.raises(Exception, match="the log was trimmed above this offset"):
        Run(spark, log.store)
    run = Run(spark, log.store, failOnDataLoss="false")
    assert run.offsets(spark) == [*log.offsets[:60], *(at for at in log.offsets[60:] if at >= kept)]


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(spark: Any, log: WrittenLog, option: str):
    """Only batches have an end; the error names the option."""
    with pytest.raises(Exception, match=f"a stream has no end: option={option}"):
        Run(spark, log.store, **{option: "5"})
