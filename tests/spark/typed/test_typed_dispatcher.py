"""The dispatcher with typed tables: they follow the store, in one scan of the log, with every message once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from reput.errors import ConfigError, DamagedStore, StoreError
from reput.store.disk.sealed_file import seal
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export import check_lake, export
from spark.exporting import without_spark
from spark.hosting import Host
from spark.lakes import offsets_in, rows_in
from written_log import WrittenLog

ORDERS = {"topic": "orders", "format": "json", "schema": "infer"}
KEYED = {**ORDERS, "mode": "upsert", "key": ["id"]}


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make the dispatcher do its work in this process."""
    with without_spark():
        yield


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of 40 orders with 20 ids; every tenth body does not fit."""
    made = WrittenLog(tmp_path / "store")
    (tmp_path / "store" / "reput").mkdir(parents=True)
    (tmp_path / "store" / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, "one", {})))
    append(made, 40)
    return made


def append(log: WrittenLog, count: int) -> None:
    """Append orders."""
    for _ in range(count):
        number = len(log.offsets)
        log.append(b"bad" if number % 10 == 9 else json.dumps({"id": number % 20, "number": number}).encode())


def host_of(log: WrittenLog, tables: Any, **options: Any) -> Host:
    """Return the started dispatcher."""
    host = Host(log, tables=tables, **options)
    host.start()
    return host


def numbers(lake: Path, name: str = "orders") -> list[int]:
    """Return the messages of which the table has rows."""
    found: list[int] = sorted(rows_in(lake / name)["number"].to_pylist())
    return found


def good(count: int, first: int = 0) -> list[int]:
    """Return the numbers of the messages that fit."""
    return [number for number in range(first, count) if number % 10 != 9]


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_the_tables_hold_each_batch_when_dispatch_returns(log: WrittenLog, lake_format: str):
    """A row for each message, the newest row of each key, and the dead letters; also after a restart."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    tables = {"orders": ORDERS, "newest": KEYED}
    for count in (40, 45):
        host = host_of(log, tables, lake_format=lake_format)
        for _ in range(2):
            host.dispatch()
            assert numbers(host.lake) == good(len(log.offsets))
            append(log, count - 35)
        assert host.dispatcher.flush() == host.cursor(host.position)
        host.dispatcher.close()
    assert host.context.counters["commits"].value == 2 * 2
    until = len(log.offsets) - 10
    newest = {number % 20: number for number in good(until)}
    assert numbers(host.lake, "newest") == sorted(newest.values())
    assert offsets_in(host.lake / "orders.dead_letters") == log.offsets[9:until:10]
    assert check_lake(log.store, host.lake).ok


def test_a_restart_goes_on_at_the_table_that_is_behind(log: WrittenLog):
    """A table that is added gets the whole log, and the other one no message twice."""
    first = host_of(log, {"orders": ORDERS})
    first.dispatch()
    append(log, 5)
    both = Host(log, tables={"orders": ORDERS, "again": ORDERS}, batch_bytes_max=1000)
    assert both.start() is None
    both.dispatch()
    assert numbers(both.lake) == numbers(both.lake, "again") == good(45)
    again = Host(log, tables={"orders": ORDERS, "again": ORDERS})
    assert again.start() == again.cursor(log.end, 0)


def test_the_tables_go_on_with_export_and_back(log: WrittenLog, tmp_path: Path):
    """It is the same code; a file of tables serves both, and its schema file is found beside it."""
    (tmp_path / "schema.json").write_text(json.dumps({"type": "object", "properties": {"number": {"type": "integer"}}}))
    tables = tmp_path / "tables.toml"
    tables.write_text('[tables.orders]\ntopic = "orders"\nformat = "json"\nschema = "schema.json"\n')
    lake = tmp_path / "lake"
    host_of(log, str(tables), lake=str(lake)).dispatch()
    append(log, 5)
    log.save()
    assert export(log.store, lake, tables=tables).records == 5
    append(log, 5)
    host_of(log, str(tables), lake=str(lake)).dispatch()
    assert numbers(lake) == good(50)


def test_rows_and_dead_letters_of_cut_history_are_taken_out(log: WrittenLog):
    """The tables continue from the cut. A table with a key says that it cannot."""
    host = host_of(log, {"orders": ORDERS})
    host.dispatch()
    cut = log.offsets[25]
    host.dispatcher.truncate(host.cursor(cut))
    assert numbers(host.lake) == good(25)
    assert offsets_in(host.lake / "orders.dead_letters") == log.offsets[9:25:10]
    host.position = cut
    host.dispatch()
    assert numbers(host.lake) == good(40)
    keyed = host_of(log, {"newest": KEYED})
    keyed.dispatch()
    with pytest.raises(StoreError, match="a table with a key cannot be rolled back"):
        keyed.dispatcher.truncate(keyed.cursor(cut))


def test_a_backlog_is_cut_into_transactions_and_damage_is_counted(log: WrittenLog):
    """A damaged record stops the dispatcher, or is left out and counted."""
    log.data[log.offsets[20] + 4] ^= 0xFF
    host = host_of(log, {"orders": ORDERS})
    with pytest.raises(DamagedStore, match=f"from={log.offsets[20]}"):
        host.dispatch()
    lenient = host_of(log, {"orders": ORDERS}, on_corruption="report", batch_bytes_max=2000)
    lenient.dispatch()
    assert numbers(lenient.lake) == [number for number in good(40) if number != 20]
    assert lenient.context.counters["commits"].value > 1
    assert lenient.context.counters["damaged_ranges"].value == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": ("orders",)}, "typed tables name their own topics: topics=orders"),
        ({"lake_format": "iceberg", "catalog_table": "sales.log"}, "catalog_table=sales.log"),
        ({"tables": {}}, "describes no table"),
        ({"tables": {"orders": {**ORDERS, "sort": 1}}}, "a table has an unknown key: table=orders sort=1"),
    ],
)
def test_options_that_typed_tables_do_not_allow_are_refused(log: WrittenLog, options: dict[str, Any], said: str):
    """At the start, before there is any table."""
    with pytest.raises(ConfigError, match=said):
        host_of(log, **{"tables": {"orders": ORDERS}, **options})
