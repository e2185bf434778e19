"""Target: where a client finds brokers: name servers, a Unix socket, or the broker of a store on this machine.

host:port;host:port     name servers, asked in turn
unix:/path, unix:@name  a broker's Unix socket; the broker answers for its own topics, with or without a name server
path of a store         the same, with the socket that ``reput/broker.json`` in the store names
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path

from reput.argument_checks import require_path
from reput.errors import BrokerError, ConfigError
from reput.remoting.connection import Connection
from reput.remoting.peer_credentials import ROOT, is_trusted, peer_uid
from reput.remoting.remoting_client import Unreachable, parse_address
from reput.remoting.remoting_command import RemotingCommand
from reput.store.state.broker_place import broker_place_owner, read_broker_place

__all__ = ["NameServerTarget", "SocketTarget", "StoreTarget", "Target", "parse_target"]

ADDRESSES = re.compile(r"[^/;]+:[0-9]+(;[^/;]+:[0-9]+)*;?")
SERVE_ADVICE = "Start it: reput serve STORE."


class Target:
    """Where a client finds brokers. Used in one event loop.

    Attributes:
        tls: how connections are encrypted, except those to Unix sockets; None: not at all.
        sign: completes each request with the signature of an account; None: requests are not signed.
    """

    tls: ssl.SSLContext | None = None
    sign: Callable[[RemotingCommand], None] | None = None

    def name_servers(self) -> list[str]:
        """Return the addresses of name servers; the one that has answered last comes first.

        Raises:
            BrokerError: no broker serves the store.
        """
        raise NotImplementedError

    def prefer(self, address: str) -> None:
        """From now on, ask *address* first, because it has answered."""

    def resolve(self, address: str) -> str:
        """Return the address at which the broker that routes call *address* is reached from here."""
        return address

    def check_peer(self, connection: Connection) -> None:
        """Refuse the peer of a Unix socket if it may belong to another user.

        Raises:
            Unreachable: the peer's user could not serve the store.
        """


class NameServerTarget(Target):
    """One name server or several."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def name_servers(self) -> list[str]:
        return list(self.addresses)

    def prefer(self, address: str) -> None:
        self.addresses.remove(address)
        self.addresses.insert(0, address)


class SocketTarget(Target):
    """A broker's Unix socket, named by the user; the permissions of its file decide who may connect."""

    def __init__(self, address: str) -> None:
        self.address = address

    def name_servers(self) -> list[str]:
        return [self.address]

    def resolve(self, address: str) -> str:
        return self.address


class StoreTarget(Target):
    """The broker of a store on this machine. The broker has another socket after each start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket: str | None = None
        self.broker: str | None = None

    def name_servers(self) -> list[str]:
        self.look()
        assert self.socket is not None
        return [self.socket]

    def resolve(self, address: str) -> str:
        # While the broker restarts, its last address fails, and the caller tries again.
        with contextlib.suppress(BrokerError):
            self.look()
        return self.socket if self.socket is not None and address == self.broker else address

    def look(self) -> None:
        """Read the broker's present address.

        Raises:
            BrokerError: no broker serves the store, or another user's broker does.
        """
        try:
            place = read_broker_place(self.directory)
        except PermissionError:
            raise BrokerError(
                f"this user may not connect to the store's broker: store={self.directory}",
                "Connect as the user that runs it, or through its name server: HOST:PORT.",
            ) from None
        if place is None:
            raise Unreachable(f"no broker serves the store: store={self.directory}", SERVE_ADVICE)
        self.socket, self.broker = f"unix:@{place.socket}", place.broker

    def check_peer(self, connection: Connection) -> None:
        assert connection.transport is not None
        uid = peer_uid(connection.transport)
        # Once a broker has ended, any user can take its name in the abstract namespace.
        if uid is not None and not is_trusted(uid) and not (os.geteuid() == ROOT and uid == self.owner()):
            raise Unreachable(
                f"the peer is not the store's broker: store={self.directory} uid={uid}",
                "Connect as the user that runs the broker.",
            )

    def owner(self) -> int | None:
        """Return the user that runs the store's broker."""
        return broker_place_owner(self.directory)


def parse_target(target: str | os.PathLike[str]) -> Target:
    """Return the `Target` for an address or path.

    Raises:
        ConfigError: *target* is neither an address nor a path.
    """
    if not target:
        raise ConfigError(
            f"the target is empty: target={target!r}", "Give HOST:PORT, the directory of a store, or unix:PATH."
        )
    if isinstance(target, str):
        if target.startswith("unix:"):
            if len(target) < 7:
                raise ConfigError(f"a Unix socket has no name: target={target!r}", "Give unix:/path or unix:@name.")
            return SocketTarget(target)
        if ADDRESSES.fullmatch(target) and not Path(target).exists():
            addresses = [address for address in target.split(";") if address]
            for address in addresses:
                try:
                    parse_address(address)
                except Unreachable as error:
                    raise ConfigError(str(error), error.advice) from None
            return NameServerTarget(addresses)
    return StoreTarget(require_path("target", target))
