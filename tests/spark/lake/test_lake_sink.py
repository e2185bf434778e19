"""The sink of an export, without Spark: the workers' writes, the driver's commits, and refusals of the system."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from reput.errors import DamagedStore, DispatcherError
from reput.store.disk import files
from reput.store.disk.files import Files
from reput.store.state.epochs import read_epochs
from reput.table import LogTable, TableOptions, table_options
from reput_plugins.spark_export import lake_sink, parquet_files
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sink import SinkPlan, commit_ranges, write_ranges
from reput_plugins.spark_export.lakes.delta_table import DeltaLakeTable
from reput_plugins.spark_export.parquet_files import lake_schema
from reput_plugins.spark_export.spark_errors import from_spark
from spark.lakes import offsets_in
from written_log import WrittenLog


class Killed(BaseException):
    """Replaces SIGKILL: no code catches it, and no code runs after it."""


class Sink:
    """A log of 40 records, and a lake that takes in batches as Spark passes them."""

    def __init__(self, root: Path) -> None:
        self.log = WrittenLog(root / "store")
        for number in range(40):
            self.log.append(b"%d" % number * 10, topic=("%RETRY%a|b", "订单")[number % 2].encode())
        self.log.save()
        options = TableOptions()
        self.lake = root / "lake"
        self.plan = SinkPlan(str(self.log.store), LakeLocation.of(self.lake), "export", options)
        store_id = LogTable(self.log.store).store_id
        Lake(LakeLocation.of(self.lake), "export", read_epochs(self.log.store, store_id)).create(
            lake_schema(options.row_format), None
        )

    def write(self, begin: int, until: int) -> Any:
        """Let a worker write records number *begin* up to *until*."""
        ends = [*self.log.offsets, self.log.end]
        return write_ranges(self.plan, iter([pa.record_batch({"begin": [ends[begin]], "until": [ends[until]]})]))

    def batch(self, begin: int, middle: int, until: int) -> None:
        """Run a whole batch of two tasks."""
        commit_ranges(self.plan, [self.write(begin, middle), self.write(middle, until)])

    def files(self) -> set[str]:
        """Return the existing Parquet files, in the table or not."""
        return {str(path.relative_to(self.lake)) for path in self.lake.rglob("*.parquet")}

    def named_files(self) -> set[str]:
        """Return the Parquet files that readers see."""
        return {os.path.relpath(uri, self.lake) for uri in DeltaTable(self.lake).file_uris()}


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    """Return a sink whose lake has the first ten records."""
    sink = Sink(tmp_path)
    sink.batch(0, 5, 10)
    return sink


def killing(function: Callable[..., Any], *, after: int, then: bool) -> Callable[..., Any]:
    """Return *function*, whose call number *after* is killed before, or with *then* after its work."""
    calls = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == after and not then:
            raise Killed
        result = function(*arguments, **options)
        if len(calls) == after:
            raise Killed
        return result

    return call


STEPS: list[tuple[Any, str, int]] = [
    (parquet_files.PartitionFile, "write", 1),
    (parquet_files.PartitionFile, "finish", 1),
    (parquet_files.PartitionFile, "finish", 2),
    (files.WrittenFile, "force", 1),
    (files.WrittenFile, "force", 4),
    (Files, "force_directory", 1),
    (lake_sink, "write_range", 2),
    (Lake, "committed", 1),
    (DeltaTable, "create_write_transaction", 1),
    (DeltaLakeTable, "force_commits", 1),
    (lake_sink, "commit_ranges", 1),
]


@pytest.mark.parametrize("then", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(("owner", "name", "after"), STEPS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_batch_that_is_killed_at_any_step_is_in_the_lake_once(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int, then: bool
):
    """Twice in a row at the same step, then Spark repeats it with other splits: no record is missing or duplicated."""
    for _ in range(2):
        # Once the transaction exists, a second attempt does not get that far.
        with monkeypatch.context() as kill, contextlib.suppress(Killed):
            # A killed process cleans up nothing.
            kill.setattr(lake_sink, "remove_files", lambda *arguments: None)
            kill.setattr(parquet_files.PartitionWriters, "abandon", lambda self: None)
            kill.setattr(owner, name, killing(getattr(owner, name), after=after, then=then))
            written = [sink.write(10, 20), sink.write(20, 30)]
            lake_sink.commit_ranges(sink.plan, written)
    assert offsets_in(sink.lake) in (sink.log.offsets[:10], sink.log.offsets[:30])
    sink.batch(10, 14, 30)
    sink.batch(30, 35, 40)
    assert offsets_in(sink.lake) == sink.log.offsets
    assert sink.named_files() <= sink.files()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_a_lake_that_cannot_be_written_is_one_sentence(sink: Sink, monkeypatch: pytest.MonkeyPatch, code: int):
    """No partial file is visible or left, and the next start continues."""
    before = sink.files()

    def refuse(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    for place in ("write", "finish"):
        with monkeypatch.context() as full:
            full.setattr(parquet_files.PartitionFile, place, refuse)
            with pytest.raises(DispatcherError, match=f"the lake cannot be written: lake=.*{os.strerror(code)}"):
                sink.write(10, 20)
        assert sink.files() == before
    with monkeypatch.context() as full:
        full.setattr(DeltaLakeTable, "force_commits", refuse)
        with pytest.raises(DispatcherError, match=f"the lake cannot be written: .*{os.strerror(code)}"):
            sink.batch(10, 15, 20)
    sink.batch(10, 15, 20)
    sink.batch(20, 25, 40)
    assert offsets_in(sink.lake) == sink.log.offsets


@pytest.mark.parametrize("size_max", [0, 4, 3000])
def test_a_file_that_the_system_takes_only_a_part_of_is_gone(sink: Sink, size_max: int):
    """It refuses the beginning, the middle or the end of it, and Arrow's writer cannot complete the file."""
    before, (soft, hard) = sink.files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_max, hard))
    try:
        with pytest.raises(DispatcherError, match=f"the lake cannot be written: lake=.*{os.strerror(errno.EFBIG)}"):
            sink.write(10, 40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sink.files() == before
    sink.batch(10, 15, 40)
    assert offsets_in(sink.lake) == sink.log.offsets


def test_a_body_that_changed_on_disk_goes_into_no_lake(sink: Sink):
    """The export stops at it; with ``report`` it is omitted, and the transaction has its range."""
    changed, following = sink.log.offsets[15:17]
    sink.log.data[changed + 90] ^= 0x01
    sink.log.save()
    with pytest.raises(DamagedStore, match=f"from={changed} until={following} reason='a CRC does not match'"):
        sink.write(10, 20)
    assert offsets_in(sink.lake) == sink.log.offsets[:10]
    sink.plan = msgspec.structs.replace(sink.plan, table=table_options(on_corruption="report"))
    sink.batch(10, 18, 40)
    assert offsets_in(sink.lake) == [at for at in sink.log.offsets if at != changed]
    (entry,) = DeltaTable(sink.lake).history(1)
    assert entry["reput"]["damage"] == [{"from": changed, "until": following, "reason": "a CRC does not match"}]


def test_the_sentence_comes_through_spark():
    """With its class, extracted from the tracebacks of all processes on the way."""
    text = (
        "[ERROR] Traceback\n  File x\nreput.errors.DispatcherError: the lake cannot be written: lake=/l error=e\n\tat J"
    )
    assert str(from_spark(RuntimeError(text))) == "the lake cannot be written: lake=/l error=e"


def test_what_is_not_ours_is_told_in_spark_s_own_sentence():
    """The names of Java's classes would not help."""
    text = (
        "[DATA_SOURCE_NOT_FOUND] Failed to find it: reput.\n\nJVM stacktrace:\norg.apache.spark.SomeException\n\tat x"
    )
    sentence = "Spark failed to export: error=[DATA_SOURCE_NOT_FOUND] Failed to find it: reput."
    assert str(from_spark(RuntimeError(text))) == sentence
