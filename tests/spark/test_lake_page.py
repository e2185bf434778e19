"""The page on the lake: its queries run, and return the same rows."""

from __future__ import annotations

import os
import re
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from reput.table import LogTable, TableOptions
from source_tree import ROOT
from written_log import START_MS, WrittenLog

pytest.importorskip("deltalake")

PAGE = (ROOT / "docs" / "lake.md").read_text("utf-8")
QUERIES = dict(re.findall(r"^### (\w+)\n.*?^```py\n(.*?)^```", PAGE, re.M | re.S))
DAY_MS = 86_400_000


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, date, int]]:
    """Create a lake in the current folder and return the number of messages per topic and day."""
    from reput.store.state.epochs import read_epochs
    from reput_plugins.spark_export.lake import Lake
    from reput_plugins.spark_export.lake_location import LakeLocation
    from reput_plugins.spark_export.parquet_files import lake_schema, write_range

    log = WrittenLog(tmp_path / "store")
    counts: Counter[tuple[str, date]] = Counter()
    for number in range(60):
        topic, stored = ("orders", "%RETRY%a|b", "订单")[number % 3], START_MS + DAY_MS * number // 20
        log.append(b"%d" % number, topic=topic.encode(), store_timestamp=stored)
        counts[topic, datetime.fromtimestamp(stored / 1000, UTC).date()] += 1
    log.save()
    options, location = TableOptions(), LakeLocation.of(tmp_path / "lake")
    schema = lake_schema(options.row_format)
    store_id = LogTable(log.store).store_id
    lake = Lake(location, "export", read_epochs(log.store, store_id))
    lake.create(schema, None)
    lake.commit(schema, 0, log.end, write_range(location, str(log.store), store_id, options, 0, log.end)[0])
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
