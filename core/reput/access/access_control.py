"""AccessControl: allows or refuses each request to a broker by the accounts in a file, which it reloads after changes.

    routes of the name server         open to all, as RocketMQ's name server is
    changes of the name server        from this machine, or by an administrator
    all other requests                by the accounts

Connections of the broker's own user and of root over a Unix socket pass without an account.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from reput.access.auth_file import Auth
from reput.access.plain_acl import PlainAcl
from reput.access.request_needs import NAME_SERVER_READS, NAME_SERVER_WRITES, Need, need_of_record
from reput.errors import ConfigError, RequestRefused
from reput.remoting.connection import Connection
from reput.remoting.peer_credentials import peer_uid
from reput.remoting.remoting_command import RemotingCommand
from reput_hooks import Record

__all__ = ["AccessControl", "Rules", "auth", "plain_acl"]

LOOK_S = 1.0
# Files of accounts are small; a larger file is something else.
FILE_SIZE_MAX = 16 << 20
HOST = "access_host"
LOOPBACK = ("127.", "::1", "::ffff:127.")
# Minimum interval between logged refusals, because strangers can cause any number of them.
LOG_PAUSE_S = 1.0

logger = logging.getLogger(__name__)


class Rules(Protocol):
    """The accounts of one file."""

    def check(self, request: RemotingCommand, host: str) -> None:
        """Refuse a request that its sender is not allowed to make."""

    def check_need(self, request: RemotingCommand, host: str, need: Need) -> None:
        """Refuse a request that has passed `check` if its sender lacks one more permission."""


class AccessControl:
    """Used in the thread of the broker's loop only, except for methods that any thread may call."""

    def __init__(self, path: Path, parse: Callable[[object, str], Rules]) -> None:
        """Read the file *path* with *parse*, and check every second whether the file has changed.

        Raises:
            ConfigError: the file cannot be used.
        """
        self.path = path
        self.parse = parse
        self.loop = asyncio.get_running_loop()
        self.stamp = self.seen = stamp_of(path)
        self.rules = self.read()
        self.logged_at = -LOG_PAUSE_S
        self.unlogged = 0
        self.timer = self.loop.call_later(LOOK_S, self.look)

    def read(self) -> Rules:
        """Return the rules that the file holds now.

        Raises:
            ConfigError: the file cannot be used.
        """
        return self.parse(read_yaml(self.path), os.fspath(self.path))

    def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: the file cannot be used; the former rules stay in use.
        """
        self.stamp = stamp_of(self.path)
        self.rules = self.read()
        logger.info("accounts are read: path=%s", self.path)

    def look(self) -> None:
        """Read a changed file, once it has not changed since the last look: before, it may be half written."""
        self.timer = self.loop.call_later(LOOK_S, self.look)
        before, self.seen = self.seen, stamp_of(self.path)
        if self.seen != self.stamp and self.seen == before:
            try:
                self.reload()
            except ConfigError as error:
                logger.error("the former accounts stay in use: error=%s", error)

    def close(self) -> None:
        """Stop looking for changes."""
        self.timer.cancel()

    def check(self, connection: Connection, request: RemotingCommand) -> None:
        """Refuse a request that its sender is not allowed to make.

        Raises:
            RequestRefused: the request is not allowed.
        """
        if request.code in NAME_SERVER_READS:
            return
        host = connection.attachments.get(HOST)
        if host is None:
            host = connection.attachments[HOST] = host_of(connection)
        assert isinstance(host, str)
        if not host or (request.code in NAME_SERVER_WRITES and host.startswith(LOOPBACK)):
            return
        try:
            self.rules.check(request, host)
        except RequestRefused as error:
            self.log(connection, request, error)
            raise

    def check_record(self, connection: Connection, request: RemotingCommand, record: Record) -> None:
        """Refuse a request that has passed `check` if its sender may not read *record*. Any thread may call.

        Raises:
            RequestRefused: the account may not read the record's topic.
        """
        host = connection.attachments[HOST]
        assert isinstance(host, str)
        if not host:
            return
        try:
            self.rules.check_need(request, host, need_of_record(record))
        except RequestRefused as error:
            self.log(connection, request, error)
            raise

    def check_follower(self, request: RemotingCommand, host: str) -> None:
        """Refuse a request on the HA port that its account may not make. Any thread may call.

        Raises:
            RequestRefused: the request is not allowed.
        """
        self.rules.check(request, host)

    def log(self, connection: Connection, request: RemotingCommand, error: RequestRefused) -> None:
        """Log a refusal."""
        now = self.loop.time()
        if now - self.logged_at < LOG_PAUSE_S:
            self.unlogged += 1
            return
        logger.warning(
            "a request is refused: peer=%s code=%d reason=%s others=%d",
            connection.peer,
            request.code,
            str(error).partition("\n")[0],
            self.unlogged,
        )
        self.logged_at, self.unlogged = now, 0


def host_of(connection: Connection) -> str:
    """Return the peer's IP address; "" for a Unix socket, whose peers the server has already found trustworthy."""
    assert connection.transport is not None
    if peer_uid(connection.transport) is not None:
        return ""
    return connection.peer.rpartition(":")[0].strip("[]").partition("%")[0]


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return values that differ after a change of the file; None: there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        ConfigError: the file cannot be read, or is not YAML.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            f"accounts need PyYAML, which is not installed: path={path}", "Run `pip install 'reput[acl]'`."
        ) from None
    try:
        with path.open("rb") as file:
            data = file.read(FILE_SIZE_MAX + 1)
        if len(data) > FILE_SIZE_MAX:
            raise ConfigError(f"the file of accounts is too large: path={path} file_size_max={FILE_SIZE_MAX}")
        # Read all scalars as text, because a key may consist of digits.
        return without_empty(yaml.load(data, Loader=yaml.BaseLoader))
    except OSError as error:
        raise ConfigError(
            f"the file of accounts cannot be read: path={path} reason={error.strerror}",
            "Create the file, or set acl_file or auth_file to another.",
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"the file of accounts is not YAML: path={path} reason={error}") from None


def without_empty(value: Any) -> Any:
    """Return decoded YAML without the members that have no value."""
    if isinstance(value, dict):
        return {name: without_empty(member) for name, member in value.items() if not is_null(member)}
    return [without_empty(member) for member in value if not is_null(member)] if isinstance(value, list) else value


def is_null(value: object) -> bool:
    """Return whether a scalar is YAML's null."""
    return isinstance(value, str) and value in ("", "~", "null", "Null", "NULL")


def plain_acl(path: Path) -> AccessControl:
    """Return the access control that uses accounts of RocketMQ 4.

    Raises:
        ConfigError: the file cannot be used.
    """
    return AccessControl(path, PlainAcl)


def auth(path: Path, *, authorizes: bool) -> AccessControl:
    """Return the access control that uses users and policies of RocketMQ 5.

    Raises:
        ConfigError: the file cannot be used.
    """
    return AccessControl(path, lambda data, source: Auth(data, source, authorizes=authorizes))
