"""GroupPlace: where a store's process group listens, kept in the store as ``reput/group.json``.

The control socket has a name in Linux's abstract namespace, not in a file system. A client therefore finds the group
through the store's directory alone: `TMPDIR`, `XDG_RUNTIME_DIR`, a private ``/tmp``, the length of the store's path and
a read-only mount make no difference, and a killed group leaves no socket behind. The name is random, so no other user
can take it first. Only processes of the same network namespace reach it.

The supervisor writes the file once it listens, and removes it when the group ends. After a kill the file stays, and
names a socket that no longer exists.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import msgspec

from reput.store.state.store_lock import StoreLock, is_claimed, read_writer

__all__ = ["GroupPlace", "new_socket_name", "place_path", "read_place", "remove_place", "why_silent", "write_place"]


class GroupPlace(msgspec.Struct, frozen=True):
    """``reput/group.json``.

    Attributes:
        socket: name of the control socket in the abstract namespace, without the leading zero byte.
        pid: of the supervisor.
        lock: device and inode of ``reput/group.lock``; a copy of the store has another one.
    """

    socket: str
    pid: int
    lock: tuple[int, int]


def new_socket_name() -> str:
    """Return a name that no other process can guess."""
    return f"reput-{secrets.token_hex(16)}"


def place_path(store_directory: Path) -> Path:
    """Return the path of the `GroupPlace` file."""
    return store_directory / "reput" / "group.json"


def lock_identity(store_directory: Path) -> tuple[int, int]:
    """Return device and inode of the group's lock file."""
    status = os.stat(store_directory / "reput" / "group.lock")
    return status.st_dev, status.st_ino


def write_place(store_directory: Path, socket_name: str) -> None:
    """Record that the group, whose lock this process holds, listens at *socket_name*.

    Raises:
        OSError: the file cannot be written.
    """
    place = GroupPlace(socket_name, os.getpid(), lock_identity(store_directory))
    path = place_path(store_directory)
    draft = path.with_name(f"{path.name}.draft")
    # After a power cut no group runs, so nothing needs a sync to disk.
    draft.write_bytes(msgspec.json.encode(place))
    draft.replace(path)


def read_place(store_directory: Path) -> GroupPlace | None:
    """Return where the group of this store listens, or last listened; None: there is nothing to connect to.

    Raises:
        PermissionError: this user may not read the file.
    """
    try:
        place = msgspec.json.decode(place_path(store_directory).read_bytes(), type=GroupPlace)
        return place if place.lock == lock_identity(store_directory) else None
    except PermissionError:
        raise
    except (OSError, msgspec.MsgspecError):
        return None


def remove_place(store_directory: Path) -> None:
    """Remove the record of where the group listens. Only the holder of the group's lock may do so."""
    with contextlib.suppress(FileNotFoundError):
        place_path(store_directory).unlink()


def why_silent(store_directory: Path) -> str | None:
    """Return why a group that may be running cannot be reached; None: no reput group runs.

    RocketMQ, and a `reput` command that changes a closed store, hold the store's lock and run no dispatchers.
    """
    lock = StoreLock.look(store_directory)
    if lock.held is None:
        return "this user may not see whether the store is open"
    if not lock.held or not is_claimed(store_directory):
        return None
    writer = read_writer(store_directory)
    if lock.pid is not None and writer is not None and lock.pid != writer.pid:
        return None
    pid = lock.pid or "unknown"
    if place_path(store_directory).exists():
        return f"its control socket is not reachable from here, as from another network namespace: pid={pid}"
    return f"its program offers no control socket, as with mode='inline', or while it opens the store: pid={pid}"
