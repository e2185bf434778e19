"""A server and its clients in one loop, for tests of connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand, decode_frame, encode_frame
from reput.remoting.remoting_server import Processor, RemotingServer

__all__ = ["ECHO", "Peer", "begin_server", "in_loop", "until"]

ECHO = 1
LIMIT_S = 60.0
# Of the test that runs.
peers: list[Peer] = []
servers: list[RemotingServer] = []


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Return a test that runs the coroutine *test* in a loop of its own, where no error may be left to the loop."""

    async def run() -> None:
        failed: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        try:
            async with asyncio.timeout(LIMIT_S):
                await test()
        finally:
            for ending in [*peers, *servers]:
                await ending.close()
            peers.clear()
            servers.clear()
        assert failed == []

    def synchronous() -> None:
        asyncio.run(run())

    synchronous.__name__, synchronous.__doc__ = test.__name__, test.__doc__
    return synchronous


def echo(request: RemotingCommand, connection: Connection) -> RemotingCommand:
    """Answer with what came."""
    del connection
    return RemotingCommand(0, request.ext_fields, request.body)


async def begin_server(processors: dict[int, Processor] | None = None, **options: Any) -> tuple[RemotingServer, int]:
    """Return a server that listens, and its port."""
    server = RemotingServer({ECHO: Processor(echo), **(processors or {})}, **options)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    await server.listen(listener)
    servers.append(server)
    return server, listener.getsockname()[1]


class Peer:
    """A client that reads and writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, port: int) -> Peer:
        """Connect."""
        peers.append(cls(*await asyncio.open_connection("127.0.0.1", port)))
        return peers[-1]

    def write(self, *commands: RemotingCommand) -> None:
        """Send commands in one piece."""
        self.writer.write(b"".join(b"".join(encode_frame(command)) for command in commands))

    async def read(self) -> RemotingCommand:
        """Return the next frame.

        Raises:
            IncompleteReadError: the server has ended the connection.
        """
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return decode_frame(await self.reader.readexactly(size))

    async def is_ended(self) -> bool:
        """Wait for the server's next bytes, or for the end."""
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True

    async def close(self) -> None:
        """End the connection."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    """Return when *condition* holds."""
    while not condition():
        await asyncio.sleep(0.001)
