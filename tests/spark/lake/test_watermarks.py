"""Watermarks: sums per transaction in a table beside the rows, which any engine can sum up again."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from reput.store.disk.sealed_file import seal
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export import check_lake
from reput_plugins.spark_export import lake as lake_module
from reput_plugins.spark_export.export_job import export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.proof import watermarks
from reput_plugins.spark_export.proof.watermarks import Watermark, read_watermarks
from source_tree import ROOT
from spark.exporting import without_spark
from spark.lake.test_lake_check import ONE, append, written
from spark.lakes import iceberg_table, rows_in
from written_log import START_MS, WrittenLog

FORMATS = ["delta", "iceberg"]


def statement(page: str) -> str:
    """Return the proof in SQL of a page of the documentation. Spark quotes names with backticks."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    (found,) = re.findall(r"^```sql\n(select w.store.*?)^```", text, re.M | re.S)
    return str(found)


PROOF, PROOF_OF_TYPED = statement("lake.md"), statement("typed-tables.md")


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def exported(root: Path, transactions: int = 3, lake_format: str = "delta") -> tuple[WrittenLog, Path]:
    """Return a log and its lake of a few transactions."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    log = written(root / "store", count=20)
    for _ in range(transactions - 1):
        export(log.store, root / "lake", lake_format=lake_format)
        append(log, 10)
    export(log.store, root / "lake", lake_format=lake_format)
    return log, root / "lake"


def duckdb_proof(lake: Path, proof: str = PROOF, name: str = "lake") -> list[Any]:
    """Return the watermarks that differ, by DuckDB."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register(name, rows_in(lake))
        connection.register("watermarks", rows_in(lake / "_watermarks"))
        found: list[Any] = connection.sql(proof).fetchall()
    return found


def marks_of(lake: Path, lake_format: str = "delta", store: str = ONE) -> list[Watermark]:
    """Return the watermarks of a store."""
    return read_watermarks(LakeLocation.of(lake, lake_format=lake_format), store)


def cut(log: WrittenLog, count: int) -> None:
    """Cut the log after *count* records, as a repair does."""
    begin = log.offsets[count]
    (log.store / "reput" / "epochs").write_bytes(read_epochs(log.store, ONE).begin(begin, START_MS).seal())
    for path in (log.store / "commitlog").iterdir():
        path.unlink()
    log.data, log.offsets = log.data[:begin], log.offsets[:count]


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
    assert wrong[:4] == (ONE, 0, marks_of(lake)[0].until, 20)
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
        assert marks_of(lake)[-1].until < log.end
        append(log, further)
        export(log.store, lake)
        marks = marks_of(lake)
        assert sum(mark.rows for mark in marks) == len(log.offsets)
        assert marks[-1].until == log.end
    assert check_lake(log.store, lake).ok


def test_the_files_of_watermarks_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A follower makes one per transaction; they are merged."""
    monkeypatch.setattr(watermarks, "SMALL_FILES_MAX", 5)
    log, lake = exported(tmp_path, 12)
    marks = marks_of(lake)
    assert len(marks) == 12
    assert [mark.begin for mark in marks[1:]] == [mark.until for mark in marks[:-1]]
    assert len(DeltaTable(lake / "_watermarks").file_uris()) < 6
    assert check_lake(log.store, lake).ok


def test_sql_proves_an_iceberg_lake(tmp_path: Path):
    """Its watermarks are an Iceberg table; a row that another program deleted is missing from one of them."""
    log, lake = exported(tmp_path, lake_format="iceberg")
    assert duckdb_proof(lake) == []
    report = check_lake(log.store, lake)
    assert report.ok
    assert (report.lake.watermarks.count, report.lake.watermarks.rows) == (3, len(log.offsets))
    with iceberg_table(lake) as table:
        table.delete(f"commitLogOffset == {log.offsets[25]}")
    second = marks_of(lake, "iceberg")[1]
    assert duckdb_proof(lake) == [(ONE, second.begin, second.until, 10, second.crc)]
    assert check_lake(log.store, lake).lake.watermarks.difference_count == 1


@pytest.mark.parametrize("lake_format", FORMATS)
@pytest.mark.parametrize("prefix", [None, "log_"])
def test_sql_proves_typed_tables_and_their_dead_letters(tmp_path: Path, lake_format: str, prefix: str | None):
    """Of both formats, and with the log's columns in a struct or beside the others."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    log = WrittenLog(tmp_path / "store", segment_size=1 << 12)
    log.save()
    (log.store / "reput").mkdir()
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, ONE, {})))
    spec = {"topic": "orders", "format": "json", "schema": "infer"} | ({} if prefix is None else {"prefix": prefix})
    lake, proof = tmp_path / "lake", PROOF_OF_TYPED.replace("_log.", prefix or "_log.")
    for _ in range(2):
        for number in range(20):
            log.append(b"no" if number % 4 == 0 else json.dumps({"id": number}).encode())
        log.save()
        export(log.store, lake, tables={"tables": {"orders": spec}}, lake_format=lake_format)
    rows, dead = lake / "orders", lake / "orders.dead_letters"
    assert duckdb_proof(rows, proof, "orders") == duckdb_proof(dead) == []
    assert [mark.rows for mark in marks_of(rows, lake_format)] == [15, 15]
    assert [mark.rows for mark in marks_of(dead, lake_format)] == [5, 5]
    report = check_lake(log.store, lake)
    assert report.ok
    assert (report.tables["orders"].watermarks.count, report.tables["orders"].watermarks.rows) == (4, 40)
    if lake_format == "delta":
        DeltaTable(rows).delete("id = 5")
        assert [found[3] for found in duckdb_proof(rows, proof, "orders")] == [15, 15]
        assert check_lake(log.store, lake).tables["orders"].watermarks.difference_count == 2


def test_polars_sums_up_the_rows_of_each_watermark(tmp_path: Path):
    """By a join and an expression, without SQL."""
    polars = pytest.importorskip("polars")
    _, lake = exported(tmp_path)
    rows, marks = (polars.read_delta(str(path)) for path in (lake, lake / "_watermarks"))
    crc = (rows["bodyCRC"].cast(polars.Int64) & 2147483647) + 1
    crc = (crc * (rows["commitLogOffset"] % 2147483647 + 1) + rows["storeSize"]) % 2147483647
    rows = rows.select("store", "commitLogOffset", crc=crc)
    found = rows.join_where(
        marks.select("from", "until", of=polars.col("store")),
        polars.col("store") == polars.col("of"),
        polars.col("commitLogOffset") >= polars.col("from"),
        polars.col("commitLogOffset") < polars.col("until"),
    )
    sums = found.group_by("from").agg(rows=polars.len(), crc=polars.col("crc").sum()).sort("from").rows()
    assert sums == marks.sort("from").select("from", "rows", "crc").rows()


@pytest.mark.parametrize("lake_format", FORMATS)
def test_the_watermark_that_contains_a_cut_covers_the_rows_that_stay(tmp_path: Path, lake_format: str):
    """Those behind the cut are gone, and new records get their own."""
    log, lake = exported(tmp_path, lake_format=lake_format)
    cut(log, 25)
    append(log, 3)
    export(log.store, lake, lake_format=lake_format)
    assert [mark.rows for mark in marks_of(lake, lake_format)] == [20, 5, 3]
    assert duckdb_proof(lake) == []
    assert check_lake(log.store, lake).ok


def test_rows_that_are_added_again_after_a_rollback_have_one_watermark(tmp_path: Path):
    """In Iceberg's own way: the table then ends where it ended in that snapshot."""
    log, lake = exported(tmp_path, lake_format="iceberg")
    with iceberg_table(lake) as table:
        first = min(table.snapshots(), key=lambda snapshot: snapshot.sequence_number)
        table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    append(log, 5)
    export(log.store, lake, lake_format="iceberg")
    assert [mark.rows for mark in marks_of(lake, "iceberg")] == [20, 25]
    assert duckdb_proof(lake) == []
    assert check_lake(log.store, lake).ok


def test_rows_that_are_added_again_with_an_older_copy_of_the_catalog_have_one_watermark(tmp_path: Path):
    """The versions have smaller numbers than those of which the watermarks are there."""
    log, lake = exported(tmp_path, lake_format="iceberg")
    older = (lake / "catalog.db").read_bytes()
    for _ in range(3):
        append(log, 5)
        export(log.store, lake, lake_format="iceberg")
    (lake / "catalog.db").write_bytes(older)
    append(log, 5)
    export(log.store, lake, lake_format="iceberg")
    append(log, 5)
    export(log.store, lake, lake_format="iceberg")
    assert [mark.rows for mark in marks_of(lake, "iceberg")] == [20, 10, 10, 20, 5]
    assert duckdb_proof(lake) == []
    assert check_lake(log.store, lake).ok


def test_the_watermarks_of_a_renamed_store_have_the_name_in_its_rows(tmp_path: Path):
    """The store got an id after it had been exported under a name."""
    log = written(tmp_path / "store", count=20)
    (log.store / "reput" / "store.json").unlink()
    export(log.store, tmp_path / "lake", store_id="broker-a")
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, ONE, {})))
    append(log, 10)
    export(log.store, tmp_path / "lake")
    assert [mark.rows for mark in marks_of(tmp_path / "lake", store="broker-a")] == [20, 10]
    assert duckdb_proof(tmp_path / "lake") == []


def test_a_table_with_a_key_has_none(tmp_path: Path):
    """Later messages replace its rows. Its dead letters have them."""
    log = WrittenLog(tmp_path / "store")
    for number in range(20):
        log.append(b"no" if number % 4 == 0 else json.dumps({"id": number % 3}).encode())
    log.save()
    keyed = {"topic": "orders", "format": "json", "schema": "infer", "mode": "upsert", "key": ["id"]}
    export(log.store, tmp_path / "lake", tables={"tables": {"orders": keyed}})
    assert not (tmp_path / "lake" / "orders" / "_watermarks").exists()
    assert duckdb_proof(tmp_path / "lake" / "orders.dead_letters") == []
    report = check_lake(log.store, tmp_path / "lake")
    assert report.ok
    assert report.tables["orders"].watermarks.rows == 5
