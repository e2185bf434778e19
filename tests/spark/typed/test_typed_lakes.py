"""Typed tables beside everything else: the command line, other tables, cut logs, several stores, object stores."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from deltalake import DeltaTable

from reput.cli import main
from reput.cli.terminal.output import Printer
from reput.errors import StoreError
from reput.store.disk.sealed_file import seal
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export import export
from reput_plugins.spark_export.typed.typed_lake import TypedLake
from spark.exporting import without_spark
from written_log import START_MS, WrittenLog

TABLES = {"orders": {"topic": "orders", "format": "json", "schema": "infer"}}


def written(store: Path, store_id: str = "one", kind: str = "first") -> WrittenLog:
    """Return a log in which every tenth body is none, like one written by reput."""
    log = WrittenLog(store)
    append(log, 40, kind)
    (store / "reput").mkdir()
    (store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, store_id, {})))
    return log


def append(log: WrittenLog, count: int, kind: str = "first") -> None:
    for _ in range(count):
        number = len(log.offsets)
        body = b"no" if number % 10 == 0 else json.dumps({"id": number, "kind": kind}).encode()
        log.append(body, store_timestamp=START_MS + number)
    log.save()


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return written(tmp_path / "store")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Return a file with the table `orders`."""
    path = tmp_path / "tables.toml"
    path.write_text('[tables.orders]\ntopic = "orders"\nformat = "json"\nschema = "infer"\n')
    return path


def rows_in(table: Path | str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a table, in log order."""
    found = DeltaTable(str(table), **options).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row.get("_log", row)["commitLogOffset"])


def test_one_command_makes_typed_tables_and_goes_on(
    log: WrittenLog, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """`reput export STORE LAKE --tables FILE`; the report names each table, as text and as JSON."""
    command = ["export", str(log.store), str(tmp_path / "lake"), "--tables", str(tables)]
    with without_spark():
        assert main(command) == 0
        assert "; tables: orders 36 rows and 4 dead letters\n" in capsys.readouterr().out
        append(log, 10)
        assert main([*command, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (table,) = report["tables"]
    assert (table["table"], table["records"], table["dead_letters"]) == ("orders", 9, 1)
    assert [row["id"] for row in rows_in(tmp_path / "lake" / "orders")] == [n for n in range(50) if n % 10]


def test_the_command_follows_typed_tables(
    log: WrittenLog, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """With a row for each range, until it is interrupted."""
    row = Printer.row

    def row_and_end(printer: Printer, *arguments: Any) -> None:
        row(printer, *arguments)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Printer, "row", row_and_end)
    command = ["export", str(log.store), str(tmp_path / "lake"), "--tables", str(tables), "--follow"]
    with without_spark(), pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    assert "; tables: orders 36 rows and 4 dead letters; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--topic", "orders"], "typed tables name their own topics: topics=orders"),
        (["--catalog", "mine"], "only Iceberg tables have a catalog: lake_format=delta catalog=mine"),
        (["--follow", "--catalog-table", "a.b"], "typed tables have their own names in a catalog: catalog_table=a.b"),
        (["--tables", "absent.toml"], "error=No such file or directory"),
        (["--tables", "broken.toml"], "Expected ']'"),
        (["--tables", "unknown.toml"], "a table has an unknown key: table=orders colums=1"),
        (["--tables", "schemaless.toml"], "a schema cannot be read: table=orders"),
        (["--tables", "reserved.toml"], "table=metadata name=metadata"),
    ],
)
def test_the_command_refuses_what_typed_tables_do_not_take(
    log: WrittenLog, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], text: str
):
    """Exit code 2 with one sentence, and nothing is written."""
    good = tables.read_text()
    (tmp_path / "broken.toml").write_text("[tables.orders")
    (tmp_path / "unknown.toml").write_text(good + "colums = 1\n")
    (tmp_path / "schemaless.toml").write_text(good.replace("infer", "absent.json"))
    # A lake with such a folder would look like an Iceberg table.
    (tmp_path / "reserved.toml").write_text(good.replace("tables.orders", "tables.metadata"))
    given = [str(tmp_path / word) if word.endswith(".toml") else word for word in ["--tables", "tables.toml", *more]]
    with without_spark():
        assert main(["export", str(log.store), str(tmp_path / "lake"), *given]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error
    assert not (tmp_path / "lake").exists()


def test_a_folder_of_typed_tables_is_no_table_of_the_log(
    log: WrittenLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """An export of the whole log into it is refused."""
    lake = tmp_path / "lake"
    with without_spark():
        export(log.store, lake, tables={"tables": TABLES})
        for lake_format in ("delta", "iceberg"):
            assert main(["export", str(log.store), str(lake), "--lake-format", lake_format]) == 2
            assert f"the folder holds typed tables: lake={lake} tables=orders" in capsys.readouterr().err
    assert sorted(path.name for path in lake.iterdir()) == ["orders", "orders.dead_letters"]


def cut(log: WrittenLog, count: int) -> None:
    """Leave only *count* records in the log, and let the store know where it was cut."""
    at = log.offsets[count]
    epochs = read_epochs(log.store, "one").begin(at, START_MS)
    (log.store / "reput" / "epochs").write_bytes(epochs.seal())
    shorten(log, count)


def shorten(log: WrittenLog, count: int) -> None:
    """Leave only *count* records in the log."""
    for path in (log.store / "commitlog").iterdir():
        path.unlink()
    log.data, log.offsets = log.data[: log.offsets[count] - log.begin], log.offsets[:count]


@pytest.mark.parametrize("prefix", [None, "log_"])
def test_rows_and_dead_letters_of_a_cut_log_are_taken_out(log: WrittenLog, tmp_path: Path, prefix: str | None):
    """And those that came in their place are there once; the other store's rows stay."""
    keys = TABLES["orders"] | ({} if prefix is None else {"prefix": prefix})
    for store in (log.store, written(tmp_path / "other", "two", "other").store):
        with without_spark():
            export(store, tmp_path / "lake", tables={"tables": {"orders": keys}})
    cut(log, 25)
    append(log, 20, "second")
    with without_spark():
        report = export(log.store, tmp_path / "lake", tables={"tables": {"orders": keys}})
    assert (report.records, report.begin) == (18, log.offsets[25])
    found = DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table().to_pylist()
    of_log = [row["_log"] if prefix is None else {key.removeprefix("log_"): row[key] for key in row} for row in found]
    kinds = sorted((at["store"], row["id"], row["kind"]) for at, row in zip(of_log, found, strict=True))
    mine = [("one", number, "first" if number < 25 else "second") for number in range(45) if number % 10]
    assert kinds == mine + [("two", number, "other") for number in range(40) if number % 10]
    dead = rows_in(tmp_path / "lake" / "orders.dead_letters")
    assert [row["commitLogOffset"] for row in dead if row["store"] == "one"] == log.offsets[::10]
    assert len([row for row in dead if row["store"] == "two"]) == 4


@pytest.mark.parametrize("prefix", [None, "log_"])
def test_rows_behind_the_end_of_the_log_stay_until_the_command_in_the_advice_is_typed(
    log: WrittenLog, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str | None
):
    """A copy of the store that was restored, for instance. The advice names the format, or the file of tables."""
    if prefix is not None:
        tables.write_text(tables.read_text() + f'prefix = "{prefix}"\n')
    lake = tmp_path / "lake"
    with without_spark():
        export(log.store, lake, tables=tables)
        export(log.store, tmp_path / "ice", lake_format="iceberg")
        shorten(log, 25)
        log.save()
        with pytest.raises(StoreError, match="rows_to_take_out=14 rows_to_keep=22") as refused:
            export(log.store, lake, tables=tables)
        command = f"reput export {log.store} {lake} --tables FILE --accept-truncation"
        assert refused.value.advice.endswith(command)
        assert len(rows_in(lake / "orders.dead_letters")) == 4
        assert main(command.replace("FILE", str(tables)).split()[1:]) == 0
        assert DeltaTable(lake / "orders").to_pyarrow_table().num_rows == 22
        assert len(rows_in(lake / "orders.dead_letters")) == 3
        with pytest.raises(StoreError, match="rows_to_take_out=15 rows_to_keep=25") as refused:
            export(log.store, tmp_path / "ice", lake_format="iceberg")
        assert refused.value.advice.endswith(f"{tmp_path / 'ice'} --lake-format iceberg --accept-truncation")
        assert main(refused.value.advice.partition(": reput ")[2].split()) == 0


@pytest.mark.parametrize("prefix", [None, "log_"])
def test_dead_letters_alone_are_not_taken_out_unasked(log: WrittenLog, tmp_path: Path, prefix: str | None):
    """They are rows as well, even if the table beside them was removed."""
    tables = {"tables": {"orders": TABLES["orders"] | ({} if prefix is None else {"prefix": prefix})}}
    with without_spark():
        export(log.store, tmp_path / "lake", tables=tables)
        shutil.rmtree(tmp_path / "lake" / "orders")
        shorten(log, 25)
        log.save()
        with pytest.raises(StoreError, match="rows_to_take_out=1 rows_to_keep=3"):
            export(log.store, tmp_path / "lake", tables=tables)


def test_a_filter_on_any_column_finds_its_rows(log: WrittenLog, tmp_path: Path):
    """In the Delta library's Arrow dataset, which DuckDB and pyarrow read: it believes what is said of each file."""
    with without_spark():
        export(log.store, tmp_path / "lake")
        export(
            log.store, tmp_path / "typed", tables={"tables": {"orders": TABLES["orders"] | {"cluster_by": ["kind"]}}}
        )
    for path in ("lake", "lake/_watermarks", "typed/orders", "typed/orders.dead_letters"):
        found = DeltaTable(tmp_path / path).to_pyarrow_dataset()
        for name in found.schema.names:
            value = next((row[name] for row in found.to_table().to_pylist() if row[name] is not None), None)
            if value is not None and not isinstance(value, dict | list):
                assert found.count_rows(filter=ds.field(name) == value) > 0, (path, name)


def test_a_table_that_does_not_say_which_columns_have_statistics_is_cut_all_the_same(
    log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Tables of an older reput are such."""
    monkeypatch.setattr(TypedLake, "statistics", lambda lake: ["store", "reason", "commitLogOffset", "log_store", "id"])
    tables = {"tables": {"orders": TABLES["orders"] | {"prefix": "log_"}}}
    with without_spark():
        export(log.store, tmp_path / "lake", tables=tables)
        shorten(log, 25)
        log.save()
        with pytest.raises(StoreError, match="rows_to_take_out=14 rows_to_keep=22"):
            export(log.store, tmp_path / "lake", tables=tables)
        report = export(log.store, tmp_path / "lake", tables=tables, accept_truncation=True)
    assert report.records == 0
    assert len(rows_in(tmp_path / "lake" / "orders.dead_letters")) == 3
