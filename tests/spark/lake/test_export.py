"""The export to a lake: every record once, for every reader, and short errors with the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import reput.table
from golden_sets import CLEAN_SETS, some_of
from reput.errors import ConfigError, DamagedStore, DispatcherError, NotAStore, OffsetOutOfRange
from spark.lakes import lake_rows, offsets_in
from written_log import START_MS, WrittenLog

pytest.importorskip("deltalake")

from reput_plugins.spark_export import export
from reput_plugins.spark_export.lake_location import LAKE_ADVICE

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of 60 records in three topics over three days."""
    log = WrittenLog(tmp_path / "store")
    append(log, 60)
    return log


def append(log: WrittenLog, count: int) -> None:
    """Append records and write them."""
    for _ in range(count):
        number = len(log.offsets)
        topic = ("orders", "%RETRY%a|b", "订单")[number % 3].encode()
        log.append(b"body %d" % number * 10, topic=topic, store_timestamp=START_MS + DAY_MS * number // 20)
    log.save()


@pytest.mark.parametrize("name", some_of(CLEAN_SETS, "batch-4.9", "basic-5.5", "transaction-5.5", "ext-4.9"))
def test_the_lake_holds_every_record_of_a_store(
    spark: Any, name: str, golden_read_only: Callable[[str], Path], tmp_path: Path
):
    """For every store that RocketMQ closed, the rows of the lake are those of the log, and the store is not touched."""
    store, lake = golden_read_only(name) / "store", tmp_path / "lake"
    report = export(store, lake)
    expected = reput.table.read(store)
    found = lake_rows(lake)
    days = found["date"].cast(pa.timestamp("us")).cast(pa.int64())
    assert found.select(expected.column_names).cast(expected.schema).equals(expected)
    assert all(
        day == time - time % (DAY_MS * 1000)
        for day, time in zip(days.to_pylist(), expected["storeTimestamp"].cast(pa.int64()).to_pylist(), strict=True)
    )
    assert (report.begin, report.records, report.table_version) == (0, expected.num_rows, 1)


def test_a_second_run_adds_nothing(spark: Any, log: WrittenLog, tmp_path: Path):
    """The table knows up to where it has the log."""
    lake = tmp_path / "lake"
    first = export(log.store, lake)
    second = export(log.store, lake)
    assert (first.begin, first.until, first.records) == (0, log.end, 60)
    assert (second.begin, second.until, second.records, second.files) == (log.end, log.end, 0, 0)
    assert second.table_version == first.table_version
    assert offsets_in(lake) == log.offsets


def test_a_later_run_adds_what_was_appended(spark: Any, log: WrittenLog, tmp_path: Path):
    """Runs are consecutive, without gap or overlap."""
    lake = tmp_path / "lake"
    export(log.store, lake, until=log.offsets[13])
    assert offsets_in(lake) == log.offsets[:13]
    append(log, 100)
    report = export(log.store, lake)
    assert (report.begin, report.until, report.records) == (log.offsets[13], log.end, 147)
    assert offsets_in(lake) == log.offsets


def test_repeated_exports_leave_one_file_of_each_topic_and_day(spark: Any, log: WrittenLog, tmp_path: Path):
    """Every run merges past days, so that the number of files does not grow with the runs."""
    from deltalake import DeltaTable

    lake = tmp_path / "lake"
    for number in (*range(6, 60, 9), 60):
        report = export(log.store, lake, until=[*log.offsets, log.end][number])
        files = DeltaTable(lake).file_uris()
        assert len(files) == len({path.rpartition("/")[0] for path in files})
        assert report.table_version == DeltaTable(lake).version()
    assert offsets_in(lake) == log.offsets


def test_topics_can_be_chosen_and_stay_chosen(spark: Any, log: WrittenLog, tmp_path: Path):
    """A lake keeps its first choice: adding topics would leave holes that no reader could see."""
    lake = tmp_path / "lake"
    assert export(log.store, lake, topics=["订单", "orders"]).records == 40
    assert set(lake_rows(lake)["topic"].to_pylist()) == {"订单", "orders"}
    append(log, 9)
    with pytest.raises(ConfigError, match=r"the lake holds other topics: .* kept=orders,订单 asked=all"):
        export(log.store, lake)
    assert export(log.store, lake, topics=["orders", "订单"]).records == 6


def test_a_range_without_a_chosen_record_is_kept_as_done(spark: Any, log: WrittenLog, tmp_path: Path):
    """The table's version increases although no file was added."""
    lake = tmp_path / "lake"
    (log.store / "consumequeue" / "quiet" / "0").mkdir(parents=True)
    report = export(log.store, lake, topics=["quiet"])
    assert (report.records, report.files, report.until) == (0, 0, log.end)
    assert export(log.store, lake, topics=["quiet"]).begin == log.end


def test_a_topic_that_the_store_does_not_have_makes_no_lake(log: WrittenLog, tmp_path: Path):
    """A lake keeps its first choice, so a misspelled topic is refused before anything is created."""
    with pytest.raises(ConfigError, match="the store has no such topic: topic=ordrs nearest=orders"):
        export(log.store, tmp_path / "lake", topics=["ordrs"])
    assert not (tmp_path / "lake").exists()


def test_plain_spark_reads_the_files(spark: Any, log: WrittenLog, tmp_path: Path):
    """Without a Delta library, Spark reads the table's files, with topic and date from their folders."""
    from deltalake import DeltaTable

    lake = tmp_path / "lake"
    export(log.store, lake)
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    try:
        frame = spark.read.option("basePath", str(lake)).parquet(*DeltaTable(lake).file_uris())
        topics = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    finally:
        spark.conf.unset("spark.sql.sources.partitionColumnTypeInference.enabled")
    assert topics == {"orders": 20, "%RETRY%a|b": 20, "订单": 20}


def test_files_of_a_killed_run_are_in_nobodys_way(spark: Any, log: WrittenLog, tmp_path: Path):
    """Files without a transaction are not part of the table, and the next run begins where the table ends."""
    from reput_plugins.spark_export.lake_location import LakeLocation
    from reput_plugins.spark_export.parquet_files import write_range

    lake = tmp_path / "lake"
    export(log.store, lake, until=log.offsets[20])
    orphans, _ = write_range(
        LakeLocation.of(lake), str(log.store), "any", reput.table.TableOptions(), log.offsets[20], log.end
    )
    assert all((lake / orphan.path).exists() for orphan in orphans)
    assert export(log.store, lake).records == 40
    assert offsets_in(lake) == log.offsets


def test_damage_stops_the_export_and_nothing_is_added(spark: Any, log: WrittenLog, tmp_path: Path):
    """A partial range is never committed; the error names the damaged bytes."""
    log.data[log.offsets[30] + 4] ^= 0xFF
    log.save()
    lake = tmp_path / "lake"
    with pytest.raises(DamagedStore, match=f"from={log.offsets[30]} until={log.offsets[31]}"):
        export(log.store, lake)
    assert offsets_in(lake) == []


def test_another_table_is_not_touched(spark: Any, log: WrittenLog, tmp_path: Path):
    """A Delta table of another program is refused."""
    from deltalake import write_deltalake

    lake = tmp_path / "lake"
    write_deltalake(lake, pa.table({"a": [1]}))
    with pytest.raises(ConfigError, match="the table was not written by reput"):
        export(log.store, lake)


def test_of_two_exporters_one_is_refused(spark: Any, log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second one to commit gets an error, its files are removed, and every record is there once."""
    from reput_plugins.spark_export import spark_job

    lake = tmp_path / "lake"
    export(log.store, lake, until=log.offsets[10])
    run = spark_job.run_job

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(spark_job, "run_job", run)
        export(log.store, lake, until=log.offsets[30])
        run(*arguments)

    monkeypatch.setattr(spark_job, "run_job", overtaken)
    with pytest.raises(DispatcherError, match="another exporter writes this lake"):
        export(log.store, lake)
    assert offsets_in(lake) == log.offsets[:30]
    assert list(lake.rglob(f"*-{log.end:020d}-*.parquet")) == []


def test_what_retention_deleted_is_data_loss(spark: Any, golden: Callable[[str], Path], tmp_path: Path):
    """A lake that lags behind retention gets an error, or continues with the rest, as requested."""
    log = WrittenLog(tmp_path / "store")
    append(log, 90)
    lake = tmp_path / "lake"
    from reput.store.disk.sealed_file import seal
    from reput.store.state.identity import StoreIdentity

    (log.store / "reput").mkdir()
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, "cd" * 16, {})))
    export(log.store, lake, until=log.offsets[5])
    (log.store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(OffsetOutOfRange, match="the log was trimmed above this offset"):
        export(log.store, lake)
    export(log.store, lake, fail_on_data_loss=False)
    assert offsets_in(lake) == [*log.offsets[:5], *(at for at in log.offsets if at >= 4096)]


def test_progress_is_told_in_bytes_of_the_log(spark: Any, log: WrittenLog, tmp_path: Path):
    """The total is what will be exported; progress never exceeds it."""
    told: list[tuple[int, int]] = []
    export(log.store, tmp_path / "lake", on_progress=lambda done, total: told.append((done, total)))
    assert all(0 <= done <= total == log.end for done, total in told)


def test_a_setting_that_is_not_sparks_is_refused(log: WrittenLog, tmp_path: Path):
    """Settings are passed to Spark; the error has the wrong name."""
    with pytest.raises(ConfigError, match="setting=flush_disk_type"):
        export(log.store, tmp_path / "lake", settings={"flush_disk_type": "SYNC_FLUSH"})


def test_a_directory_that_is_no_store_makes_no_lake(tmp_path: Path):
    """If there is nothing to export, nothing is created."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAStore):
        export(tmp_path / "empty", tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


def test_importing_the_dispatcher_loads_no_spark():
    """The host reads a dispatcher's declaration on machines without Spark and Arrow."""
    code = (
        "import sys, reput_plugins.spark_export; "
        "print(sorted({'pyspark', 'pyarrow', 'deltalake', 'numpy', 'py4j'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_lake_that_workers_cannot_write_is_one_sentence(spark: Any, log: WrittenLog, tmp_path: Path):
    """The system's error comes from the worker that met it; the next run continues."""
    lake = tmp_path / "lake"
    export(log.store, lake, until=log.offsets[3])
    append(log, 30)
    in_the_way = lake / "topic=orders"
    in_the_way.rename(tmp_path / "aside")
    in_the_way.write_bytes(b"a file where the folder should be")
    with pytest.raises(DispatcherError, match=f"^the lake cannot be written: lake={lake} error=") as raised:
        export(log.store, lake)
    assert "\n" not in str(raised.value)
    assert raised.value.advice == LAKE_ADVICE
    in_the_way.unlink()
    (tmp_path / "aside").rename(in_the_way)
    export(log.store, lake)
    assert offsets_in(lake) == log.offsets
