"""Sources of a lake: of which stores' logs it holds rows, and up to where, as its transactions tell.

    reput:<store id>:<epoch>:<name of the export>  →  commit-log offset up to which the table holds that log; -1: the
                                                      epoch is not the store's any more

The Delta library answers for one such name at a time. To find out which there are, the table's log is read here: its
last checkpoint, and the transactions behind that.
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

__all__ = ["RETIRED", "app_id", "lake_sources"]

RETIRED = -1

PREFIX = "reput"
LOG = "_delta_log"
VERSION_DIGITS = 20
TRANSACTION = re.compile(rb'\s*\{\s*"txn"')


def app_id(store_id: str, epoch: int, export_name: str) -> str:
    """Return the name under which a table keeps the end offset of an epoch of a store."""
    return f"{PREFIX}:{store_id}:{epoch}:{export_name}"


def lake_sources(location: LakeLocation, export_name: str) -> list[Cursor]:
    """Return up to where the export of that name has brought the log of each store and epoch into the lake.

    The store times are not known.
    """
    cursors = []
    for name, until in transactions(location).items():
        prefix, _, rest = name.partition(":")
        store_id, _, rest = rest.partition(":")
        epoch, _, export = rest.partition(":")
        if prefix == PREFIX and export == export_name and epoch.isdigit() and until != RETIRED:
            cursors.append(Cursor(store_id, int(epoch), until, 0))
    return cursors


def transactions(location: LakeLocation) -> dict[str, int]:
    """Return the version of each application that the table knows of."""
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
    """Return the table's version that a file of its log is of."""
    return int(name[:VERSION_DIGITS])


def transactions_in(filesystem: Any, name: str) -> Iterator[tuple[str, int]]:
    """Yield (application, version) of one transaction of the table."""
    with filesystem.open_input_stream(name) as stream:
        # An action is an object with one name; most are files, whose statistics need not be decoded.
        for line in stream.read().splitlines():
            if TRANSACTION.match(line):
                found = msgspec.json.decode(line)["txn"]
                yield found["appId"], found["version"]
