"""Typed tables of JSON: each body once, in the table or in its dead letters, with the columns of the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from reput.errors import ConfigError
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
    assert all("Expected `int | null`, got `str` - at `$.id`" in row["reason"] for row in dead)
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


def test_a_crash_between_the_two_commits_of_a_range_leaves_nothing_twice(log: WrittenLog, tmp_path: Path):
    """The dead letters come first; if they are ahead of the rows, they are cut back and written again."""
    from reput_plugins.spark_export.typed.typed_sink import TypedPlan

    lake, tables = tmp_path / "lake", tables_file(tmp_path)
    commit, commits = TypedPlan.commit, iter(range(9))

    def first_only(self: TypedPlan, *given: Any) -> Any:
        if next(commits):
            raise KeyboardInterrupt
        return commit(self, *given)

    with without_spark():
        export(log.store, lake, tables=tables, until=log.offsets[90])
        with pytest.MonkeyPatch.context() as crash:
            crash.setattr(TypedPlan, "commit", first_only)
            with pytest.raises(KeyboardInterrupt):
                export(log.store, lake, tables=tables)
        append(log, 30)
        export(log.store, lake, tables=tables)
    mine = [number for number in range(330) if number % 3 != 2]
    assert [row["id"] for row in rows_of(lake / "orders")] == [number for number in mine if number % 10]
    dead = [row["commitLogOffset"] for row in rows_of(lake / "orders.dead_letters")]
    assert dead == [log.offsets[number] for number in mine if number % 10 == 0]


def test_a_table_that_is_added_later_gets_the_whole_log_and_the_others_nothing_twice(log: WrittenLog, tmp_path: Path):
    """Each table has its own end; an export begins at the least of them."""
    lake, tables = tmp_path / "lake", tables_file(tmp_path)
    with without_spark():
        export(log.store, lake, tables=tables, until=log.offsets[200])
        tables.write_text(tables.read_text() + '[tables.others]\ntopic = "other"\nformat = "text"\n')
        report = export(log.store, lake, tables=tables)
    assert report.begin == 0
    assert [row["id"] for row in rows_of(lake / "orders")] == [n for n in range(300) if n % 3 != 2 and n % 10]
    assert len(rows_of(lake / "others")) == 100


def test_columns_of_the_log_can_have_a_prefix_and_rows_be_partitioned_and_sorted(log: WrittenLog, tmp_path: Path):
    """By columns of the body as well."""
    lake = tmp_path / "lake"
    keys = {"prefix": "log_", "partition_by": ["paid"], "cluster_by": ["amount"], "columns": ["tags"]}
    with without_spark():
        export(log.store, lake, tables=tables_file(tmp_path, **keys, tags="t1 || t2"))
    table = DeltaTable(lake / "orders")
    found = table.to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == [n for n in range(300) if n % 3 == 1 and n % 10]
    assert set(found["log_tags"].to_pylist()) == {"t1"}
    assert "log_store" in found.column_names
    assert "log_msgId" not in found.column_names
    assert table.metadata().partition_columns == ["paid"]
    for file in table.to_pyarrow_dataset().get_fragments():
        amounts = file.to_table(columns=["amount"])["amount"].to_pylist()
        assert amounts == sorted(amounts)


def changed_schema(tmp_path: Path, **properties: Any) -> None:
    """Write another schema over that of the table; None: without the field."""
    fields = {**SCHEMA["properties"], **properties}
    kept = {name: value for name, value in fields.items() if value is not None}
    (tmp_path / "orders.json").write_text(json.dumps({"type": "object", "properties": kept}))


def test_added_fields_are_added_and_removed_ones_stay_null(log: WrittenLog, tmp_path: Path):
    """Also inside of a struct; older rows have null."""
    lake, tables = tmp_path / "lake", tables_file(tmp_path)
    with without_spark():
        export(log.store, lake, tables=tables)
        place = {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}}
        changed_schema(tmp_path, amount=None, note={"type": "string"}, address=place)
        body = {"id": 1, "amount": 5.5, "note": "new", "address": {"city": "x", "zip": 7}}
        log.append(json.dumps(body).encode(), topic=b"orders")
        log.save()
        export(log.store, lake, tables=tables)
    rows = rows_of(lake / "orders")
    assert (rows[-1]["note"], rows[-1]["amount"], rows[-1]["address"]) == ("new", None, {"city": "x", "zip": 7})
    assert (rows[0]["note"], rows[0]["amount"], rows[0]["address"]) == (None, 0.25, {"city": "city 1", "zip": None})


def test_a_type_that_the_table_holds_is_taken_and_every_other_is_refused_with_the_difference(
    log: WrittenLog, tmp_path: Path
):
    """Nothing is changed by a refusal."""
    lake, tables = tmp_path / "lake", tables_file(tmp_path)
    with without_spark():
        export(log.store, lake, tables=tables, until=log.offsets[100])
        version = DeltaTable(lake / "orders").version()
        changed_schema(tmp_path, id={"type": "string"}, items={"type": "array", "items": {"type": "string"}})
        with pytest.raises(ConfigError) as refused:
            export(log.store, lake, tables=tables)
        assert "column=id kept=int64 asked=string; column=items.element kept=int64 asked=string" in str(refused.value)
        assert DeltaTable(lake / "orders").version() == version
        avro = {
            "type": "record",
            "name": "A",
            "fields": [{"name": "id", "type": "int"}, {"name": "amount", "type": "float"}],
        }
        (tmp_path / "orders.json").write_text(json.dumps(avro))
        export(log.store, lake, tables=tables)
    assert [row["id"] for row in rows_of(lake / "orders")] == [n for n in range(300) if n % 3 != 2 and n % 10]


def test_inferred_fields_are_added_as_they_come(log: WrittenLog, tmp_path: Path):
    """And a field keeps the type that it first had."""
    lake, tables = tmp_path / "lake", tables_file(tmp_path, schema="infer")
    with without_spark():
        export(log.store, lake, tables=tables)
        first = rows_of(lake / "orders")
        log.append(b'{"id":1,"later":true}', topic=b"orders")
        log.append(b'{"id":"one"}', topic=b"orders")
        log.save()
        export(log.store, lake, tables=tables)
    assert "later" not in first[0]
    assert rows_of(lake / "orders")[-1]["later"] is True
    assert rows_of(lake / "orders.dead_letters")[-1]["body"] == b'{"id":"one"}'


def test_follow_keeps_typed_tables(log: WrittenLog, tmp_path: Path):
    """Each row says what each table got."""
    from contextlib import closing

    from reput_plugins.spark_export import follow

    lake = tmp_path / "lake"
    with without_spark(), closing(follow(log.store, lake, tables=tables_file(tmp_path), interval_ms=1)) as rows:
        first = next(rows)
        append(log, 30)
        second = next(rows)
    assert (first.tables[0].records, first.tables[0].dead_letters) == (180, 20)
    assert (second.begin, second.until, second.tables[0].records) == (first.until, log.end, 18)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"formt": "json"}, "a table has an unknown key: table=orders formt='json'"),
        ({"format": "xml"}, "table=orders error="),
        ({"schema": "absent.json"}, "a schema cannot be read: table=orders"),
        ({"topic": "ordrs"}, "the store has no such topic: topic=ordrs"),
        ({"partition_by": ["city"]}, "the table has no such column: table=orders partition_by=city"),
        (
            {"partition_by": ["amount"]},
            "a column of this type cannot be used for partition_by: table=orders partition_by=amount",
        ),
        ({"columns": ["brokr"]}, "columns=brokr"),
        ({"framing": "single_object"}, "framing=single_object"),
        ({"mode": "upsert"}, "table=orders key=None"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_with_the_key(
    log: WrittenLog, tmp_path: Path, keys: dict[str, Any], text: str
):
    """Before anything is written."""
    with without_spark(), pytest.raises(ConfigError) as refused:
        export(log.store, tmp_path / "lake", tables=tables_file(tmp_path, **keys))
    assert text in str(refused.value)
    assert not (tmp_path / "lake" / "orders" / "_delta_log").exists()


def test_typed_tables_do_not_lie_in_the_table_of_the_log(log: WrittenLog, tmp_path: Path):
    """The Delta library would take their files for the outer table's."""
    with without_spark():
        export(log.store, tmp_path / "lake")
        with pytest.raises(ConfigError, match="the lake is a table of the whole log"):
            export(log.store, tmp_path / "lake", tables=tables_file(tmp_path))
