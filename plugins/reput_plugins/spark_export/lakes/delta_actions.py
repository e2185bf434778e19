"""Actions of a Delta table's log that the Delta library neither shows nor writes: those with deletion vectors.

The state of a version is that of the newest checkpoint below it, changed by the transactions since. A transaction is
made by giving the next version's file its name, which fails if there is one: so it never lies on top of a transaction
that its author did not know.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from reput.store.disk.files import Files
from reput_plugins.spark_export.lakes.deletion_vectors import DeletionVector
from reput_plugins.spark_export.lakes.delta_versions import LOG, VERSION_DIGITS
from reput_plugins.spark_export.lakes.lake_table import CommitConflict, ParquetFile

if TYPE_CHECKING:
    from reput_plugins.spark_export.lake_location import LakeLocation

__all__ = ["Action", "TableState", "add_action", "add_again", "add_file", "commit_actions", "remove_file", "state_of"]

CHECKPOINTED = ("add", "metaData", "protocol")
Action = dict[str, Any]


class TableState:
    """The state of one version, as actions in Delta's form.

    Attributes:
        files: the action that added each data file, by the file's path, which is not escaped.
        removed: (time in ms, vector) of the vectors of removed files, as far as the log still has them.
    """

    def __init__(self) -> None:
        self.files: dict[str, Action] = {}
        self.removed: list[tuple[int, DeletionVector]] = []
        self.metadata: Action = {}
        self.protocol: Action = {}

    def take(self, actions: Sequence[Action]) -> None:
        """Change the state by one transaction."""
        # A file whose vector changes is removed and added, in any order.
        for action in actions:
            gone = action.get("remove")
            if gone is not None:
                self.files.pop(unquote(gone["path"]), None)
                vector = vector_of(gone)
                self.removed += [] if vector is None else [(gone.get("deletionTimestamp") or 0, vector)]
        for action in actions:
            if action.get("add") is not None:
                self.files[unquote(action["add"]["path"])] = action["add"]
            self.metadata = action.get("metaData") or self.metadata
            self.protocol = action.get("protocol") or self.protocol

    def vector(self, path: str) -> DeletionVector | None:
        """Return the deletion vector of a data file, None without one."""
        return vector_of(self.files[path])


def vector_of(action: Mapping[str, Any]) -> DeletionVector | None:
    """Return the deletion vector of an action, None without one."""
    found = action.get("deletionVector")
    return None if found is None else msgspec.convert(found, DeletionVector)


def state_of(location: LakeLocation, version: int) -> TableState:
    """Return the state of one version of a table.

    Raises:
        OSError: the log cannot be read.
    """
    filesystem = location.filesystem()
    names = sorted(info.base_name for info in filesystem.get_file_info(pyarrow.fs.FileSelector(LOG)))
    numbers = {name: int(name[:VERSION_DIGITS]) for name in names if name[:VERSION_DIGITS].isdigit()}
    checkpoints = {
        name: number
        for name, number in numbers.items()
        if ".checkpoint" in name and name.endswith(".parquet") and number <= version
    }
    checkpointed = max(checkpoints.values(), default=-1)
    state = TableState()
    for name, number in checkpoints.items():
        if number == checkpointed:
            state.take(checkpointed_actions(filesystem, f"{LOG}/{name}"))
    for number in range(checkpointed + 1, version + 1):
        with filesystem.open_input_stream(f"{LOG}/{number:0{VERSION_DIGITS}}.json") as stream:
            state.take([msgspec.json.decode(line) for line in stream.read().splitlines()])
    return state


def checkpointed_actions(filesystem: Any, name: str) -> list[Action]:
    """Return the actions of a checkpoint, in the form that transactions have."""
    with filesystem.open_input_file(name) as stream:
        # Tombstones hold vectors, too.
        rows = pq.ParquetFile(stream).read(columns=[*CHECKPOINTED, "remove"]).to_pylist()
    return [{kind: as_action(found) for kind, found in row.items() if found is not None} for row in rows]


def as_action(value: Any, name: str = "") -> Any:
    """Return a value of a checkpoint as in a transaction: without nulls, with objects for maps."""
    if isinstance(value, dict):
        return {key: as_action(found, key) for key, found in value.items() if found is not None}
    if isinstance(value, list) and name in ("partitionValues", "configuration", "options", "tags"):
        return dict(value)
    return value


def remove_file(action: Action, *, data_change: bool = True) -> Action:
    """Return the action that removes the file of an ``add``."""
    gone = {
        "path": action["path"],
        "deletionTimestamp": now_ms(),
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": action["partitionValues"],
        "size": action["size"],
    }
    vector = action.get("deletionVector")
    return {"remove": gone if vector is None else {**gone, "deletionVector": vector}}


def add_again(action: Action, vector: DeletionVector) -> Action:
    """Return the action that adds the file of an ``add`` with another deletion vector."""
    # The bounds remain, but a deleted row may have had the lowest or highest value.
    statistics = {**json.loads(action.get("stats") or "{}"), "tightBounds": False}
    kept = {**action, "stats": json.dumps(statistics), "dataChange": True}
    return {"add": {**kept, "deletionVector": msgspec.to_builtins(vector)}}


def add_action(file: ParquetFile) -> AddAction:
    """Return a file in Delta's form."""
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition,
        modification_time=file.written_ms,
        data_change=True,
        stats=json.dumps(statistics(file)),
    )


def statistics(file: ParquetFile) -> dict[str, Any]:
    """Return the statistics by which readers of Delta tables skip files."""
    return {
        "numRecords": file.row_count,
        "minValues": nested(file.minimum),
        "maxValues": nested(file.maximum),
        "nullCount": nested(file.null_count),
    }


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by column, with the values of struct fields (``column.field``) nested in their column."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        column, _, field = name.partition(".")
        if field:
            found.setdefault(column, {})[field] = plain(value)
        else:
            found[name] = plain(value)
    return found


def plain(value: Any) -> Any:
    """Return a value in the form of Delta's statistics: times as text, in ms."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def add_file(file: AddAction, *, data_change: bool = True) -> Action:
    """Return the action that adds a new file."""
    return {
        "add": {
            # Paths are escaped as in URLs.
            "path": quote(file.path),
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": file.modification_time,
            "dataChange": data_change,
            "stats": file.stats,
        }
    }


def commit_actions(
    location: LakeLocation,
    version: int,
    operation: str,
    actions: Sequence[Action],
    info: Mapping[str, Any],
    recorded: Mapping[str, int],
) -> None:
    """Make the transaction with number *version*, durably.

    Raises:
        CommitConflict: there is one with this number.
        OSError: the log cannot be written.
    """
    assert location.folder is not None
    at = now_ms()
    lines: list[Action] = [{"commitInfo": {**info, "timestamp": at, "operation": operation}}]
    lines += [{"txn": {"appId": name, "version": number, "lastUpdated": at}} for name, number in recorded.items()]
    folder = location.folder / LOG
    # The Delta library's drafts are called the same.
    draft = folder / f"_commit_{uuid.uuid4()}.json.tmp"
    try:
        draft.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (*lines, *actions)))
        Files().force_together([draft], [])
        os.link(draft, folder / f"{version:0{VERSION_DIGITS}}.json")
    except FileExistsError:
        raise CommitConflict(f"another transaction came first: version={version}") from None
    finally:
        draft.unlink(missing_ok=True)
    Files().force_together([], [folder])


def now_ms() -> int:
    """Return the present time."""
    return time.time_ns() // 1_000_000
