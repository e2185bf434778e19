"""BrokerPlace: where the broker of a store is reached, kept in the store as ``reput/broker.json``.

Programs on the same machine connect to the socket, whose name lies in Linux's abstract namespace: they need neither a
port nor a name server. The file stays after a kill, and then names a socket that no longer exists.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

__all__ = ["BrokerPlace", "broker_place_owner", "read_broker_place", "remove_broker_place", "write_broker_place"]


class BrokerPlace(msgspec.Struct, frozen=True):
    """``reput/broker.json``.

    Attributes:
        socket: name of the Unix socket in the abstract namespace, without the leading zero byte.
        pid: of the broker's process.
        broker, name_server: addresses, ``host:port``; None: no name server is beside the broker.
    """

    socket: str
    pid: int
    broker: str
    name_server: str | None


def path_of(store_directory: Path) -> Path:
    """Return the path of the file."""
    return store_directory / "reput" / "broker.json"


def write_broker_place(store_directory: Path, place: BrokerPlace) -> None:
    """Record where the broker is reached.

    Raises:
        OSError: the file cannot be written.
    """
    path = path_of(store_directory)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(msgspec.json.encode(place))
    draft.replace(path)


def read_broker_place(store_directory: Path) -> BrokerPlace | None:
    """Return where the broker of a store is reached, or was last; None: no broker has served it.

    Raises:
        PermissionError: this user may not read the file.
    """
    try:
        return msgspec.json.decode(path_of(store_directory).read_bytes(), type=BrokerPlace)
    except PermissionError:
        raise
    except (OSError, msgspec.MsgspecError):
        return None


def broker_place_owner(store_directory: Path) -> int | None:
    """Return the user that has recorded the place; None: no record is there."""
    try:
        return path_of(store_directory).stat().st_uid
    except OSError:
        return None


def remove_broker_place(store_directory: Path) -> None:
    """Remove the record; the broker ends."""
    with contextlib.suppress(FileNotFoundError):
        path_of(store_directory).unlink()
