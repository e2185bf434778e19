"""Sources of a lake: which stores' logs it holds, and how far, according to its transactions.

    reput:<store id>:<epoch>:<name of the export>       →  commit-log offset up to which the table holds that log; -1:
                                                           the epoch is not the store's any more
    reput_rows:<store id>:<name in rows>:<name of …>    →  0; only where the rows name the store by an earlier id

The Delta library looks up one such name at a time. To list them all, this module reads the table's log: its last
checkpoint and the transactions after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow.fs
import pyarrow.parquet as pq

from reput_hooks import Cursor
from reput_plugins.spark_export.lake_location import LakeLocation

__all__ = ["RETIRED", "all_sources", "app_id", "lake_sources", "row_name", "row_name_id"]

RETIRED = -1

PREFIX = "reput"
ROWS_PREFIX = "reput_rows"
LOG = "_delta_log"
VERSION_DIGITS = 20
TRANSACTION = re.compile(rb'\s*\{\s*"txn"')


def app_id(store_id: str, epoch: int, export_name: str) -> str:
    """Return the application id under which a table keeps the end offset of a store's epoch."""
    return f"{PREFIX}:{store_id}:{epoch}:{export_name}"


def lake_sources(location: LakeLocation, export_name: str) -> list[Cursor]:
    """Return how far the export of that name has brought each store and epoch into the lake.

    The cursors have no store time.
    """
    return all_sources(location).get(export_name, [])


def all_sources(location: LakeLocation) -> dict[str, list[Cursor]]:
    """Return the cursors of `lake_sources` for each export name."""
    found: dict[str, list[Cursor]] = {}
    for name, until in transactions(location).items():
        prefix, store_id, epoch, export = parts_of(name)
        if prefix == PREFIX and epoch.isdigit() and until != RETIRED:
            found.setdefault(export, []).append(Cursor(store_id, int(epoch), until, 0))
    return found


def row_name_id(store_id: str, name: str, export_name: str) -> str:
    """Return the application id that records that a store's rows carry an earlier id of it."""
    return f"{ROWS_PREFIX}:{store_id}:{name}:{export_name}"


def row_name(location: LakeLocation, store_id: str, export_name: str) -> str:
    """Return the value of the column ``store`` in a store's rows."""
    for found in transactions(location):
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


def transactions(location: LakeLocation) -> dict[str, int]:
    """Return the version that the table records for each application id."""
    filesystem = location.filesystem()
    names = sorted(info.base_name for info in filesystem.get_file_info(pyarrow.fs.FileSelector(LOG)))
    checkpoints = [name for name in names if name.endswith(".parquet") and ".checkpoint" in name]
    found: dict[str, int] = {}
    checkpointed = max((version_of(name) for name in checkpoints), default=-1)
    for name in checkpoints:
        if version_of(name) == checkpointed:
            rows = pq.read_table(f"{LOG}/{name}", columns=["txn"], filesystem=filesystem)["txn"].to_pylist()
            found.update({row["appId"]: row["version"] for row in rows if row})
    for name in names:
        if name.endswith(".json") and name[:VERSION_DIGITS].isdigit() and version_of(name) > checkpointed:
            found.update(transactions_in(filesystem, f"{LOG}/{name}"))
    return found


def version_of(name: str) -> int:
    """Return the table version of a file of the table's log."""
    return int(name[:VERSION_DIGITS])


def transactions_in(filesystem: Any, name: str) -> Iterator[tuple[str, int]]:
    """Yield the (application id, version) entries of one transaction of the table."""
    with filesystem.open_input_stream(name) as stream:
        # Each line is an object with one key. Most describe files, whose statistics need not be decoded.
        for line in stream.read().splitlines():
            if TRANSACTION.match(line):
                found = msgspec.json.decode(line)["txn"]
                yield found["appId"], found["version"]
