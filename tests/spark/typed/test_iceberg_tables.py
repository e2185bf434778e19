"""Typed tables in Iceberg's format: rows, dead letters, changes of the schema and cuts, as in Delta's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog

from reput.cli import main
from reput.errors import ConfigError
from reput.store.disk.sealed_file import seal
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export import check_lake, export
from reput_plugins.spark_export.lakes import iceberg_catalog
from spark.exporting import without_spark
from spark.lakes import iceberg_files, iceberg_table
from written_log import START_MS, WrittenLog

DAY_MS = 86_400_000
FIELDS = {"id": "integer", "text": "string", "rate": "float", "even": "boolean"}


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


class Orders:
    """A log whose every tenth body is none, and the typed table `orders` of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = WrittenLog(root / "store")
        (root / "store" / "reput").mkdir(parents=True)
        (root / "store" / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, "one", {})))
        self.lake = root / "lake"
        self.append(40)

    def append(self, count: int, text: str = "t", **more: Any) -> None:
        for _ in range(count):
            number = len(self.log.offsets)
            body = {"id": number, "text": text, "rate": 0.5, "even": number % 2 == 0, "place": {"x": number}, **more}
            encoded = b"no" if number % 10 == 0 else json.dumps(body).encode()
            self.log.append(encoded, store_timestamp=START_MS + DAY_MS * (number // 16))
        self.log.save()

    def export(self, types: dict[str, Any] = FIELDS, keys: dict[str, Any] | None = None, **options: Any) -> Any:
        """Export with a schema of these types, and a struct with the id's type."""
        place = {"type": "struct", "fields": [field("x", types["id"])]}
        fields = [*(field(name, kind) for name, kind in types.items()), field("place", place)]
        (self.root / "schema.json").write_text(json.dumps({"type": "struct", "fields": fields}))
        described = {"topic": "orders", "format": "json", "schema": str(self.root / "schema.json"), **(keys or {})}
        return export(
            self.log.store, self.lake, tables={"tables": {"orders": described}}, lake_format="iceberg", **options
        )

    def rows(self, name: str = "orders") -> list[dict[str, Any]]:
        """Return the rows that pyiceberg alone finds, in the order of the log."""
        with iceberg_table(self.lake / name) as table:
            found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row.get("_log", row)["commitLogOffset"])


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)


GOOD = [number for number in range(40) if number % 10]


@pytest.mark.parametrize(
    "columns",
    [["_date"], ["even", "id"], *(pytest.param(columns, marks=pytest.mark.long) for columns in (["text"], []))],
    ids=str,
)
def test_each_body_is_once_in_the_table_or_in_its_dead_letters(orders: Orders, columns: list[str]):
    """In partitions of each kind, for several exports; the files are merged, and every row equals its record."""
    keys = {"partition_by": columns}
    first = orders.export(keys=keys, until=orders.log.offsets[25])
    assert (first.tables[0].records, first.tables[0].dead_letters) == (22, 3)
    orders.export(keys=keys)
    assert orders.export(keys=keys).records == 0
    assert [(row["id"], row["even"], row["place"]["x"]) for row in orders.rows()] == [(n, not n % 2, n) for n in GOOD]
    assert [row["commitLogOffset"] for row in orders.rows("orders.dead_letters")] == orders.log.offsets[::10]
    assert main(["lake", "optimize", str(orders.lake), "--lake-format", "iceberg"]) == 0
    report: Any = check_lake(orders.log.store, orders.lake)
    assert report.ok
    assert (report.tables["orders"].rows, report.tables["orders"].dead_letters) == (36, 4)
    assert [row["id"] for row in orders.rows()] == GOOD


@pytest.mark.parametrize("columns", [["_date"], ["id"]], ids=str)
def test_columns_are_added_and_widened(orders: Orders, columns: list[str]):
    """Also in a struct, in an array, and by which the table is partitioned. Files are not written anew, and a merge has
    the new types. Changes that only Delta's tables allow are refused with that difference.
    """
    keys = {"partition_by": columns}
    array = {"type": "array", "elementType": "integer", "containsNull": True}
    narrow = {**FIELDS, "price": "decimal(9,2)", "all": array, "day": "date"}
    orders.append(2, price="1.25", all=[1, 2], day="2026-01-31")
    orders.export(narrow, keys)
    files = set((orders.lake / "orders").rglob("*.parquet"))
    wide = {**narrow, "id": "long", "rate": "double", "price": "decimal(12,2)", "more": "string"}
    wide["all"] = {**array, "elementType": "long"}
    orders.append(8, more="new", id=2**40, price="1234567890.5", all=[2**40], day="2026-02-01")
    orders.export(wide, keys)
    assert files < set((orders.lake / "orders").rglob("*.parquet"))
    for _ in range(2):
        rows = orders.rows()
        assert [(row["id"], row["more"]) for row in rows[35:]] == [(39, None), (41, None), *[(2**40, "new")] * 8]
        found = [(str(row["price"]), row["all"]) for row in rows[36:38]]
        assert found == [("1.25", [1, 2]), ("1234567890.50", [2**40])]
        assert rows[0]["place"] == {"x": 1}
        assert main(["lake", "optimize", str(orders.lake), "--lake-format", "iceberg"]) == 0
    difference = r"column=all.element kept=int64 asked=double; column=day kept=date32\[day\] asked=timestamp\[us\]"
    with pytest.raises(ConfigError, match=difference) as refused:
        orders.export({**wide, "day": "timestamp_ntz", "all": {**array, "elementType": "double"}}, keys)
    assert refused.value.advice.startswith("Iceberg widens only int32 to int64")
    assert check_lake(orders.log.store, orders.lake).ok


def test_rows_and_dead_letters_of_a_cut_log_are_taken_out(orders: Orders):
    """And those that came in their place are there once."""
    orders.export()
    epochs = read_epochs(orders.log.store, "one").begin(orders.log.offsets[25], START_MS)
    (orders.log.store / "reput" / "epochs").write_bytes(epochs.seal())
    for path in (orders.log.store / "commitlog").iterdir():
        path.unlink()
    orders.log.data, orders.log.offsets = orders.log.data[: orders.log.offsets[25]], orders.log.offsets[:25]
    orders.append(20, "second")
    orders.export()
    wanted = [(number, "t" if number < 25 else "second") for number in range(45) if number % 10]
    assert [(row["id"], row["text"]) for row in orders.rows()] == wanted
    assert [row["commitLogOffset"] for row in orders.rows("orders.dead_letters")] == orders.log.offsets[::10]


@contextmanager
def catalog_of(path: Path) -> Iterator[Any]:
    catalog = SqlCatalog("mine", uri=f"sqlite:///{path}")
    try:
        yield catalog
    finally:
        catalog.close()


def test_a_catalog_has_both_tables_by_name(orders: Orders, monkeypatch: pytest.MonkeyPatch):
    """``reput.orders``, and its dead letters without a point in the name; and the watermarks of each."""
    path = orders.root / "mine.db"
    # pyiceberg reads its configuration when it is imported.
    monkeypatch.setattr(
        iceberg_catalog, "load_catalog", lambda name, **more: SqlCatalog(name, uri=f"sqlite:///{path}", **more)
    )
    orders.export(catalog="mine")
    with catalog_of(path) as catalog:
        names = [f"{table}{more}" for table in ("orders", "orders_dead_letters") for more in ("", "_watermarks")]
        assert set(catalog.list_tables("reput")) == {("reput", name) for name in names}
        assert catalog.load_table("reput.orders").scan().to_arrow().num_rows == 36
    report: Any = check_lake(orders.log.store, orders.lake, catalog="mine")
    assert report.ok
    assert report.tables["orders"].dead_letters == 4


def test_only_files_that_hold_a_changed_key_are_written_anew(orders: Orders):
    """Also when the key has become wider; merged files have each key once, and every row equals its record."""
    keys = {"mode": "upsert", "key": ["id"], "cluster_by": ["id"], "partition_by": ["even"]}
    orders.export(keys=keys)
    first = set(iceberg_files(orders.lake / "orders"))
    orders.append(5, id=2**40, even=True)
    orders.append(5, id=11, even=False)
    orders.export({**FIELDS, "id": "long"}, keys)
    second = set(iceberg_files(orders.lake / "orders"))
    assert ["even=true" in path for path in first - second] == [False]
    assert len(second - first) == 3
    for _ in range(2):
        rows = orders.rows()
        assert [row["id"] for row in rows] == [*(number for number in GOOD if number != 11), 2**40, 11]
        assert [row["_log"]["commitLogOffset"] for row in rows[-2:]] == [orders.log.offsets[44], orders.log.offsets[49]]
        assert main(["lake", "optimize", str(orders.lake), "--lake-format", "iceberg"]) == 0
    assert len(iceberg_files(orders.lake / "orders")) == 2
    assert check_lake(orders.log.store, orders.lake).ok
