"""Columns whose type becomes wider: readers find old and new rows; other changes are refused with the difference."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from reput.errors import ConfigError, DispatcherError
from reput.store.disk.sealed_file import seal
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export import export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes import delta_rewriting
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.typed import typed_job
from spark.exporting import without_spark
from written_log import START_MS, WrittenLog

DAY_MS = 86_400_000
NARROW = {"number": "integer", "rate": "float", "day": "date", "price": "decimal(9,2)"}
WIDE = {"number": "long", "rate": "double", "day": "timestamp_ntz", "price": "decimal(12,2)"}


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def schema_of(types: dict[str, Any]) -> str:
    """Return a Spark schema with these columns, and the number again in a struct and in an array."""
    fields = [*types.items()]
    if "number" in types:
        inner = {"type": "struct", "fields": [field("number", types["number"])]}
        fields += [("place", inner), ("all", {"type": "array", "elementType": types["number"], "containsNull": True})]
    return json.dumps({"type": "struct", "fields": [field(name, kind) for name, kind in fields]})


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


class Orders:
    """A log, and the typed table `orders` of it."""

    def __init__(self, root: Path, store_id: str = "one") -> None:
        self.root = root
        self.log = WrittenLog(root / "store")
        (root / "store" / "reput").mkdir(parents=True)
        (root / "store" / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, store_id, {})))
        self.table = root / "lake" / "orders"

    def append(self, numbers: list[Any], day: str) -> None:
        """Append a message for each number."""
        for number in numbers:
            body = {"number": number, "rate": 0.5, "day": day, "price": "1.25", "place": {"number": number}}
            self.log.append(
                json.dumps(body | {"all": [number]}).encode(), store_timestamp=START_MS + DAY_MS * len(self.log.offsets)
            )
        self.log.save()

    def export(self, types: dict[str, Any], **more: Any) -> Any:
        """Export with a schema of these types."""
        (self.root / "schema.json").write_text(schema_of(types))
        keys = {"topic": "orders", "format": "json", "schema": str(self.root / "schema.json"), **more}
        return export(self.log.store, self.root / "lake", tables={"tables": {"orders": keys}})


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Return a table with three rows of narrow types, in three partitions."""
    made = Orders(tmp_path)
    made.append([1, 2, 3], "2026-01-31")
    made.export(NARROW)
    return made


BIG = 2**40
ROWS = [*((number, 0.5, datetime(2026, 1, 31), 1.25, number, [number]) for number in (1, 2, 3))]
ROWS.append((BIG, 0.5, datetime(2026, 2, 1, 10, 30), 1.25, BIG, [BIG]))


def widened(orders: Orders) -> None:
    """Widen every column, with a row that only the wide types hold."""
    orders.append([BIG], "2026-02-01 10:30:00")
    report = orders.export(WIDE)
    assert (report.records, report.tables[0].dead_letters) == (1, 0)


def test_every_reader_finds_the_rows_of_widened_columns(orders: Orders):
    """Delta's library, DuckDB, Polars and pandas; in structs and arrays as well. A date becomes its midnight."""
    widened(orders)
    table = DeltaTable(orders.table)
    query = 'select number, rate, day, price::double, place.number, "all" from rows order by number'
    found: dict[str, list[tuple[Any, ...]]] = {}
    rows = table.to_pyarrow_dataset()
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    found["duckdb"] = duckdb.sql(query).fetchall()
    found["duckdb, files"] = duckdb.sql(query.replace("rows", f"read_parquet({table.file_uris()!r})")).fetchall()
    frame = polars.read_delta(str(orders.table)).sort("number")
    found["polars"] = [
        (row["number"], row["rate"], row["day"], float(row["price"]), row["place"]["number"], row["all"])
        for row in frame.to_dicts()
    ]
    pandas = table.to_pandas().sort_values("number")
    found["pandas"] = [
        (row.number, row.rate, row.day, float(row.price), row.place["number"], list(row.all))
        for row in pandas.itertuples()
    ]
    assert found == dict.fromkeys(found, ROWS)
    assert rows.count_rows(filter=pc.field("number") == BIG) == 1


def test_the_table_goes_on_after_a_widening(orders: Orders):
    """It keeps its place in the log, its partitions and statistics, and readers of the version before."""
    before = DeltaTable(orders.table)
    widened(orders)
    orders.append([7], "2026-02-02")
    assert orders.export(WIDE).records == 1
    assert orders.export(NARROW | {"number": "long", "more": "string"}).records == 0
    after = DeltaTable(orders.table)
    columns = pa.schema(after.schema().to_arrow())
    assert (columns.field("rate").type, columns.names[-1]) == (pa.float64(), "more")
    assert sorted(after.to_pyarrow_table()["number"].to_pylist()) == [1, 2, 3, 7, BIG]
    assert before.to_pyarrow_table().num_rows == 3
    files = open_table(LakeLocation.of(orders.table)).files()
    assert len({file.partition["_date"] for file in files}) == len(files) == 5
    for path in (orders.table / "_delta_log").glob("*.json"):
        for added in re.findall(r'"add":.*', path.read_text()):
            assert all(f'\\"{name}\\":' in added for name in ("queueOffset", "commitLogOffset"))
    assert len(after.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)) == 3


@pytest.mark.parametrize(("kind", "second"), [("double", 0.5), ("decimal(12,2)", Decimal("0.50"))])
def test_a_whole_number_becomes_one_with_a_fraction(orders: Orders, kind: str, second: Any):
    """Also in structs and arrays."""
    orders.append([second if kind == "double" else str(second)], "2026-02-01")
    report = orders.export(NARROW | {"number": kind})
    assert (report.records, report.tables[0].dead_letters) == (1, 0)
    rows = DeltaTable(orders.table).to_pyarrow_table().sort_by("number").to_pylist()
    assert [row["number"] for row in rows] == [second, 1, 2, 3]
    assert [(row["place"]["number"], row["all"]) for row in rows[:2]] == [(second, [second]), (1, [1])]


def test_the_newest_rows_of_keys_are_widened(tmp_path: Path):
    """A key may be wider, too."""
    orders = Orders(tmp_path)
    orders.append([1, 2], "2026-01-31")
    keyed = {"mode": "upsert", "key": ["number"]}
    orders.export(NARROW, **keyed)
    orders.append([2, BIG], "2026-02-01 00:00:00")
    orders.export(WIDE, **keyed)
    rows = DeltaTable(orders.table).to_pyarrow_table().sort_by("number").to_pylist()
    assert [(row["number"], row["day"].day) for row in rows] == [(1, 31), (2, 1), (BIG, 1)]


@pytest.mark.parametrize(
    ("name", "kind", "difference"),
    [
        ("number", "string", "column=number kept=int32 asked=string"),
        ("number", "float", "column=number kept=int32 asked=float"),
        ("day", "timestamp", "column=day kept=date32[day] asked=timestamp[us, tz=UTC]"),
        ("price", "decimal(9,3)", "column=price kept=decimal128(9, 2) asked=decimal128(9, 3)"),
        ("rate", "date", "column=rate kept=float asked=date32[day]"),
    ],
)
def test_a_type_that_does_not_hold_the_old_values_is_refused(orders: Orders, name: str, kind: str, difference: str):
    """With every difference, also inside of structs, and nothing is changed."""
    version = DeltaTable(orders.table).version()
    with pytest.raises(ConfigError) as refused:
        orders.export(WIDE | {name: kind})
    assert difference in str(refused.value)
    if name == "number":
        assert difference.replace("number", "place.number", 1) in str(refused.value)
    assert DeltaTable(orders.table).version() == version


def test_a_widening_that_ends_early_changes_nothing(orders: Orders, monkeypatch: pytest.MonkeyPatch):
    """Its files are removed, and the next export widens the table."""
    files = set(orders.table.rglob("*.parquet"))
    real, calls = delta_rewriting.rewrite, []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as full:
        full.setattr("reput_plugins.spark_export.lakes.delta_table.rewrite", failing)
        with pytest.raises(DispatcherError, match="No space left on device"):
            orders.export(WIDE)
    assert set(orders.table.rglob("*.parquet")) == files
    widened(orders)


def test_another_store_s_rows_that_were_written_with_the_old_type_are_not_added(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
):
    """Its export ends with a sentence, and the next one adds them with the new type."""
    other = Orders(orders.root / "other", "two")
    other.append([9], "2026-01-31")
    (orders.root / "other" / "lake").symlink_to(orders.root / "lake")
    real = typed_job.OpenTables.export

    def late(tables: Any, until: int, run: Any) -> None:
        orders.append([BIG], "2026-02-01 10:30:00")
        with monkeypatch.context() as inner:
            inner.setattr(typed_job.OpenTables, "export", real)
            orders.export(WIDE)
        real(tables, until, run)

    with monkeypatch.context() as racing:
        racing.setattr(typed_job.OpenTables, "export", late)
        with pytest.raises(DispatcherError, match="column=number written=int32 kept=int64"):
            other.export(NARROW)
    assert other.export(NARROW).records == 1
    assert sorted(DeltaTable(orders.table).to_pyarrow_table()["number"].to_pylist()) == [1, 2, 3, 9, BIG]
