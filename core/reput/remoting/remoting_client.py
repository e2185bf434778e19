"""RemotingClient: requests to peers by address, over one connection per peer, opened at the first request.

    address               peer
    host:port             on the network
    unix:/path            at a Unix socket
    unix:@name            at a Unix socket in Linux's abstract namespace

Source: RocketMQ remoting, NettyRemotingClient.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from reput.errors import BrokerError
from reput.remoting.connection import Connection, RequestHandler
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode

__all__ = ["ClientConnection", "RemotingClient", "Unreachable", "parse_address"]

CONNECT_TIMEOUT_S = 3.0
UNIX_PREFIX = "unix:"
ABSTRACT_PREFIX = "@"


class Unreachable(BrokerError):
    """No connection to the peer can be established."""

    advice = "Check that the peer runs and that the address is right."


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, or of ``[host]:port`` for IPv6.

    Raises:
        Unreachable: *address* has another form.
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not is_host(host) or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Unreachable(f"an address must have the form host:port: address={address!r}", "Correct the address.")
    return host, int(port)


def is_host(text: str) -> bool:
    """Tell whether the system may be asked for a host of this name: it raises no error of its own for `a..b`."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


class ClientConnection(Connection):
    """The client's side of a connection.

    It continues to read while the peer does not. Otherwise both sides could wait for each other, because the peer may
    be waiting for its answers to be read. A client limits what it sends by the number of answers that it waits for.
    """

    def __init__(self, handler: RequestHandler, sign: Callable[[RemotingCommand], None] | None) -> None:
        """*sign* completes each request before it is sent; None: requests are not signed."""
        super().__init__(handler)
        self.sign = sign

    def send(self, command: RemotingCommand) -> None:
        if self.sign is not None and not command.is_response:
            self.sign(command)
        super().send(command)

    def pause_writing(self) -> None:
        """Continue to read."""

    def resume_writing(self) -> None:
        """Do nothing: reading was not paused."""


class RemotingClient:
    """Connections to peers. Used in the thread of its loop only.

    Args:
        handler: receives requests sent by peers; None: such requests are answered with "not supported".
        tls: the TLS context; None: connections are not encrypted.
        greet: called with each new connection before anything else is sent on it.
        sign: completes each request with an account's signature; None: requests are not signed.
    """

    def __init__(
        self,
        handler: RequestHandler | None = None,
        tls: ssl.SSLContext | None = None,
        greet: Callable[[str, Connection], Awaitable[None]] | None = None,
        sign: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        self.handler = handler or unsupported
        self.tls = tls
        self.greet = greet
        self.sign = sign
        self.loop = asyncio.get_running_loop()
        self.connections: dict[str, Connection] = {}
        # The attempts to connect, by address: those who wait for one share its failure, too.
        self.connecting: dict[str, asyncio.Task[Connection]] = {}

    async def connection(self, address: str) -> Connection:
        """Return a connection to *address*, ``host:port`` or ``unix:path``.

        Raises:
            Unreachable: none is open, and none can be established.
        """
        found = self.connected(address)
        if found is not None:
            return found
        task = self.connecting.get(address)
        if task is None:
            task = self.connecting[address] = self.loop.create_task(self.greeted(address))
            task.add_done_callback(lambda done: self.tried(address, done))
        return await asyncio.shield(task)

    async def greeted(self, address: str) -> Connection:
        """Open a connection, and greet its peer."""
        found = await self.connect(address)
        if self.greet is not None:
            try:
                await self.greet(address, found)
            except BaseException:
                found.abort()
                raise
        self.connections[address] = found
        return found

    def tried(self, address: str, done: asyncio.Task[Connection]) -> None:
        """Forget an attempt to connect. If nobody waits for it any more, its error is none of the loop's."""
        del self.connecting[address]
        if not done.cancelled():
            done.exception()

    def connected(self, address: str) -> Connection | None:
        """Return the connection to *address* if there is one."""
        found = self.connections.get(address)
        return None if found is None or found.closed else found

    async def connect(self, address: str) -> Connection:
        """Open a connection."""

        def protocol() -> Connection:
            return ClientConnection(self.handler, self.sign)

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if address.startswith(UNIX_PREFIX):
                    return await self.connect_unix(protocol, address)
                host, port = parse_address(address)
                return (await self.loop.create_connection(protocol, host, port, ssl=self.tls))[1]
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            raise Unreachable(f"the peer cannot be reached: address={address} reason={reason!r}") from None

    async def connect_unix(self, protocol: Callable[[], Connection], address: str) -> Connection:
        """Make a connection to a Unix socket."""
        path = address.removeprefix(UNIX_PREFIX)
        if path.startswith(ABSTRACT_PREFIX):
            path = path.replace(ABSTRACT_PREFIX, "\0", 1)
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            await self.loop.sock_connect(connecting, path)
            return (await self.loop.create_unix_connection(protocol, sock=connecting))[1]
        except BaseException:
            connecting.close()
            raise

    async def invoke(self, address: str, command: RemotingCommand, timeout: float = 3.0) -> RemotingCommand:
        """Send a request and return its response, regardless of the response code.

        Raises:
            Unreachable: there is no connection.
            ConnectionLost: the connection ended before the response.
            TimeoutError: no response within *timeout* seconds.
        """
        return await (await self.connection(address)).invoke(command, timeout)

    async def close(self) -> None:
        """End all connections."""
        attempts = list(self.connecting.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        connections = [connection for connection in self.connections.values() if not connection.closed]
        self.connections.clear()
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=1.0)


def unsupported(connection: Connection, request: RemotingCommand) -> None:
    """Refuse a request of the peer."""
    remark = f" request type {request.code} not supported"
    connection.respond(request, RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
