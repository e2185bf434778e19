"""Typed tables of JSON: each body once, in the table or in its dead letters, with the columns of the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from reput_plugins.spark_export import export
from spark.exporting import without_spark
from written_log import START_MS, WrittenLog

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "paid": {"type": ["boolean", "null"]},
        "created": {"type": "string", "format": "date-time"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}},
        "items": {"type": "array", "items": {"type": "integer"}},
    },
}
DAY_MS = 86_400_000


def order(number: int) -> dict[str, Any]:
    """Return an order."""
    return {
        "id": number,
        "amount": number / 4,
        "paid": None if number % 5 == 0 else number % 2 == 0,
        "created": "2026-01-31T10:00:00Z",
        "address": {"city": f"city {number % 7}"},
        "items": list(range(number % 4)),
    }


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log in which every tenth order is not one, and every third message is of another topic."""
    log = WrittenLog(tmp_path / "store", segment_size=1 << 16)
    append(log, 300)
    return log


def append(log: WrittenLog, count: int) -> None:
    for _ in range(count):
        number = len(log.offsets)
        body = b'{"id": "%d"}' % number if number % 10 == 0 else json.dumps(order(number)).encode()
        topic = b"other" if number % 3 == 2 else b"orders"
        log.append(body, topic=topic, store_timestamp=START_MS + DAY_MS * number // 100)
    log.save()


def tables_file(tmp_path: Path, **keys: Any) -> Path:
    """Write a file with the table `orders`."""
    (tmp_path / "orders.json").write_text(json.dumps(SCHEMA))
    given = {"topic": "orders", "format": "json", "schema": "orders.json", **keys}
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    path = tmp_path / "tables.toml"
    path.write_text("\n".join(["[tables.orders]", *lines]) + "\n")
    return path


def rows_of(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, in log order."""
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row.get("_log", row)["commitLogOffset"])


def test_each_body_is_once_in_the_table_or_in_its_dead_letters(log: WrittenLog, tmp_path: Path):
    """With the record's place and, for a dead letter, the reason."""
    lake = tmp_path / "lake"
    with without_spark():
        report = export(log.store, lake, tables=tables_file(tmp_path))
    mine = [number for number in range(300) if number % 3 != 2]
    good = [number for number in mine if number % 10]
    rows = rows_of(lake / "orders")
    assert [row["id"] for row in rows] == good
    assert [row["_log"]["commitLogOffset"] for row in rows] == [log.offsets[number] for number in good]
    for row, number in zip(rows, good, strict=True):
        wanted = order(number)
        assert {name: row[name] for name in wanted if name != "created"} == {
            name: value for name, value in wanted.items() if name != "created"
        }
        assert row["created"].isoformat() == "2026-01-31T10:00:00+00:00"
    dead = rows_of(lake / "orders.dead_letters")
    bad = [number for number in mine if number % 10 == 0]
    assert [row["commitLogOffset"] for row in dead] == [log.offsets[number] for number in bad]
    assert [row["body"] for row in dead] == [b'{"id": "%d"}' % number for number in bad]
    assert all("changed from number to string" in row["reason"] for row in dead)
    (of_table,) = report.tables
    assert (of_table.records, of_table.dead_letters) == (len(good), len(bad))


def test_a_second_run_adds_nothing_and_a_later_one_what_was_appended(log: WrittenLog, tmp_path: Path):
    """The table knows up to where it has the log."""
    lake, tables = tmp_path / "lake", tables_file(tmp_path)
    with without_spark():
        first = export(log.store, lake, tables=tables)
        second = export(log.store, lake, tables=tables)
        append(log, 60)
        third = export(log.store, lake, tables=tables)
    assert (second.begin, second.until, second.records) == (first.until, first.until, 0)
    assert third.begin == first.until
    assert [row["id"] for row in rows_of(lake / "orders")] == [n for n in range(360) if n % 3 != 2 and n % 10]
