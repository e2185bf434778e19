"""The content of a lake as readers see it, for the tests of exports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

__all__ = ["forget_marks", "iceberg_files", "iceberg_table", "lake_rows", "offsets_by_reader", "offsets_in", "rows_in"]


def lake_rows(lake: Path) -> pa.Table:
    """Return the rows that a reader of Delta or Iceberg tables finds, in log order."""
    return rows_in(lake).sort_by("commitLogOffset")


def rows_in(lake: Path) -> pa.Table:
    """Return the rows in any order."""
    from deltalake import DeltaTable

    table: pa.Table
    if is_iceberg(lake):
        with iceberg_table(lake) as iceberg:
            table = iceberg.scan().to_arrow()
    else:
        delta = DeltaTable(lake)
        has_vectors = "deletionVectors" in (delta.protocol().reader_features or ())
        table = pa.table(delta.scan()) if has_vectors else delta.to_pyarrow_table()
    return table


def is_iceberg(lake: Path) -> bool:
    """Return whether a lake has a catalog of Iceberg tables of its own."""
    return (lake / "catalog.db").exists()


@contextmanager
def iceberg_table(lake: Path) -> Iterator[Any]:
    """Yield the Iceberg table of a lake as pyiceberg alone finds it."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("reput", uri=f"sqlite:///{lake / 'catalog.db'}")
    try:
        yield catalog.load_table("reput.lake")
    finally:
        catalog.close()


def iceberg_files(lake: Path) -> list[str]:
    """Return the data files of an Iceberg table."""
    with iceberg_table(lake) as table:
        return [task.file.file_path for task in table.scan().plan_files()]


def offsets_in(lake: Path) -> list[int]:
    """Return the commit-log offsets in the lake, ascending."""
    offsets: list[int] = lake_rows(lake)["commitLogOffset"].to_pylist()
    return offsets


def offsets_by_reader(lake: Path, spark: Any = None) -> dict[str, list[int]]:
    """Return the same for each available kind of reader, each of which reads every row with its own code."""
    from deltalake import DeltaTable

    iceberg = is_iceberg(lake)
    files = iceberg_files(lake) if iceberg else DeltaTable(lake).file_uris()
    found = {"table library": offsets_in(lake)}
    if find_spec("duckdb"):
        import duckdb

        rows = duckdb.sql(f"select commitLogOffset, body from read_parquet({files!r})").fetchall()
        found["duckdb"] = sorted(row[0] for row in rows)
    if find_spec("polars"):
        import polars

        if iceberg:
            # Its own planner is another package, whose absence it warns of.
            with iceberg_table(lake) as table, patch.dict(os.environ, {"POLARS_ICEBERG_PLANNER": "pyiceberg"}):
                frame = polars.scan_iceberg(table).select("commitLogOffset", "body").collect()
        else:
            frame = polars.read_delta(str(lake))
        found["polars"] = sorted(frame["commitLogOffset"].to_list())
    if spark is not None:
        rows_in_spark = spark.read.option("basePath", str(lake)).parquet(*files)
        found["spark"] = sorted(
            row["commitLogOffset"] for row in rows_in_spark.select("commitLogOffset", "body").collect()
        )
    return found


def forget_marks(lake: Path) -> None:
    """Leave the lake as if an older reput had created it."""
    from reput_plugins.spark_export.lake_marks import MARKS_INFO

    for path in (lake / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            action.get("commitInfo", {}).pop(MARKS_INFO, None)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
