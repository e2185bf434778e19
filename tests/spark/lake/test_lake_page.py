"""The page on the lake: its queries run, and return the same rows."""

from __future__ import annotations

import os
import re
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from source_tree import ROOT
from written_log import START_MS, WrittenLog

pytest.importorskip("deltalake")

PAGE = (ROOT / "docs" / "lake.md").read_text("utf-8")
ICEBERG_SECTION = PAGE[PAGE.index("## As an Iceberg table") : PAGE.index("## Queries")]
ICEBERG_QUERIES = re.findall(r"^```py\n(.*?)^```", ICEBERG_SECTION, re.M | re.S)
QUERIES = dict(re.findall(r"^### (\w+)\n.*?^```py\n(.*?)^```", PAGE, re.M | re.S))
DAY_MS = 86_400_000


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, date, int]]:
    """Create a lake in the current folder and return the number of messages per topic and day."""
    return make_lake(tmp_path, monkeypatch, "delta")


@pytest.fixture
def expected_of_iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, date, int]]:
    """Create an Iceberg table instead."""
    pytest.importorskip("pyiceberg")
    # Polars warns that its own planner, another package, is missing.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    return make_lake(tmp_path, monkeypatch, "iceberg")


def make_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake_format: str) -> list[tuple[str, date, int]]:
    """Create a lake in the current folder and return the number of messages per topic and day."""
    from reput_plugins.spark_export import export
    from spark.exporting import without_spark

    log = WrittenLog(tmp_path / "store")
    counts: Counter[tuple[str, date]] = Counter()
    for number in range(60):
        topic, stored = ("orders", "%RETRY%a|b", "订单")[number % 3], START_MS + DAY_MS * number // 20
        log.append(b"%d" % number, topic=topic.encode(), store_timestamp=stored)
        counts[topic, datetime.fromtimestamp(stored / 1000, UTC).date()] += 1
    log.save()
    with without_spark():
        export(log.store, tmp_path / "lake", lake_format=lake_format)
    monkeypatch.chdir(tmp_path)
    return sorted((*key, count) for key, count in counts.items())


def run(query: str, **names: Any) -> list[tuple[Any, ...]]:
    """Run a query of the page and return its rows, in the order of the topics' characters."""
    exec(query, names)
    return sorted(tuple(row) for row in names["rows"])


def test_the_page_has_these_queries():
    """Each is run by a test."""
    assert list(QUERIES) == ["Spark", "DuckDB", "Polars", "pyarrow"]


@pytest.mark.parametrize(("name", "module"), [("DuckDB", "duckdb"), ("Polars", "polars"), ("pyarrow", "pyarrow")])
def test_a_query_gives_the_rows_of_the_log(expected: list[tuple[str, date, int]], name: str, module: str):
    """Whatever characters a topic has."""
    pytest.importorskip(module)
    assert run(QUERIES[name]) == expected


@pytest.mark.spark
def test_spark_gives_the_rows_of_the_log(expected: list[tuple[str, date, int]], spark: Any):
    """Without the Delta jar; Spark reads the value of a partition from its folder."""
    query = QUERIES["Spark"].replace('"lake"', repr(os.path.abspath("lake")))
    assert run(query, spark=spark) == expected


def open_catalog(names: dict[str, Any]) -> None:
    """Run the first query on Iceberg, which opens the table for the others."""
    exec(ICEBERG_QUERIES[0], names)


@pytest.mark.parametrize(("number", "module"), [(0, "pyiceberg"), (1, "duckdb"), (2, "polars"), (3, "pandas")])
def test_a_query_of_an_iceberg_table_gives_the_rows_of_the_log(
    expected_of_iceberg: list[tuple[str, date, int]], number: int, module: str
):
    """By pyiceberg, and by others through it."""
    pytest.importorskip(module)
    names: dict[str, Any] = {}
    open_catalog(names)
    assert run(ICEBERG_QUERIES[number], **names) == expected_of_iceberg
    names["table"].catalog.close()


@pytest.mark.spark
def test_spark_gives_the_rows_of_an_iceberg_table(expected_of_iceberg: list[tuple[str, date, int]], spark: Any):
    """From the files of its snapshot, as Iceberg's library for Spark has none for this Spark."""
    names: dict[str, Any] = {}
    open_catalog(names)
    assert len(ICEBERG_QUERIES) == 5
    query = ICEBERG_QUERIES[4].replace('"lake"', repr(os.path.abspath("lake")))
    assert run(query, **(names | {"spark": spark})) == expected_of_iceberg
    names["table"].catalog.close()
