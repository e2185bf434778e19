"""check --lake of typed tables, of tables with a key and of Iceberg tables: each record has its row or dead letter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from reput.cli import main
from reput.errors import ConfigError
from reput.store.disk.sealed_file import seal
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export import check_lake, export
from spark.exporting import without_spark
from spark.lakes import iceberg_table
from written_log import START_MS, WrittenLog

JSON: dict[str, Any] = {"topic": "orders", "format": "json", "schema": "infer"}


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def append(log: WrittenLog, count: int, text: str = "t") -> None:
    """Append to two topics; every tenth body of `orders` does not fit."""
    for _ in range(count):
        number = len(log.offsets)
        topic = (b"orders", b"payments")[number % 2]
        body = b"no" if number % 10 == 0 else json.dumps({"id": number % 8, "text": f"{text}{number}"}).encode()
        log.append(body, topic=topic, store_timestamp=START_MS + number)
    log.save()


def written(store: Path, store_id: str = "one") -> WrittenLog:
    """Return a log of 60 records in small segments, like one written by reput."""
    log = WrittenLog(store)
    append(log, 60)
    (store / "reput").mkdir()
    (store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, store_id, {})))
    return log


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return written(tmp_path / "store")


def exported(log: WrittenLog, lake: Path, **keys: Any) -> Path:
    """Export the typed table `orders`, and return its folder."""
    export(log.store, lake, tables={"tables": {"orders": JSON | keys}})
    return lake / "orders"


def counts(report: Any) -> dict[str, int]:
    """Return the counts of the table that are not zero."""
    (table,) = report.tables.values()
    found = {name: getattr(table, name) for name in table.__struct_fields__ if name.endswith("_count")}
    return {name.removesuffix("_count"): count for name, count in found.items() if count}


def tamper(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace all rows with changed ones, as any writer of Delta tables can."""
    table = DeltaTable(path)
    rows = change(pa.table(table.to_pyarrow_table()))
    write_deltalake(table, rows, mode="overwrite", partition_by=table.metadata().partition_columns)


def at(rows: pa.Table, name: str) -> Any:
    """Return a column of the log."""
    return pc.struct_field(rows["_log"], name) if "_log" in rows.column_names else rows[name]


@pytest.mark.parametrize("keys", [{}, {"prefix": "log_", "partition_by": []}, {"tags": "t1 || t2"}], ids=str)
def test_each_record_has_a_row_or_a_dead_letter(log: WrittenLog, tmp_path: Path, keys: dict[str, Any]):
    """Of the table's topics and tags; also for several exports, stores and tables, and when the log goes on."""
    lake = tmp_path / "lake"
    for store in (log, written(tmp_path / "other", "two")):
        export(store.store, lake, tables={"tables": {"orders": JSON | keys, "payments": JSON | {"topic": "payments"}}})
    append(log, 20)
    table = exported(log, lake, **keys)
    append(log, 2)
    wanted = [n for n in range(0, 80, 2) if "tags" not in keys or n % 3]
    report = check_lake(log.store, lake)
    assert report.ok
    assert {name: view.state for name, view in report.views.items()} == {"orders": "behind", "payments": "behind"}
    found = report.tables["orders"]
    assert (found.rows, found.dead_letters) == (
        len([n for n in wanted if n % 10]),
        len([n for n in wanted if not n % 10]),
    )
    assert found.rows + found.dead_letters == found.records == len(wanted)
    assert (report.tables["payments"].rows, report.tables["payments"].dead_letters) == (30, 0)
    assert counts(check_lake(log.store, table)) == {}


def test_what_is_wrong_is_named_by_its_offset(log: WrittenLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A missing row, a missing dead letter, a double, a changed number, a row of nothing. Exit code 1."""
    table = exported(log, tmp_path / "lake")
    dead = table.with_name("orders.dead_letters")
    offsets = log.offsets
    tamper(table, lambda rows: rows.filter(pc.not_equal(at(rows, "commitLogOffset"), offsets[2])))
    tamper(dead, lambda rows: rows.filter(pc.not_equal(at(rows, "commitLogOffset"), offsets[10])))
    twice = at(pa.table(DeltaTable(table).to_pyarrow_table()), "commitLogOffset")
    tamper(table, lambda rows: pa.concat_tables([rows, rows.filter(pc.equal(twice, offsets[4]))]))

    def changed(rows: pa.Table) -> pa.Table:
        places = rows["_log"].to_pylist()
        for place in places:
            if place["commitLogOffset"] == offsets[6]:
                place["bodyCRC"] += 1
            if place["commitLogOffset"] == offsets[8]:
                place["commitLogOffset"] += 1
        place = rows.schema.get_field_index("_log")
        return rows.set_column(place, rows.schema.field(place), pa.array(places, rows.schema.field(place).type))

    tamper(table, changed)
    report = check_lake(log.store, table)
    assert not report.ok
    assert counts(report) == {"missing": 3, "doubled": 1, "changed": 1, "extra": 1}
    # Those of the topic follow each other without a gap.
    assert [(one.begin, one.records) for one in report.tables["orders"].missing] == [(offsets[2], 1), (offsets[8], 2)]
    assert f"row differs from its record: commit_log_offset={offsets[6]} column=bodyCRC" in str(report.views["orders"])
    assert main(["check", str(log.store), "--lake", str(tmp_path / "lake")]) == 1
    text = capsys.readouterr().out
    assert "orders: 24 rows and 5 dead letters of store one" in text
    assert f"row without a record: commit_log_offset={offsets[8] + 1}" in text
    assert text.endswith("NOT OK: orders\n")


def test_rows_and_dead_letters_of_cut_history_are_named(log: WrittenLog, tmp_path: Path):
    """Until the next export removes them."""
    lake = tmp_path / "lake"
    exported(log, lake)
    epochs = read_epochs(log.store, "one").begin(log.offsets[40], START_MS)
    (log.store / "reput" / "epochs").write_bytes(epochs.seal())
    log.data, log.offsets = log.data[: log.offsets[40]], log.offsets[:40]
    for path in (log.store / "commitlog").iterdir():
        path.unlink()
    append(log, 30, "another")
    report = check_lake(log.store, lake)
    assert counts(report) == {"cut": 10}, report
    exported(log, lake)
    assert check_lake(log.store, lake).ok


def test_dead_letters_that_a_crash_left_ahead_are_no_difference(log: WrittenLog, tmp_path: Path):
    """Their table gets their range in the next run, which writes them anew."""
    lake = tmp_path / "lake"
    table = exported(log, lake)
    version = DeltaTable(table).version()
    append(log, 20)
    exported(log, lake)
    for path in (table / "_delta_log").glob("*.json"):
        if int(path.stem) > version:
            path.unlink()
    report = check_lake(log.store, lake)
    assert report.ok
    assert report.views["orders"].state == "behind"


@pytest.mark.parametrize("key", [["id"], "keys"], ids=str)
def test_the_rows_of_a_table_with_a_key_are_proved(log: WrittenLog, tmp_path: Path, key: Any):
    """Each row has its record, and no key two rows; records without a row are counted as replaced or removed."""
    lake = tmp_path / "lake"
    table = exported(log, lake, mode="upsert", key=key)
    report = check_lake(log.store, lake)
    assert report.ok
    found = report.tables["orders"]
    assert found.rows + found.dead_letters + found.replaced_count == found.records == 30
    assert (found.rows, found.dead_letters) == ((4, 6) if key == ["id"] else (24, 6))

    def doubled(rows: pa.Table) -> pa.Table:
        places = rows["_log"].to_pylist()
        places[0]["storeSize"] += 1
        one = rows.slice(0, 1)
        column = rows.schema.get_field_index("_log")
        return pa.concat_tables([rows, one.set_column(column, "_log", pa.array(places[:1], one["_log"].type))])

    tamper(table, doubled)
    assert counts(check_lake(log.store, lake)) == {
        "changed": 1,
        "doubled": 2,
        **({"replaced": 20} if key == ["id"] else {}),
    }


def test_a_file_of_a_table_with_a_key_that_is_gone_is_named(log: WrittenLog, tmp_path: Path):
    """Its keys cannot be compared then, which is a difference and no error."""
    table = exported(log, tmp_path / "lake", mode="upsert", key=["id"])
    (gone,) = DeltaTable(table).file_uris()
    Path(gone).unlink()
    report = check_lake(log.store, table)
    assert not report.ok
    assert counts(report)["unreadable"] == 1
    texts = report.views["orders"].differences
    assert any(text.startswith("a file of the lake cannot be read: file=") for text in texts)
    assert any(text.startswith("the keys of the table cannot be read: error=") for text in texts)


def test_dead_letters_alone_and_other_tags_are_refused(log: WrittenLog, tmp_path: Path):
    """The one is compared with its table only, the others would make a table that nothing can prove."""
    lake = tmp_path / "lake"
    exported(log, lake, tags="t1")
    with pytest.raises(ConfigError, match="dead letters are compared together with their table"):
        check_lake(log.store, lake / "orders.dead_letters")
    with pytest.raises(ConfigError, match=r"kept=t1 asked=t1 \|\| t2"):
        exported(log, lake, tags="t1 || t2")
    with pytest.raises(ConfigError, match="kept=t1 asked=all"):
        exported(log, lake)


def test_an_iceberg_table_is_compared_as_a_delta_table_is(
    log: WrittenLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The folder says which format it has; rows that another program deleted are missing, by their offsets."""
    pytest.importorskip("pyiceberg")
    lake = tmp_path / "lake"
    export(log.store, lake, lake_format="iceberg")
    append(log, 20)
    export(log.store, lake, lake_format="iceberg")
    report: Any = check_lake(log.store, lake)
    assert report.ok
    assert (report.lake.rows, report.lake.records, report.views["lake"].state) == (80, 80, "equal")
    with iceberg_table(lake) as table:
        table.delete(f"commitLogOffset = {log.offsets[7]}")
    found: Any = check_lake(log.store, lake)
    assert [one.begin for one in found.lake.missing] == [log.offsets[7]]
    assert main(["check", str(log.store), "--lake", str(lake), "--lake-format", "iceberg"]) == 1
    assert f"missing: from {log.offsets[7]} until {log.offsets[8]}: 1 records" in capsys.readouterr().out
