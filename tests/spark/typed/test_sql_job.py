"""The job in SQL alone: its table of results follows a typed table and its dead letters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

import duckdb
from deltalake import DeltaTable

from reput_plugins.spark_export import export
from source_tree import ROOT
from spark.exporting import without_spark
from written_log import START_MS, WrittenLog

TEXT = (ROOT / "examples" / "spark" / "revenue.sql").read_text("utf-8")
# These two statements need an extension that DuckDB downloads; the test gives it the same tables in another way.
VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+) AS SELECT \* FROM delta_scan\('(.*)'\);\n", re.M)
DAY_MS = 86_400_000


def test_revenue_by_day_follows_the_typed_table(tmp_path: Path):
    """A second run computes only days with new messages, and a run without any changes nothing."""
    assert [name for name, _ in VIEW.findall(TEXT)] == ["orders", "bad_orders"]
    log = WrittenLog(tmp_path / "store")
    tables = {"tables": {"orders": {"topic": "orders", "format": "json", "schema": "infer"}}}
    connection = duckdb.connect()

    def append(day: int, *bodies: Any) -> None:
        for body in bodies:
            encoded = b"bad" if body is None else json.dumps(body).encode()
            log.append(encoded, store_timestamp=START_MS + DAY_MS * day)
        log.save()

    def run() -> list[tuple[Any, ...]]:
        with without_spark():
            export(log.store, tmp_path / "lake", tables=tables)
        for name, path in VIEW.findall(TEXT):
            connection.register(name, DeltaTable(tmp_path / path).to_pyarrow_dataset())
        connection.execute(VIEW.sub("", TEXT))
        found = connection.sql("select day::varchar, orders, customers, amount, bad_bodies from revenue order by day")
        return list(found.fetchall())

    def order(number: int, customer: str, amount: float) -> dict[str, Any]:
        return {"order": number, "customer": customer, "amount": amount}

    append(0, order(1, "ada", 2.5), order(2, "ada", 1.0), None)
    assert run() == [("2023-11-14", 2, 1, 3.5, 1)]
    connection.execute("update revenue set orders = 77")
    append(1, order(3, "bob", 4.0), order(4, "ada", 1.5))
    following = ("2023-11-15", 2, 2, 5.5, 0)
    assert run() == [("2023-11-14", 77, 1, 3.5, 1), following]
    append(0, None)
    assert run() == run() == [("2023-11-14", 2, 1, 3.5, 2), following]
