"""ConsoleOptions: what the process of a console gets from `reput serve --console`, and the console that it serves."""

from __future__ import annotations

import ipaddress
import socket
from functools import partial
from pathlib import Path

import msgspec

from reput.console.accounts import Accounts
from reput.console.application import LOOPBACK_HOSTS, Console
from reput.console.audit_log import AuditLog
from reput.console.console_server import run_console
from reput.console.console_target import ConsoleStore, ConsoleTarget
from reput.console.guard import COOKIE
from reput.store.state.recorded_settings import load_store_settings

__all__ = ["ConsoleOptions", "console_of", "serve_beside"]


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the console beside a broker.

    Attributes:
        listener: descriptor of the bound socket.
        assignments: settings from the command line, ``NAME=VALUE``.
        users, cert, key: paths; None: not given.
        proxy: address or network of the proxy in front of the console; None: there is none.
    """

    store: str
    config: str | None
    assignments: list[str]
    listener: int
    users: str | None
    cert: str | None
    key: str | None
    proxy: str | None = None


def console_of(
    target: ConsoleTarget,
    listener: socket.socket,
    users: Path | None,
    *,
    audit_log: Path | None = None,
) -> Console:
    """Return the console of *target* for a socket.

    On loopback without accounts it answers to names of this machine alone. With accounts, a page that reaches it by a
    name of its own has no session there; and a proxy on this machine passes on the name that browsers use.

    Raises:
        ConfigError: the file of users cannot be used.
    """
    keeps_logins = audit_log is not None
    if audit_log is None and isinstance(target, ConsoleStore):
        audit_log = target.directory / "reput" / "log" / "console.log"
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    # Also another address of loopback than the usual one.
    hosts = LOOPBACK_HOSTS | {f"[{address}]" if address.version == 6 else str(address)}
    return Console(
        target,
        accounts=None if users is None else Accounts(users),
        hosts=hosts if address.is_loopback and users is None else frozenset(),
        cookie=f"{COOKIE}_{port}",
        audit=AuditLog(audit_log, keeps_logins=keeps_logins),
    )


def serve_beside(options: ConsoleOptions) -> None:
    """Serve the console of a store until SIGTERM."""
    directory = Path(options.store)
    config = None if options.config is None else Path(options.config)
    listener = socket.socket(fileno=options.listener)
    target = ConsoleStore(directory, partial(load_store_settings, directory, config, options.assignments))
    users = None if options.users is None else Path(options.users)
    try:
        run_console(
            console_of(target, listener, users),
            listener,
            None if options.cert is None else Path(options.cert),
            None if options.key is None else Path(options.key),
            options.proxy,
        )
    finally:
        target.close()
