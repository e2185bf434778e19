"""A transaction that was made and then refused, because its answer was lost and a client sent it once more.

Object stores and catalogs do this. Here the libraries do it with a folder; `test_object_store_faults` has a store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from reput_plugins.spark_export import check_lake, export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes import delta_table
from reput_plugins.spark_export.lakes.opening import open_table
from spark.exporting import without_spark
from written_log import WrittenLog


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of four messages with two ids."""
    log = WrittenLog(tmp_path / "store")
    for number in range(4):
        log.append(b'{"id": %d, "number": %d}' % (number % 2, number))
    log.save()
    return log


def refused_after(made: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return a function that does what *made* does, and then raises *error*."""

    def lost(*given: Any, **more: Any) -> Any:
        made(*given, **more)
        raise error

    return lost


def tables(log: WrittenLog, kind: str, **more: Any) -> dict[str, Any]:
    """Return a typed table whose numbers have this type."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name in ("id", "number")]
    file = log.store.parent / f"{kind}.json"
    file.write_text(json.dumps({"type": "struct", "fields": fields}))
    return {"tables": {"orders": {"topic": "orders", "format": "json", "schema": str(file), **more}}}


def test_the_files_of_a_widened_table_stay(log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They are written anew with the wider type, and the table names no others."""
    export(log.store, tmp_path / "lake", tables=tables(log, "integer"))
    lost = refused_after(DeltaTable.create_write_transaction, CommitFailedError("it is there already"))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lost)
        export(log.store, tmp_path / "lake", tables=tables(log, "long"))
    report: Any = check_lake(log.store, tmp_path / "lake")
    assert report.ok
    assert DeltaTable(tmp_path / "lake" / "orders").schema().fields[0].type.type == "long"


def test_an_export_recognises_its_own_merge(log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It goes on, and blames no other exporter."""
    lost = refused_after(delta_table.merge, CommitFailedError("it is there already"))
    monkeypatch.setattr(delta_table, "merge", lost)
    report = export(log.store, tmp_path / "lake", tables=tables(log, "long", mode="upsert", key=["id"]))
    assert report.until == log.end
    rows = DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table()
    assert sorted(zip(rows["id"].to_pylist(), rows["number"].to_pylist(), strict=True)) == [(0, 2), (1, 3)]


def test_the_files_of_an_iceberg_table_stay(log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those of an export, and the one into which it merges them: the catalog has replaced the table's metadata."""
    table = pytest.importorskip("pyiceberg.table")
    from pyiceberg.exceptions import CommitFailedException

    lake = tmp_path / "lake"
    export(log.store, lake, until=log.offsets[2], lake_format="iceberg")
    lost = refused_after(table.Transaction.commit_transaction, CommitFailedException("it is there already"))
    monkeypatch.setattr(table.Transaction, "commit_transaction", lost)
    export(log.store, lake, lake_format="iceberg")
    assert len(open_table(LakeLocation.of(lake, lake_format="iceberg")).files()) == 1
    assert check_lake(log.store, lake).ok
