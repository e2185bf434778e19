"""Keyed typed tables: the newest row of each key, and none for a key whose last message has an empty body."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from reput.errors import ConfigError, StoreError
from reput.store.disk.sealed_file import seal
from reput.store.state.identity import StoreIdentity
from reput.table import LogTable
from reput_plugins import spark_export
from reput_plugins.spark_export import check_lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.lake_table import CommitConflict, LakeTable, TransactionData
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.typed.keyed_rows import DELETED
from spark.exporting import without_spark
from spark.lakes import rows_in
from written_log import START_MS, WrittenLog

FIELDS = {"id": "integer", "region": "string", "amount": "number", "note": "string"}
DAY_MS = 86_400_000
Export = Callable[..., Any]


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


@pytest.fixture(params=["delta", "deletion vectors", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of the tables: their format, or that of Delta tables whose merges mark rows."""
    if request.param != "delta":
        pytest.importorskip({"iceberg": "pyiceberg", "deletion vectors": "pyroaring"}[request.param])
    return str(request.param)


@pytest.fixture
def lake_format(kind: str) -> str:
    """Return the format of the tables."""
    return "iceberg" if kind == "iceberg" else "delta"


@pytest.fixture
def export(kind: str, lake_format: str) -> Export:
    """Return `export` into tables of the kind."""

    def run(*given: Any, tables: dict[str, Any], **options: Any) -> Any:
        if kind == "deletion vectors":
            tables["tables"]["orders"]["deletion_vectors"] = True
        return spark_export.export(*given, tables=tables, lake_format=lake_format, **options)

    return run


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return an empty log."""
    return WrittenLog(tmp_path / "store", segment_size=1 << 16)


def tables(tmp_path: Path, **keys: Any) -> dict[str, Any]:
    """Return the typed table `orders`, keyed by its id unless *keys* say otherwise."""
    fields = keys.pop("fields", FIELDS)
    schema = tmp_path / "orders.json"
    schema.write_text(json.dumps({"type": "object", "properties": {name: {"type": fields[name]} for name in fields}}))
    given = {"topic": "orders", "format": "json", "schema": str(schema), "mode": "upsert", "key": ["id"], **keys}
    return {"tables": {"orders": given}}


def put(log: WrittenLog, body: dict[str, Any] | None, keys: str | None = None) -> int:
    """Append an order, or an empty body."""
    data = b"" if body is None else json.dumps(body).encode()
    properties = b"" if keys is None else b"KEYS\x01%s\x02" % keys.encode()
    return log.append(data, properties=properties, store_timestamp=START_MS + DAY_MS * len(log.offsets) // 50)


def orders(lake: Path) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    return list(rows_in(lake / "orders").to_pylist())


def table_of(lake: Path, lake_format: str) -> LakeTable:
    """Return the newest version of the table."""
    return open_table(LakeLocation.of(lake / "orders", lake_format=lake_format))


def offset_of(row: dict[str, Any]) -> int:
    """Return the commit-log offset of a row, whose log columns are in a struct or have a prefix."""
    return int(row["_log"]["commitLogOffset"] if "_log" in row else row["log_commitLogOffset"])


def letters(lake: Path) -> list[tuple[int, str]]:
    """Return offset and reason of each dead letter."""
    found = rows_in(lake / "orders.dead_letters").to_pylist()
    return sorted((row["commitLogOffset"], row["reason"]) for row in found)


KEYS: list[Any] = [
    pytest.param({"key": ["id"]}, lambda row: (row["id"],), str, id="number"),
    pytest.param(
        {"key": "keys"},
        lambda row: (row["_key"],),
        lambda number: f"order {number}",
        id="KEYS",
        marks=pytest.mark.long,
    ),
    pytest.param(
        {"key": ["region", "id"], "prefix": "log_", "partition_by": ["region"]},
        lambda row: (row["region"], row["id"]),
        lambda number: f"r{number % 3} {number}",
        id="two columns, partitioned",
    ),
]


@pytest.mark.parametrize(("options", "key_of", "keys_of"), KEYS)
def test_the_table_equals_a_dictionary_that_took_each_message(
    log: WrittenLog,
    tmp_path: Path,
    options: dict[str, Any],
    key_of: Any,
    keys_of: Any,
    export: Export,
    lake_format: str,
):
    """Random keys, several changes of one in a range and in several ranges, removals, and messages without a key."""
    chance = random.Random(11)
    lake, given = tmp_path / "lake", tables(tmp_path, **options)
    expected: dict[Any, tuple[int, float]] = {}
    dead: list[int] = []
    for _ in range(6 if lake_format == "delta" else 3):
        for _ in range(chance.randrange(20, 60)):
            number = chance.randrange(25)
            body = {"id": number, "region": f"r{number % 3}", "amount": chance.random()}
            keys = keys_of(number)
            key = key_of({**body, "_key": keys})
            kind = chance.random()
            if kind < 0.05:
                # Without a key: a removal of nothing that is known.
                dead.append(put(log, None))
            elif kind < 0.25:
                put(log, None, keys)
                expected.pop(key, None)
            else:
                expected[key] = (put(log, body, keys), body["amount"])
        log.save()
        export(log.store, lake, tables=given)
        found = orders(lake)
        held = {key_of(row): (offset_of(row), row["amount"]) for row in found}
        assert len(found) == len(held)
        assert held == expected
    assert [offset for offset, _ in letters(lake)] == dead
    table = table_of(lake, lake_format)
    assert export(log.store, lake, tables=given).records == 0
    assert table_of(lake, lake_format).version() == table.version()
    # The files by which workers hand over changes are gone.
    files = list((lake / "orders").rglob("*.parquet"))
    assert [path for path in files if DELETED in pq.read_schema(path).names] == []
    report: Any = check_lake(log.store, lake)
    assert report.ok
    assert report.tables["orders"].rows == len(expected)


def test_keys_that_are_none_are_dead_letters(log: WrittenLog, tmp_path: Path):
    """A null in a key column, an empty body without KEYS, KEYS that are no value of the column; they change no row."""
    put(log, {"id": 1, "amount": 1})
    bad = [put(log, {"amount": 2}), put(log, None), put(log, None, "one")]
    put(log, None, "7")
    log.save()
    spark_export.export(log.store, tmp_path / "lake", tables=tables(tmp_path))
    assert [row["id"] for row in orders(tmp_path / "lake")] == [1]
    found = letters(tmp_path / "lake")
    assert [offset for offset, _ in found] == bad
    assert found[0][1] == "the key is null: column=id"
    assert found[1][1] == "the message has no KEYS to use as the key"
    assert "one" in found[2][1]


def test_a_range_that_changes_no_row_is_recorded(log: WrittenLog, tmp_path: Path, export: Export):
    """A removal of an absent key, or messages of other topics: the next export begins behind them."""
    given, lake = tables(tmp_path), tmp_path / "lake"
    put(log, {"id": 1})
    log.save()
    export(log.store, lake, tables=given)
    put(log, None, "9")
    log.append(b"other", topic=b"others")
    log.save()
    assert export(log.store, lake, tables=given).until == log.end
    log.append(b"other", topic=b"others")
    log.save()
    assert export(log.store, lake, tables=given).until == log.end
    assert export(log.store, lake, tables=given).begin == log.end
    assert len(orders(lake)) == 1


def test_a_field_that_the_body_has_no_more_is_null_in_the_new_row(log: WrittenLog, tmp_path: Path, export: Export):
    """The newest body is the whole row; a field that the schema adds is a column."""
    lake = tmp_path / "lake"
    put(log, {"id": 1, "note": "old", "amount": 1})
    put(log, {"id": 2, "note": "stays", "amount": 1})
    log.save()
    export(log.store, lake, tables=tables(tmp_path))
    put(log, {"id": 1, "amount": 2, "more": 5})
    log.save()
    fields = {"id": "integer", "amount": "number", "more": "integer"}
    export(log.store, lake, tables=tables(tmp_path, fields=fields))
    found = sorted((row["id"], row["note"], row["amount"], row["more"]) for row in orders(lake))
    assert found == [(1, None, 2.0, 5), (2, "stays", 1.0, None)]


def test_of_two_exporters_one_is_refused(log: WrittenLog, tmp_path: Path, export: Export, lake_format: str):
    """Even if their keys differ: the recorded end of the log decides. Its files are removed."""
    lake = tmp_path / "lake"
    put(log, {"id": 1})
    log.save()
    export(log.store, lake, tables=tables(tmp_path))
    first, second = table_of(lake, lake_format), table_of(lake, lake_format)
    rows = first.dataset().to_table().append_column(DELETED, pa.array([False]))
    ended = TransactionData({"reput:a:0:export": 99})
    first.merge_rows(rows, ["id"], {}, DELETED, (), ended)
    files = set((lake / "orders").rglob("*.parquet"))
    with pytest.raises(CommitConflict):
        second.merge_rows(rows.set_column(0, "id", pa.array([2])), ["id"], {}, DELETED, (), ended)
    assert [row["id"] for row in orders(lake)] == [1]
    if lake_format == "iceberg":
        assert set((lake / "orders").rglob("*.parquet")) == files


def test_each_store_has_rows_of_its_own(log: WrittenLog, tmp_path: Path, export: Export):
    """Their messages have no common order, so a store neither replaces nor removes another's row."""
    lake, given = tmp_path / "lake", tables(tmp_path)
    put(log, {"id": 1, "amount": 1})
    log.save()
    export(log.store, lake, tables=given, store_id="a")
    other = WrittenLog(tmp_path / "other", segment_size=1 << 16)
    put(other, {"id": 1, "amount": 2})
    put(other, {"id": 2, "amount": 3})
    put(other, None, "2")
    other.save()
    export(other.store, lake, tables=given, store_id="b")
    put(log, None, "1")
    log.save()
    export(log.store, lake, tables=given, store_id="a")
    assert [(row["_log"]["store"], row["id"], row["amount"]) for row in orders(lake)] == [("b", 1, 2.0)]


def test_a_cut_log_is_refused_with_the_way_out(log: WrittenLog, tmp_path: Path):
    """The replaced rows cannot come back, so nothing is changed until the operator moves the table away."""
    lake, given = tmp_path / "lake", tables(tmp_path)
    put(log, {"id": 1, "amount": 1})
    put(log, {"id": 1, "amount": 2})
    log.save()
    (log.store / "reput").mkdir()
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, "1a" * 16, {})))
    spark_export.export(log.store, lake, tables=given)
    short = WrittenLog(log.store, segment_size=1 << 16)
    put(short, {"id": 1, "amount": 1})
    put(short, {"id": 2, "amount": 7})
    short.save()
    for accept in (False, True):
        expected = r"with a key cannot be rolled back: cut_at=\d+ lake=.*/orders key=id"
        with pytest.raises(StoreError, match=expected) as error:
            spark_export.export(log.store, lake, tables=given, accept_truncation=accept)
        assert "export again: the table is rebuilt from" in error.value.advice
    assert [row["amount"] for row in orders(lake)] == [2.0]
    (lake / "orders").rename(tmp_path / "old")
    (lake / "orders.dead_letters").rename(tmp_path / "old.dead_letters")
    spark_export.export(log.store, lake, tables=given)
    assert sorted((row["id"], row["amount"]) for row in orders(lake)) == [(1, 1.0), (2, 7.0)]


def test_rows_whose_record_retention_removed_stay(log: WrittenLog, tmp_path: Path):
    """They are the newest of their keys, until a later message replaces them."""
    lake, given = tmp_path / "lake", tables(tmp_path)
    small = WrittenLog(tmp_path / "small", segment_size=4096)
    for number in range(60):
        put(small, {"id": number})
    small.save()
    spark_export.export(small.store, lake, tables=given)
    first = min((small.store / "commitlog").iterdir())
    first.unlink()
    put(small, {"id": 1, "amount": 5})
    end = small.end
    small.save()
    first.unlink()
    assert LogTable(small.store).offset_min > 0
    assert spark_export.export(small.store, lake, tables=given).until == end
    assert sorted(row["id"] for row in orders(lake)) == list(range(60))
    assert next(row["amount"] for row in orders(lake) if row["id"] == 1) == 5.0


def test_what_is_no_key_is_refused(log: WrittenLog, tmp_path: Path):
    """With the columns there are; a table keeps its key."""
    put(log, {"id": 1})
    log.save()
    lake = tmp_path / "lake"
    for keys, said in (
        ({"key": ["absent"]}, "key=absent type=none"),
        ({"key": ["amount"]}, "key=amount type=double"),
        ({"key": []}, "table=orders key=None"),
        ({"mode": "append"}, "key="),
    ):
        with pytest.raises(ConfigError, match=said):
            spark_export.export(log.store, lake, tables=tables(tmp_path, **keys))
    spark_export.export(log.store, lake, tables=tables(tmp_path))
    with pytest.raises(ConfigError, match=r"has another key: lake=.* kept=id asked=region"):
        spark_export.export(log.store, lake, tables=tables(tmp_path, key=["region"]))
    with pytest.raises(ConfigError, match=r"has another key: lake=.* kept=id asked=none"):
        spark_export.export(log.store, lake, tables=tables(tmp_path, mode="append", key=[], partition_by=[]))
