"""StoreIdentity: ``reput/store.json``, what a store is called and what its bytes mean.

The first writing makes the id. Without an id, the store's first record identifies it until retention removes that
record: long enough for one run, but not for longer. State that outlives a run keeps marks, see `reput.table.log_marks`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from reput.errors import NotAStore, StoreError
from reput.store.disk.sealed_file import read_sealed
from reput.store.log.segments import Segments

__all__ = [
    "LAYOUT_VERSION",
    "RecordedValue",
    "StoreIdentity",
    "derive_store_id",
    "has_record",
    "is_store",
    "is_unfinished",
    "may_be_store",
    "new_store_id",
    "read_identity",
    "read_store_id",
    "require_store",
    "was_clean_when_adopted",
]

LAYOUT_VERSION = 1
FIRST_BYTES = 64
# The log, and what RocketMQ derives from it.
ROCKETMQ_DATA_FOLDERS = ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index")


class RecordedValue(msgspec.Struct, frozen=True):
    """One value of a setting, and the commit-log offset from which on it holds."""

    begin: int = msgspec.field(name="from")
    value: Any


class StoreIdentity(msgspec.Struct, frozen=True):
    """The file written at the first opening.

    Attributes:
        file_sizes: settings that the files themselves may not show, by name, in bytes or entries.
        adopted_clean: another program wrote the store before; True if it had closed it. None: reput created it.
        settings: the other settings that decide what bytes mean, by name; the values in the order of their offsets. See
            `reput.store.state.recorded_settings`.
    """

    layout_version: int
    store_id: str
    file_sizes: dict[str, int]
    adopted_clean: bool | None = None
    settings: dict[str, list[RecordedValue]] = {}


WHICH_DIRECTORY = "Name the directory that has commitlog/ in it."


def read_identity(store_directory: Path) -> StoreIdentity | None:
    """Return what ``reput/store.json`` says, None if reput never wrote here.

    Raises:
        NotAStore: it is a file.
        StoreError: a newer reput wrote it, this user may not read it, or a file has the name of the folder.
        DamagedStore: its checksum does not fit.
    """
    try:
        identity = read_sealed(store_directory / "reput" / "store.json", StoreIdentity)
    except NotADirectoryError:
        if store_directory.is_dir():
            raise StoreError(
                f"this is not a directory: path={store_directory / 'reput'}",
                "Move it away; reput keeps files of its own there.",
            ) from None
        raise NotAStore(f"this is not a directory: store={store_directory}", WHICH_DIRECTORY) from None
    except PermissionError as error:
        raise StoreError(
            f"no permission to read the store: store={store_directory} path={error.filename} error={error.strerror}",
            "Check its owner and mode; run as a user with read permission.",
        ) from None
    if identity is not None and identity.layout_version > LAYOUT_VERSION:
        raise StoreError(
            f"a newer reput wrote this store: layout_version={identity.layout_version} known={LAYOUT_VERSION} "
            f"store={store_directory}",
            "Use that version or a later one.",
        )
    return identity


def read_store_id(store_directory: Path) -> str:
    """Return the id of a store; if it has none, what `derive_store_id` calls it for now.

    Raises:
        NotAStore: the directory holds no commit log.
    """
    identity = read_identity(store_directory)
    return identity.store_id if identity else derive_store_id(Segments(store_directory / "commitlog"))


def was_clean_when_adopted(store_directory: Path) -> bool:
    """Tell whether reput found this store written by RocketMQ and cleanly closed."""
    identity = read_identity(store_directory)
    return identity is not None and identity.adopted_clean is True


def derive_store_id(segments: Segments) -> str:
    """Return what follows from the log's first bytes, record header and hosts, and the segment size.

    Retention changes it. An older reput took it for the store's id.
    """
    first = segments.list[0]
    with first.path.open("rb") as file:
        head = file.read(FIRST_BYTES)
    return hashlib.sha256(f"{first.begin}/{segments.segment_size}/".encode() + head).hexdigest()[:32]


def has_record(segments: Segments) -> bool:
    """Tell whether anything was ever appended to a log: its first bytes are not zero, or have been removed."""
    return segments.offset_min > 0 or any(segments.read(0, min(FIRST_BYTES, segments.list[0].size)))


def new_store_id() -> str:
    """Return an id that no other store has."""
    return os.urandom(16).hex()


def is_store(store_directory: Path) -> bool:
    """Tell whether there is a commit log in this directory."""
    try:
        Segments(store_directory / "commitlog")
    except NotAStore:
        return (store_directory / "reput" / "store.json").is_file()
    return True


def is_unfinished(directory: Path) -> bool:
    """Tell whether all that *directory* holds is what the making of a store leaves when it is interrupted early.

    An empty directory is such a one. There is no record in it, nor anything that is not ours or of a RocketMQ that has
    not got a message yet.
    """
    if is_unused_rocketmq(directory):
        return True
    for entry in directory.iterdir():
        if entry.name == "lock" and entry.is_file() and entry.stat().st_size <= len(b"lock"):
            continue
        if entry.name not in ("reput", "commitlog") or not entry.is_dir():
            return False
        for inner in entry.iterdir():
            try:
                status = inner.lstat()
            except FileNotFoundError:
                # The process that makes the store at this moment has renamed its draft.
                continue
            ours = inner.suffix == ".draft" if entry.name == "reput" else status.st_size == 0
            if not stat.S_ISREG(status.st_mode) or not ours:
                return False
    return True


def may_be_store(directory: Path) -> bool:
    """Tell whether *directory* is absent, a store, or what is left of the making of one.

    Another process may make the store meanwhile, so a store is looked for a second time, after everything else.
    """
    return (
        not directory.exists()
        or is_store(directory)
        or (directory.is_dir() and (is_unfinished(directory) or is_store(directory)))
    )


def is_unused_rocketmq(directory: Path) -> bool:
    """Tell whether RocketMQ has begun a store in *directory* and got no message yet: no log, and no view of one.

    It makes its checkpoint at the first start, and a segment only for the first message. Views without a log are what
    is left of a store that has lost it.
    """
    return (directory / "checkpoint").is_file() and not any(
        path.is_file() and path.stat().st_size > 0
        for folder in ROCKETMQ_DATA_FOLDERS
        for path in (directory / folder).rglob("*")
    )


def require_store(store_directory: Path) -> None:
    """Refuse a directory that is no store.

    Raises:
        NotAStore: it is absent, empty, or holds no commit log.
    """
    if not store_directory.is_dir():
        what = "this is no directory" if store_directory.exists() else "no such directory"
        raise NotAStore(f"{what}: store={store_directory}", WHICH_DIRECTORY)
    if not is_store(store_directory):
        raise NotAStore(
            f"no message store here: store={store_directory} missing=commitlog",
            "Name the directory that has commitlog/ in it, or create a store with `reput send`.",
        )
