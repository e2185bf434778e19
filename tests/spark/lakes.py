"""The content of a lake as readers see it, for the tests of exports."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

__all__ = ["forget_marks", "lake_rows", "offsets_by_reader", "offsets_in"]


def lake_rows(lake: Path) -> pa.Table:
    """Return the rows that a reader of Delta tables finds, in log order."""
    from deltalake import DeltaTable

    table: pa.Table = DeltaTable(lake).to_pyarrow_table()
    return table.sort_by("commitLogOffset")


def offsets_in(lake: Path) -> list[int]:
    """Return the commit-log offsets in the lake, ascending."""
    offsets: list[int] = lake_rows(lake)["commitLogOffset"].to_pylist()
    return offsets


def offsets_by_reader(lake: Path, spark: Any = None) -> dict[str, list[int]]:
    """Return the same for each available kind of reader, each of which reads every row with its own code."""
    from deltalake import DeltaTable

    files = DeltaTable(lake).file_uris()
    found = {"deltalake": offsets_in(lake)}
    if find_spec("duckdb"):
        import duckdb

        rows = duckdb.sql(f"select commitLogOffset, body from read_parquet({files!r})").fetchall()
        found["duckdb"] = sorted(row[0] for row in rows)
    if find_spec("polars"):
        import polars

        found["polars"] = sorted(polars.read_delta(str(lake))["commitLogOffset"].to_list())
    if spark is not None:
        frame = spark.read.option("basePath", str(lake)).parquet(*files)
        found["spark"] = sorted(row["commitLogOffset"] for row in frame.select("commitLogOffset", "body").collect())
    return found


def forget_marks(lake: Path) -> None:
    """Leave the lake as if an older reput had created it."""
    from reput_plugins.spark_export.lake_marks import MARKS_INFO

    for path in (lake / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            action.get("commitInfo", {}).pop(MARKS_INFO, None)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
