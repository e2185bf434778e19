"""Versions of a Delta table. A version can be read if all of its data files still exist.

The table's log says which files each transaction added and removed. The files of a version are therefore those of the
next version, without the files that the transaction between them added, and with those that it removed. If a file is
removed, the versions that name it can no longer be read; these need not be the oldest versions. A file of deletion
vectors is such a file as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow.fs

from reput_plugins.spark_export.lakes.deletion_vectors import DeletionVector
from reput_plugins.spark_export.lakes.lake_table import TableVersion

__all__ = ["LOG", "VERSION_DIGITS", "all_files", "changes_of", "known_versions"]

LOG = "_delta_log"
VERSION_DIGITS = 20


class NamedFile(msgspec.Struct):
    """A data file in an action of the table's log; its path is escaped as in a URL."""

    path: str
    deletion: DeletionVector | None = msgspec.field(name="deletionVector", default=None)

    def paths(self) -> set[str]:
        """Return the paths of the file and of its deletion vector."""
        vector = None if self.deletion is None else self.deletion.path
        return {unquote(self.path)} | ({vector} if vector is not None else set())


class CommitTime(msgspec.Struct):
    """The time of a transaction."""

    timestamp: int = 0


class Action(msgspec.Struct):
    """One line of a transaction. Only these three kinds are needed here."""

    add: NamedFile | None = None
    remove: NamedFile | None = None
    commit_info: CommitTime | None = msgspec.field(name="commitInfo", default=None)


class Changes(msgspec.Struct):
    """The changes that one transaction made to the table's files."""

    added: set[str]
    removed: set[str]
    timestamp_ms: int


def known_versions(
    filesystem: Any, version: int, files: Collection[str], going: Collection[str]
) -> Iterator[TableVersion]:
    """Yield the versions up to *version* that the table's log still describes, newest first.

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
            # Only the version's checkpoint is left: it can be read, but the changes of its transaction are unknown.
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
    """Return the oldest version that the table's log still describes: its first version, or one with a checkpoint.

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
    """Return the changes that one transaction made to the table's files."""
    found = Changes(set(), set(), 0)
    decoder = msgspec.json.Decoder(Action)
    with filesystem.open_input_stream(name) as stream:
        for line in stream.read().splitlines():
            action = decoder.decode(line)
            if action.add is not None:
                found.added |= action.add.paths()
            elif action.remove is not None:
                found.removed |= action.remove.paths()
            elif action.commit_info is not None:
                found.timestamp_ms = action.commit_info.timestamp
    return found
