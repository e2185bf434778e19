"""BackupSource: what a backup takes of a store, beside a program that writes it or without one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from reput.backup.layout import StoredFile
from reput.backup.target import BackupTarget
from reput.store.log.segments import Segments
from reput.store.recovery.log_end import find_log_end, force_log
from reput.store.state.epochs import Epochs, read_epochs
from reput.store.state.identity import read_store_id, require_store
from reput.store.state.store_lock import StoreLock

__all__ = ["BackupSource"]

# What is not taken: it belongs to a running program, is built from the log again, or was cut off.
LEFT_OUT_FOLDERS = ("log", "views", "shadow", "cut")
LEFT_OUT_FILES = ("writer.json", "broker.json", "group.json", "group.lock", "shadow.swap", "met_damage.jsonl", "lease")
DRAFT = ".draft"
Stamp = tuple[int, int, int]


class BackupSource:
    """One store, looked at again for each backup."""

    def __init__(self, store_directory: Path) -> None:
        """
        Raises:
            NotAStore: the directory holds no commit log.
        """
        require_store(store_directory)
        self.directory = store_directory
        # Files that were read before, by their path, with what the system said of them then.
        self.known: dict[Path, tuple[Stamp, StoredFile]] = {}

    def epochs(self) -> Epochs:
        """Return the histories of the log, with the store's id."""
        return read_epochs(self.directory, read_store_id(self.directory))

    def durable_end(self, segments: Segments, begin: int | None) -> tuple[int, bool]:
        """Return where the log ends, forced to disk up to there, and whether a program has the store open.

        *begin*: an earlier end; asking again from there is cheap.
        """
        is_open = StoreLock.look(self.directory).held is not False
        end = find_log_end(self.directory, segments, begin)
        force_log(segments, segments.offset_min if begin is None else begin, end)
        return end, is_open

    def put_files(self, target: BackupTarget, folders: tuple[str, ...]) -> tuple[dict[str, StoredFile], int]:
        """Put the small files below *folders* of the store into *target*, those it does not have yet.

        Returns:
            The files by their path in the store, and how many bytes were new.
        """
        files: dict[str, StoredFile] = {}
        copied = 0
        for folder in folders:
            for path in small_files(self.directory / folder):
                try:
                    found = os.stat(path)
                    stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
                    known = self.known.get(path)
                    if known is None or known[0] != stamp:
                        data = path.read_bytes()
                        stored = StoredFile(hashlib.sha256(data).hexdigest(), len(data))
                        copied += len(data) * target.create(stored.name, data)
                        known = self.known[path] = (stamp, stored)
                except FileNotFoundError:
                    # Its program has just removed it.
                    continue
                files[str(path.relative_to(self.directory))] = known[1]
        return files, copied


def small_files(folder: Path) -> Iterator[Path]:
    """Yield the files of *folder* that a backup takes, sorted."""
    for place, folders, names in os.walk(folder, onerror=refuse_unreadable):
        if folder.name == "reput" and Path(place) == folder:
            # Not looked into: a rebuild removes folders there meanwhile, and views have thousands of files.
            folders[:] = set(folders).difference(LEFT_OUT_FOLDERS)
            names = [name for name in names if name not in LEFT_OUT_FILES]
        folders.sort()
        yield from (
            path for name in sorted(names) if (path := Path(place, name)).is_file() and not name.endswith(DRAFT)
        )


def refuse_unreadable(error: OSError) -> None:
    """Raise *error*, unless a folder has just been removed: a backup never lacks what it could not read."""
    if not isinstance(error, FileNotFoundError):
        raise error
