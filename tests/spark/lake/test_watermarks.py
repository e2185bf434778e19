"""Watermarks: sums per transaction in a table beside the rows, which any engine can sum up again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from reput_plugins.spark_export import check_lake
from reput_plugins.spark_export import lake as lake_module
from reput_plugins.spark_export.export_job import export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.proof import watermarks
from reput_plugins.spark_export.proof.watermarks import read_watermarks
from source_tree import ROOT
from spark.exporting import without_spark
from spark.lake.test_lake_check import ONE, append, written
from written_log import WrittenLog

# Spark quotes names with backticks.
(PROOF,) = re.findall(r"^```sql\n(select w.store.*?)^```", (ROOT / "docs" / "lake.md").read_text("utf-8"), re.M | re.S)


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def exported(root: Path, transactions: int = 3) -> tuple[WrittenLog, Path]:
    """Return a log and its lake of a few transactions."""
    log = written(root / "store", count=20)
    for _ in range(transactions - 1):
        export(log.store, root / "lake")
        append(log, 10)
    export(log.store, root / "lake")
    return log, root / "lake"


def duckdb_proof(lake: Path) -> list[Any]:
    """Return the watermarks that differ, by DuckDB."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("lake", DeltaTable(lake).to_pyarrow_table())
        connection.register("watermarks", DeltaTable(lake / "_watermarks").to_pyarrow_table())
        found: list[Any] = connection.sql(PROOF).fetchall()
    return found


def spark_proof(spark: Any, lake: Path) -> list[Any]:
    """Return the same by Spark."""
    for name, path in (("lake", lake), ("watermarks", lake / "_watermarks")):
        frame = spark.read.option("basePath", str(path)).parquet(*DeltaTable(path).file_uris())
        frame.createOrReplaceTempView(name)
    return [tuple(row) for row in spark.sql(PROOF.replace('"', "`")).collect()]


def double_first_row(lake: Path) -> None:
    """Change one row in a way that leaves the number of rows."""
    table = DeltaTable(lake)
    rows = table.to_pyarrow_table().sort_by("commitLogOffset")
    rows = pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)])
    write_deltalake(table, rows, mode="overwrite", partition_by=["topic", "date"])


@pytest.mark.spark
def test_sql_proves_each_watermark(spark: Any, tmp_path: Path):
    """In DuckDB and Spark, with the statement of the documentation; a transaction whose rows changed is found."""
    _, lake = exported(tmp_path)
    assert duckdb_proof(lake) == spark_proof(spark, lake) == []
    double_first_row(lake)
    (wrong,) = duckdb_proof(lake)
    assert wrong[:4] == (ONE, 0, read_watermarks(LakeLocation.of(lake), ONE)[0].until, 20)
    assert spark_proof(spark, lake) == [wrong]


def test_a_transaction_without_its_watermark_gets_it_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The exporter was killed in between; the next export writes it even if it has no records to add."""

    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> None:
        raise Killed

    log, lake = exported(tmp_path, 1)
    for further in (10, 0):
        append(log, 10)
        with monkeypatch.context() as kill, contextlib.suppress(Killed):
            kill.setattr(lake_module, "catch_up", killed)
            export(log.store, lake)
        marks = read_watermarks(LakeLocation.of(lake), ONE)
        assert marks[-1].until < log.end
        append(log, further)
        export(log.store, lake)
        marks = read_watermarks(LakeLocation.of(lake), ONE)
        assert sum(mark.rows for mark in marks) == len(log.offsets)
        assert marks[-1].until == log.end
    assert check_lake(log.store, lake).ok


def test_the_files_of_watermarks_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A follower makes one per transaction; they are merged."""
    monkeypatch.setattr(watermarks, "SMALL_FILES_MAX", 5)
    log, lake = exported(tmp_path, 12)
    marks = read_watermarks(LakeLocation.of(lake), ONE)
    assert len(marks) == 12
    assert [mark.begin for mark in marks[1:]] == [mark.until for mark in marks[:-1]]
    assert len(DeltaTable(lake / "_watermarks").file_uris()) < 6
    assert check_lake(log.store, lake).ok
