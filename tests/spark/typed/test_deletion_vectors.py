"""Keyed typed tables whose merges mark the replaced rows: files, readers, and own transactions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")
pytest.importorskip("pyroaring")

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaProtocolError

from reput.errors import ConfigError, DispatcherError
from reput_plugins.spark_export import check_lake, export, optimize_lake, vacuum_lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes import delta_deleting, delta_table
from reput_plugins.spark_export.lakes.changed_keys import ChangedKeys, NumberOrder
from reput_plugins.spark_export.lakes.deletion_vectors import (
    FOLDER,
    DeletionVector,
    as_bitmap,
    read_rows,
    write_bitmaps,
    z85_decode,
    z85_encode,
)
from reput_plugins.spark_export.lakes.delta_deleting import FileKeys, KeptKeys
from reput_plugins.spark_export.lakes.lake_table import CommitConflict, TransactionData
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.typed.keyed_rows import DELETED
from spark.exporting import without_spark
from spark.lakes import rows_in
from written_log import START_MS, WrittenLog

FIELDS = {"id": "integer", "amount": "number"}


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


class Orders:
    """A log, and the table `orders` of it, with the newest row of each id."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = WrittenLog(root / "store", segment_size=1 << 16)
        self.lake = root / "lake"
        self.table = self.lake / "orders"
        self.expected: dict[int, float] = {}

    def put(self, *ids: int, amount: float) -> None:
        """Append an order of each id."""
        for number in ids:
            body = json.dumps({"id": number, "amount": amount}).encode()
            self.log.append(body, store_timestamp=START_MS + len(self.log.offsets))
            self.expected[number] = amount
        self.log.save()

    def export(self, fields: dict[str, str] = FIELDS, **keys: Any) -> Any:
        """Export the log into the table."""
        schema = self.root / "orders.json"
        schema.write_text(
            json.dumps({"type": "object", "properties": {name: {"type": fields[name]} for name in fields}})
        )
        given = {"topic": "orders", "format": "json", "schema": str(schema), "mode": "upsert", "key": ["id"], **keys}
        given.setdefault("deletion_vectors", True)
        return export(self.log.store, self.lake, tables={"tables": {"orders": given}})

    def rows(self) -> dict[int, float]:
        """Return the amounts by id; no id has two rows."""
        found = rows_in(self.table).to_pylist()
        held = {row["id"]: row["amount"] for row in found}
        assert len(held) == len(found)
        return held

    def open(self) -> Any:
        """Return the newest version of the table."""
        return open_table(LakeLocation.of(self.table))

    def vectors(self) -> set[str]:
        """Return the files of deletion vectors."""
        return {f"{FOLDER}/{path.name}" for path in (self.table / FOLDER).iterdir()}


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Return a table with 100 rows in one file, of which 10 were replaced."""
    found = Orders(tmp_path)
    found.put(*range(100), amount=1)
    found.export()
    found.put(*range(10), amount=2)
    found.export()
    return found


def test_a_merge_writes_no_file_anew(orders: Orders):
    """The old file stays and lacks ten rows; a second merge marks further ones beside them."""
    (first,) = {file.path for file in orders.open().files() if file.deletion is not None}
    orders.put(*range(5, 15), amount=3)
    orders.export()
    files = {file.path: file for file in orders.open().files()}
    assert len(files) == 3
    assert files[first].deletion.cardinality == 15
    assert sorted(file.row_count for file in files.values()) == [10, 10, 100]
    assert orders.rows() == orders.expected
    assert check_lake(orders.log.store, orders.lake).ok


def test_a_file_whose_last_row_is_replaced_is_removed(orders: Orders):
    """Nothing is left to read in it."""
    orders.put(*range(100), amount=4)
    orders.export()
    (file,) = orders.open().files()
    assert (file.row_count, file.deletion) == (100, None)
    assert orders.rows() == orders.expected


def test_readers_find_the_newest_rows_or_refuse(orders: Orders):
    """The Delta library's scan, DuckDB through it, and Polars; its pandas and its Arrow dataset say what they lack."""
    delta = DeltaTable(orders.table)
    assert orders.rows() == orders.expected
    for read in (delta.to_pandas, delta.to_pyarrow_table, delta.to_pyarrow_dataset):
        with pytest.raises(DeltaProtocolError, match="deletionVectors"):
            read()
    polars = pytest.importorskip("polars")
    found = polars.scan_delta(str(orders.table)).select("id", "amount").collect()
    assert dict(found.rows()) == orders.expected
    assert found.height == len(orders.expected)
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.from_arrow(delta.scan()).project("id, amount").fetchall()
    assert len(rows) == len(orders.expected)
    assert dict(rows) == orders.expected
    # No further feature than needed, which a reader might lack.
    assert delta.protocol().reader_features == ["deletionVectors"]


@pytest.mark.parametrize("library_first", [False, True])
def test_of_two_writers_one_is_refused(orders: Orders, library_first: bool):
    """A merge beside the Delta library's, or beside another merge: nothing is half done, and its files are removed."""
    first, second = orders.open(), orders.open()
    rows = second.dataset().to_table().slice(0, 3).append_column(DELETED, pa.array([True] * 3))
    if library_first:
        first.delta.optimize.compact()
    else:
        first.merge_rows(rows, ["id"], {}, DELETED, (), TransactionData({"reput:a:0:export": 99}))
    before, files = orders.rows(), set(orders.table.rglob("*.*"))
    with pytest.raises(CommitConflict):
        second.merge_rows(rows, ["id"], {}, DELETED, (), TransactionData({"reput:a:0:export": 99}))
    assert orders.rows() == before
    assert set(orders.table.rglob("*.*")) == files


def test_the_library_s_merging_of_files_is_refused_after_a_merge(orders: Orders):
    """It would bring the replaced rows back."""
    old = DeltaTable(orders.table)
    orders.put(50, amount=5)
    orders.export()
    with pytest.raises(CommitFailedError):
        old.optimize.compact()
    assert orders.rows() == orders.expected


def test_a_checkpoint_keeps_what_is_deleted(orders: Orders, monkeypatch: pytest.MonkeyPatch):
    """Readers and the next merge begin with it."""
    monkeypatch.setattr(delta_table, "CHECKPOINT_INTERVAL", 1)
    orders.put(20, amount=6)
    orders.export()
    version = orders.open().version()
    log = orders.table / "_delta_log"
    assert (log / f"{version:020d}.checkpoint.parquet").exists()
    for number in range(version):
        (log / f"{number:020d}.json").unlink()
    assert orders.rows() == orders.expected
    orders.put(20, 30, amount=7)
    orders.export()
    assert orders.rows() == orders.expected
    assert check_lake(orders.log.store, orders.lake).ok


def test_optimize_removes_deleted_rows_once_they_are_many(orders: Orders):
    """Small files are merged without their deleted rows; a file that is large enough, above a fifth of its rows."""
    orders.put(*range(30), amount=8)
    orders.export()
    table = orders.open()
    assert [file.deletion is None for file in table.files()].count(False) == 1
    assert table.merge_files(None, 1) == 1
    assert [file.deletion for file in orders.open().files()] == [None, None]
    assert orders.rows() == orders.expected
    assert optimize_lake(orders.lake, table="orders")[0].files == 1
    assert orders.rows() == orders.expected
    assert check_lake(orders.log.store, orders.lake).ok


def test_vacuum_removes_the_vectors_that_no_version_of_the_last_hours_needs(orders: Orders):
    """The Delta library's own vacuum, which takes vectors that are in use, does not see them."""
    orders.put(40, amount=9)
    orders.export()
    (kept,) = {file.deletion.path for file in orders.open().files() if file.deletion is not None}
    stale = as_bitmap(np.arange(3))
    (orphan,) = write_bitmaps(LakeLocation.of(orders.table), [stale])
    assert len(orders.vectors()) == 3
    for name in orders.vectors():
        os.utime(orders.table / name, (0, 0))
    DeltaTable(orders.table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(orders.vectors()) == 3
    (report, *_) = vacuum_lake(orders.lake, hours=1)
    # The vector before the last merge is still needed for the version before.
    assert (report.files, report.versions_lost) == (1, ())
    assert orphan.path not in orders.vectors()
    versions = orders.open().versions(orders.vectors() - {kept})
    assert [next(versions).stays, next(versions).stays] == [True, False]
    assert orders.rows() == orders.expected


def test_a_widened_column_has_no_deleted_row(orders: Orders):
    """Its files are written anew anyway."""
    orders.put(60, amount=0.5)
    schema = {"id": "integer", "amount": "number", "more": "integer"}
    orders.export(schema)
    table = orders.open()
    wider = pa.schema(
        [pa.field("more", pa.decimal128(30, 2)) if field.name == "more" else field for field in table.schema()]
    )
    table.widen(wider)
    assert [file.deletion for file in orders.open().files()] == [None] * 3
    assert orders.rows() == orders.expected


def test_a_damaged_vector_is_reported(orders: Orders):
    """By the check, and by the next merge, which changes nothing."""
    (path,) = [orders.table / name for name in orders.vectors()]
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    report = check_lake(orders.log.store, orders.lake)
    assert not report.ok
    assert "a deletion vector is damaged" in str(report.views["orders"])
    version = orders.open().version()
    orders.put(70, amount=1)
    with pytest.raises(DispatcherError, match="a deletion vector is damaged"):
        orders.export()
    assert orders.open().version() == version


def test_a_table_gets_deletion_vectors_later_and_keeps_them(tmp_path: Path):
    """Its settings and its times without a zone stay; leaving the key out later is refused with the way out."""
    orders = Orders(tmp_path)
    orders.put(1, 2, amount=1)
    orders.export(deletion_vectors=False)
    settings = dict(orders.open().properties())
    orders.put(2, amount=2)
    orders.export()
    assert orders.open().properties() == {**settings, "delta.enableDeletionVectors": "true"}
    assert len(orders.vectors()) == 1
    assert orders.rows() == orders.expected
    with pytest.raises(ConfigError, match=r"the table has deletion vectors: lake=.*/orders") as error:
        orders.export(deletion_vectors=False)
    assert "deletion_vectors = true" in str(error.value.advice)


def test_where_they_cannot_be_is_said(tmp_path: Path):
    """A table with a row per message, and an Iceberg table."""
    orders = Orders(tmp_path)
    orders.put(1, amount=1)
    with pytest.raises(ConfigError, match="deletion_vectors=true"):
        orders.export(mode="append", key=[])
    pytest.importorskip("pyiceberg")
    given = {"topic": "orders", "format": "json", "schema": "infer", "mode": "upsert", "key": ["id"]}
    tables = {"tables": {"orders": {**given, "deletion_vectors": True}}}
    with pytest.raises(ConfigError, match="an Iceberg table cannot have deletion vectors"):
        export(orders.log.store, tmp_path / "other", tables=tables, lake_format="iceberg")


def test_a_feature_of_another_program_is_refused(orders: Orders):
    """A merge would not do what it asks of writers."""
    orders.open().delta.alter.set_table_properties({"delta.appendOnly": "true"})
    orders.put(1, amount=9)
    with pytest.raises(DispatcherError, match="unknown_features=appendOnly"):
        orders.export()


def test_bitmaps_come_back_as_they_were_written(tmp_path: Path):
    """Few rows, many, runs of them and none; and a UUID in Delta's letters, of which PROTOCOL.md has this example."""
    chance = np.random.default_rng(3)
    wanted = [
        np.array([0, 7, (1 << 32) - 1]),
        np.sort(chance.choice(200_000, 90_000, replace=False)),
        np.arange(70_000),
        np.array([], np.int64),
    ]
    location = LakeLocation.of(tmp_path)
    vectors = write_bitmaps(location, [as_bitmap(rows) for rows in wanted])
    assert [vector.cardinality for vector in vectors] == [len(rows) for rows in wanted]
    for rows, vector in zip(wanted, vectors, strict=True):
        assert (read_rows(location, vector) == rows).all()
    told = DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
    assert told.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert z85_encode(z85_decode("^-aqEH.-t@S}K{vb[*k^")) == "^-aqEH.-t@S}K{vb[*k^"


@pytest.mark.parametrize("key", [["number"], ["text"], ["text", "number"], ["number", "text"]])
def test_rows_with_a_changed_key_are_found(key: list[str]):
    """The same ones as by comparing every row, whether the order of the numbers is known or not; of one store only."""
    chance = np.random.default_rng(4)

    def table(count: int) -> pa.Table:
        numbers = chance.integers(-(1 << 63), 1 << 63, 40)[chance.integers(0, 40, count)]
        texts = pa.array([f"key {number % 5}" for number in numbers.tolist()])
        return pa.table({"number": numbers, "text": texts, "store": chance.choice(["a", "b"], count)})

    for _ in range(20):
        rows, wanted = table(int(chance.integers(0, 300))), table(int(chance.integers(0, 20)))
        rows = pa.concat_tables([rows.slice(0, 50), rows.slice(50)])
        changed = ChangedKeys(wanted, key, {"store": "a"})
        keys = {tuple(row[name] for name in key) for row in wanted.to_pylist()}
        expected = [
            at
            for at, row in enumerate(rows.to_pylist())
            if tuple(row[name] for name in key) in keys and row["store"] == "a"
        ]
        own = changed.own_rows(rows)
        assert changed.rows_in(rows, own).tolist() == expected
        if changed.number_column is not None:
            order = NumberOrder(rows[changed.number_column])
            assert changed.rows_in(rows, own, order).tolist() == expected
        assert changed.without(rows).num_rows == rows.num_rows - len(expected)


def test_kept_keys_are_bounded():
    """Those used last stay."""
    kept = KeptKeys(1000)
    files = {name: FileKeys(pa.table({"id": np.arange(40)}), np.ones(40, bool)) for name in "abc"}
    for name, keys in files.items():
        kept.keep(name, keys)
    assert kept.bytes == 720
    assert kept.take("a") is None
    assert kept.take("c") is files["c"]
    assert kept.bytes == 360
    kept.keep("large", FileKeys(pa.table({"id": np.arange(400)}), np.ones(400, bool)))
    assert list(kept.files) == ["b"]
    assert delta_deleting.KEPT.bytes <= delta_deleting.KEPT_BYTES_MAX


def test_null_numbers_are_no_key():
    """Another program may have added rows without one."""
    rows = pa.table({"id": pa.array([0, None, 5], pa.int64())})
    changed = ChangedKeys(pa.table({"id": pa.array([0, 5], pa.int64())}), ["id"], {})
    assert changed.rows_in(rows, changed.own_rows(rows)).tolist() == [0, 2]
    assert pc.sum(rows["id"]).as_py() == 5
