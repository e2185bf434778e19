"""Versions of a Delta table, and which of them can be read: those whose data files are all there still.

The table's log says which files each transaction added and removed, so the files of a version are those of the next one
without the additions of the transaction between them, and with its removals. A file that is gone, or will be, makes
unreadable exactly the versions that name it; these need not be the oldest ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow.fs

from reput_plugins.spark_export.lakes.lake_table import TableVersion

__all__ = ["LOG", "VERSION_DIGITS", "all_files", "changes_of", "known_versions"]

LOG = "_delta_log"
VERSION_DIGITS = 20


class NamedFile(msgspec.Struct):
    """A data file in an action of the table's log; its path is escaped as in a URL."""

    path: str


class CommitTime(msgspec.Struct):
    """When a transaction was made."""

    timestamp: int = 0


class Action(msgspec.Struct):
    """One line of a transaction, of which only these three kinds matter here."""

    add: NamedFile | None = None
    remove: NamedFile | None = None
    commit_info: CommitTime | None = msgspec.field(name="commitInfo", default=None)


class Changes(msgspec.Struct):
    """What one transaction did to the files of the table."""

    added: set[str]
    removed: set[str]
    timestamp_ms: int


def known_versions(
    filesystem: Any, version: int, files: Collection[str], going: Collection[str]
) -> Iterator[TableVersion]:
    """Yield the versions up to *version* that the table's log still tells, newest first.

    Args:
        files: the data files of *version*.
        going: files that are to be removed.
    """
    there = {info.path for info in all_files(filesystem)}
    logged = {path.removeprefix(f"{LOG}/") for path in there if path.startswith(f"{LOG}/")}
    oldest = oldest_version(logged, version)
    going = set(going)
    named = set(files)
    absent, leaving = named - there, named & going
    for number in range(version, oldest - 1, -1):
        name = f"{number:0{VERSION_DIGITS}}.json"
        if name not in logged:
            # Only its checkpoint is left: it can be read, but nothing tells what its transaction changed.
            yield TableVersion(number, None, not absent, not absent and not leaving)
            return
        changes = changes_of(filesystem, f"{LOG}/{name}")
        yield TableVersion(number, changes.timestamp_ms, not absent, not absent and not leaving)
        absent = (absent - changes.added) | (changes.removed - there)
        leaving = (leaving - changes.added) | (changes.removed & going)


def all_files(filesystem: Any) -> list[Any]:
    """Return every file below a lake."""
    found = filesystem.get_file_info(pyarrow.fs.FileSelector("", recursive=True))
    return [info for info in found if info.type == pyarrow.fs.FileType.File]


def oldest_version(logged: Collection[str], version: int) -> int:
    """Return the oldest version that the files of the table's log still tell: from its first one, or a checkpoint, on.

    *logged*: names of the files of the table's log.
    """
    oldest = version
    while f"{oldest:0{VERSION_DIGITS}}.json" in logged and oldest > 0:
        oldest -= 1
    if oldest == 0 and f"{0:0{VERSION_DIGITS}}.json" in logged:
        return 0
    checkpoints = {
        int(name[:VERSION_DIGITS])
        for name in logged
        if ".checkpoint" in name and name.endswith(".parquet") and name[:VERSION_DIGITS].isdigit()
    }
    return min((number for number in checkpoints if oldest <= number <= version), default=version)


def changes_of(filesystem: Any, name: str) -> Changes:
    """Return what one transaction of the table's log did to its files."""
    found = Changes(set(), set(), 0)
    decoder = msgspec.json.Decoder(Action)
    with filesystem.open_input_stream(name) as stream:
        for line in stream.read().splitlines():
            action = decoder.decode(line)
            if action.add is not None:
                found.added.add(unquote(action.add.path))
            elif action.remove is not None:
                found.removed.add(unquote(action.remove.path))
            elif action.commit_info is not None:
                found.timestamp_ms = action.commit_info.timestamp
    return found
