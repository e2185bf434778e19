"""What readers find in a lake, for the tests of exports."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

__all__ = ["lake_rows", "offsets_in"]


def lake_rows(lake: Path) -> pa.Table:
    """Return what a reader of Delta tables finds, in the log's order."""
    from deltalake import DeltaTable

    table: pa.Table = DeltaTable(lake).to_pyarrow_table()
    return table.sort_by("commitLogOffset")


def offsets_in(lake: Path) -> list[int]:
    """Return the commit-log offsets in the lake, ascending."""
    offsets: list[int] = lake_rows(lake)["commitLogOffset"].to_pylist()
    return offsets
