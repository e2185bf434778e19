"""The messages between the three processes of `reput serve`: command line, keeper and broker."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ROLE_ENDED", "Failed", "Ready", "ServeOptions"]

# The exit code of a broker whose lease was lost, or which may take it: the next one has another role.
ROLE_ENDED = 75


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `reput serve`.

    Attributes:
        config: path of the settings' file.
        assignments: settings from the command line, ``NAME=VALUE``.
        given: settings that are derived from the addresses.
        listeners: descriptors of the bound sockets.
        broker, name_server: the addresses that clients reach; None: there is no name server here.
        name_servers: addresses of the name servers to register with.
        metrics: where metrics are read, on the last of *listeners*; None: nowhere.
        console: address of a console, and its command, which inherits *console_listener*; None: there is none.
        lock_timeout: seconds to wait while another process writes the store.
        announces: print a line on stdout once clients can connect.
        ha: the address that followers reach, whose socket is the last of *listeners*; None: there is none.
        ha_allows_unsigned: with accounts, followers without one may copy the log, too, such as RocketMQ's slaves.
        follow: the master whose log the store copies, as its HA port or the name of its broker; None: it follows none.
        follow_name_server, follow_broker: where to find it.
        lease: decides whether this node is the master, or which master it follows; None: *follow* does.
        discard: of a node of a lease: cut off, and keep, what the master lacks.
    """

    store: str
    config: str | None
    assignments: list[str]
    given: dict[str, Any]
    listeners: list[int]
    broker: str
    name_server: str | None
    name_servers: list[str] = []
    metrics: str | None = None
    console: str | None = None
    console_command: list[str] = []
    console_listener: int = -1
    lock_timeout: float = 0.0
    announces: bool = True
    ha: str | None = None
    ha_allows_unsigned: bool = False
    follow: str | None = None
    follow_name_server: str | None = None
    follow_broker: str | None = None
    lease: str | None = None
    discard: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Clients can connect."""

    pid: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The broker could not start: the class of the error, its text and its advice."""

    kind: str
    text: str
    advice: str
