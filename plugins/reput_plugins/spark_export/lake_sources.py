"""Sources of a lake: which stores' logs it holds, and how far, according to its transactions.

reput:<store id>:<epoch>:<name of the export>       →  commit-log offset up to which the table holds that log; -1:
                                                       the epoch is not the store's any more
reput_rows:<store id>:<name in rows>:<name of …>    →  0; only where the rows name the store by an earlier id
"""

from __future__ import annotations

from reput_hooks import Cursor
from reput_plugins.spark_export.lakes.lake_table import LakeTable

__all__ = ["RETIRED", "all_sources", "app_id", "lake_sources", "row_name", "row_name_id"]

RETIRED = -1

PREFIX = "reput"
ROWS_PREFIX = "reput_rows"


def app_id(store_id: str, epoch: int, export_name: str) -> str:
    """Return the application id under which a table keeps the end offset of a store's epoch."""
    return f"{PREFIX}:{store_id}:{epoch}:{export_name}"


def lake_sources(table: LakeTable, export_name: str) -> list[Cursor]:
    """Return how far the export of that name has brought each store and epoch into the lake.

    The cursors have no store time.
    """
    return all_sources(table).get(export_name, [])


def all_sources(table: LakeTable) -> dict[str, list[Cursor]]:
    """Return the cursors of `lake_sources` for each export name."""
    found: dict[str, list[Cursor]] = {}
    for name, until in table.all_recorded().items():
        prefix, store_id, epoch, export = parts_of(name)
        if prefix == PREFIX and epoch.isdigit() and until != RETIRED:
            found.setdefault(export, []).append(Cursor(store_id, int(epoch), until, 0))
    return found


def row_name_id(store_id: str, name: str, export_name: str) -> str:
    """Return the application id that records that a store's rows carry an earlier id of it."""
    return f"{ROWS_PREFIX}:{store_id}:{name}:{export_name}"


def row_name(table: LakeTable, store_id: str, export_name: str) -> str:
    """Return the value of the column ``store`` in a store's rows."""
    for found in table.all_recorded():
        prefix, store, name, export = parts_of(found)
        if (prefix, store, export) == (ROWS_PREFIX, store_id, export_name):
            return name
    return store_id


def parts_of(name: str) -> tuple[str, str, str, str]:
    """Return the four parts of a name; the last may contain colons."""
    prefix, _, rest = name.partition(":")
    first, _, rest = rest.partition(":")
    second, _, last = rest.partition(":")
    return prefix, first, second, last
