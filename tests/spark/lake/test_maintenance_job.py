"""reput lake optimize and vacuum: fewer files and the same rows; what time travel loses is said before, exactly."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from reput.cli import main
from reput_plugins.spark_export import export, optimize_lake, vacuum_lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.opening import open_table
from spark.exporting import without_spark
from spark.lakes import lake_rows
from written_log import START_MS, WrittenLog

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return an empty log."""
    return WrittenLog(tmp_path / "store", segment_size=1 << 16)


def append(log: WrittenLog, count: int, stored: int = START_MS) -> None:
    """Append orders, of which every tenth is none, and write the log."""
    for number in range(count):
        body = b"no order" if number % 10 == 0 else b'{"id": %d}' % number
        log.append(body, topic=b"orders %", store_timestamp=stored)
    log.save()


def exported(log: WrittenLog, lake: Path, exports: int, **options: Any) -> None:
    """Export so many times; each time the log has grown, and small files are merged."""
    for _ in range(exports):
        append(log, 20)
        export(log.store, lake, **options)


def typed(tmp_path: Path) -> dict[str, Any]:
    """Return the option of an export that keeps the typed table `orders`."""
    schema = tmp_path / "orders.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}))
    return {"tables": {"tables": {"orders": {"topic": "orders %", "format": "json", "schema": str(schema)}}}}


def age(table: Path, versions: range) -> None:
    """Make everything that these transactions removed old enough to be vacuumed."""
    for version in versions:
        path = table / "_delta_log" / f"{version:020d}.json"
        path.write_text(re.sub(r'"deletionTimestamp":\d+', '"deletionTimestamp":1', path.read_text()))
    for path in table.rglob("*.parquet"):
        os.utime(path, (1, 1))


def rows_by_version(table: Path) -> dict[int, int]:
    """Return the number of rows of each version that the Delta library can read whole."""
    found = {}
    for version in range(DeltaTable(table).version() + 1):
        try:
            found[version] = DeltaTable(table, version=version).to_pyarrow_table().num_rows
        except Exception:
            continue
    return found


def told(table: Path) -> list[int]:
    """Return the versions that are said to be readable."""
    return sorted(version.version for version in open_table(LakeLocation.of(table)).versions([]) if version.readable)


def shown(capsys: Any, *words: str) -> list[dict[str, Any]]:
    """Run a command that succeeds, and return the rows that it prints."""
    assert main([*words, "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_optimize_says_what_it_merged_and_keeps_every_row(log: WrittenLog, tmp_path: Path, capsys: Any):
    """The files of the present day as well, which an export leaves alone while they are few."""
    lake = tmp_path / "lake"
    for _ in range(3):
        append(log, 20, stored=time.time_ns() // 1_000_000)
        export(log.store, lake)
    before, files = lake_rows(lake), len(DeltaTable(lake).file_uris())
    assert files == 3
    (row,) = shown(capsys, "lake", "optimize", str(lake))
    sizes = pa.table(DeltaTable(lake).get_add_actions())["size_bytes"].to_pylist()
    assert (row["table"], row["files_before"], row["files"], row["bytes"]) == ("lake", 3, 1, sum(sizes))
    assert len(sizes) == 1
    assert lake_rows(lake).equals(before)
    assert main(["lake", "optimize", str(lake)]) == 0
    assert "lake: 1 files of" in capsys.readouterr().out
    append(log, 5)
    assert export(log.store, lake).records == 5


def test_vacuum_says_exactly_which_versions_are_lost(log: WrittenLog, tmp_path: Path, capsys: Any):
    """Before it removes a file; a dry run says the same and removes nothing. The Delta library is the judge."""
    lake = tmp_path / "lake"
    exported(log, lake, 4)
    before = rows_by_version(lake)
    last = DeltaTable(lake).version()
    assert sorted(before) == list(range(last + 1))
    age(lake, range(last))
    (planned,) = shown(capsys, "lake", "vacuum", str(lake), "--dry-run")
    assert rows_by_version(lake) == before
    names = {path for path in lake.rglob("*.parquet") if "_delta_log" not in path.parts}
    (row,) = shown(capsys, "lake", "vacuum", str(lake))
    gone = {path for path in names if not path.exists()}
    assert {**planned, "dry_run": False} == row
    assert row["files"] == len(gone) > 0
    lost = {version for first, until in row["versions_lost"] for version in range(first, until + 1)}
    after = rows_by_version(lake)
    assert lost
    assert after == {version: count for version, count in before.items() if version not in lost}
    assert row["readable_from_version"] == max(lost) + 1
    made = DeltaTable(lake).history()[last - row["readable_from_version"]]
    assert (made["version"], made["timestamp"]) == (row["readable_from_version"], row["readable_from_timestamp"])
    assert lake_rows(lake)["commitLogOffset"].to_pylist() == log.offsets
    (again,) = shown(capsys, "lake", "vacuum", str(lake))
    assert (again["files"], again["versions_lost"]) == (0, [])
    assert again["readable_from_version"] == row["readable_from_version"]


def test_versions_behind_a_checkpoint_are_told_as_the_library_tells_them(log: WrittenLog, tmp_path: Path):
    """Delta forgets old transactions behind a checkpoint; what is older than it is not said to be readable."""
    lake = tmp_path / "lake"
    exported(log, lake, 3)
    DeltaTable(lake, version=3).create_checkpoint()
    for version in range(3):
        (lake / "_delta_log" / f"{version:020d}.json").unlink()
    assert told(lake) == sorted(rows_by_version(lake))
    (lake / "_delta_log" / f"{3:020d}.json").unlink()
    assert told(lake) == sorted(rows_by_version(lake))


def test_a_folder_of_typed_tables_is_kept_table_by_table(log: WrittenLog, tmp_path: Path, capsys: Any):
    """Each table and its dead letters; a table that reput did not write stays as it is, and a row says so."""
    lake = tmp_path / "lake"
    exported(log, lake, 4, **typed(tmp_path))
    write_deltalake(lake / "mine", pa.table({"x": [1]}))
    write_deltalake(lake / "mine", pa.table({"x": [2]}), mode="overwrite")
    age(lake / "mine", range(2))
    mine = set((lake / "mine").rglob("*"))
    optimized = shown(capsys, "lake", "optimize", str(lake))
    assert [(row["table"], row["skipped"]) for row in optimized] == [
        ("mine", "not written by reput"),
        ("orders", None),
        ("orders.dead_letters", None),
    ]
    for name in ("orders", "orders.dead_letters"):
        age(lake / name, range(DeltaTable(lake / name).version() + 1))
    (only, letters) = shown(capsys, "lake", "vacuum", str(lake), "--table", "orders", "--dry-run")
    assert (only["table"], letters["table"]) == ("orders", "orders.dead_letters")
    assert only["files"] > 0
    assert main(["lake", "vacuum", str(lake)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[0] == "mine: left alone, not written by reput"
    assert re.fullmatch(
        r"orders: removes \d+ files of \d+ bytes; then unreadable: versions [\d., ]+; "
        r"every version from \d+ of \S+Z on stays readable",
        text[1],
    )
    assert set((lake / "mine").rglob("*")) == mine
    assert DeltaTable(lake / "orders").to_pyarrow_table().num_rows == 72
    assert DeltaTable(lake / "orders.dead_letters").to_pyarrow_table().num_rows == 8
    assert all(not row.files for row in vacuum_lake(lake))


def test_an_iceberg_lake_loses_no_snapshot(log: WrittenLog, tmp_path: Path, capsys: Any):
    """Vacuum removes what no remaining snapshot names; optimize merges as in Delta."""
    pytest.importorskip("pyiceberg")
    lake = tmp_path / "lake"
    for _ in range(3):
        append(log, 20, stored=time.time_ns() // 1_000_000)
        export(log.store, lake, lake_format="iceberg")
    options = ("--lake-format", "iceberg")
    (optimized,) = shown(capsys, "lake", "optimize", str(lake), *options)
    assert (optimized["files_before"], optimized["files"]) == (3, 1)
    of_lake = next(path for path in lake.rglob("*.parquet") if "_watermarks" not in path.parts)
    orphan = of_lake.parent / f"{0:020d}-{1:020d}-0123abcd.parquet"
    orphan.write_bytes(b"left behind")
    for path in lake.rglob("*"):
        os.utime(path, (1, 1))
    (row,) = shown(capsys, "lake", "vacuum", str(lake), *options)
    assert not orphan.exists()
    assert row["versions_lost"] == []
    assert row["readable_from_version"] == 1
    assert lake_rows(lake)["commitLogOffset"].to_pylist() == log.offsets
    assert main(["lake", "vacuum", str(lake)]) == 2
    assert "format=iceberg asked=delta" in capsys.readouterr().err


def test_what_is_not_a_table_of_reput_s_is_refused(log: WrittenLog, tmp_path: Path, capsys: Any):
    """With what to write instead, and nothing is changed."""
    lake, mine = tmp_path / "lake", tmp_path / "mine"
    exported(log, lake, 1)
    write_deltalake(mine, pa.table({"x": [1]}))
    for words, said in (
        ([str(mine)], "the table was not written by reput: lake="),
        ([str(tmp_path), "--table", "mine"], "the table was not written by reput: lake="),
        ([str(tmp_path), "--table", "absent"], "there is no table that reput wrote: lake="),
        ([str(tmp_path / "absent")], "there is no table that reput wrote: lake="),
        ([str(lake), "--table", "orders"], "the lake is a table of the whole log, not a folder of tables: lake="),
    ):
        for verb in ("optimize", "vacuum"):
            assert main(["lake", verb, *words]) == 2
            assert said in capsys.readouterr().err
    assert main(["lake", "vacuum", str(lake), "--hours", "0"]) == 2
    assert DeltaTable(mine).version() == 0
    assert not (tmp_path / "absent").exists()
    assert [row.table for row in optimize_lake(tmp_path)] == ["lake", "mine"]
