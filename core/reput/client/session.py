"""Session: a client's part in one event loop: connections and routes, and its groups' heartbeats.

A session ends with its loop: when the loop cancels its tasks, the connections are closed.

Source: RocketMQ client, MQClientInstance.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from itertools import count

from reput.client.routes import Routes, refused
from reput.client.target import Target
from reput.errors import BrokerError, ReputError
from reput.json_encoding import encode_json
from reput.remoting.connection import Connection
from reput.remoting.heartbeat import HeartbeatData
from reput.remoting.remoting_client import RemotingClient, unsupported
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode

__all__ = ["Session", "new_client_id"]

INVOKE_TIMEOUT_S = 3.0
KEEP_INTERVAL_S = 30.0

logger = logging.getLogger(__name__)
numbers = count(1)


class Session:
    """Used in the thread of its loop only.

    Attributes:
        handlers: by request code, the handler of brokers' requests.
        heartbeat: returns the body of the heartbeats; None: the session has no group.
        on_end: called when the session ends, also if it ends with its loop.
    """

    def __init__(self, target: Target, client_id: str) -> None:
        self.target = target
        self.client_id = client_id
        self.loop = asyncio.get_running_loop()
        self.remoting = RemotingClient(self.handle, target.tls, self.greet, target.sign)
        self.routes = Routes(target, self.invoke_address)
        self.handlers: dict[int, Callable[[Connection, RemotingCommand], None]] = {}
        self.heartbeat: Callable[[], HeartbeatData] | None = None
        self.on_end: Callable[[], None] = lambda: None
        self.resolved: dict[str, str] = {}
        self.closed = False
        self.keeper = self.loop.create_task(self.keep())

    # Requests to brokers.

    def connected(self, broker: str) -> Connection | None:
        """Return the connection to the broker that routes call *broker*, if there is one."""
        address = self.resolved.get(broker)
        return None if address is None else self.remoting.connected(address)

    async def connection(self, broker: str) -> Connection:
        """Return a connection to the broker that routes call *broker*.

        Raises:
            BrokerError: there is no connection, and none can be made.
        """
        found = self.connected(broker)
        if found is None:
            address = self.resolved[broker] = self.target.resolve(broker)
            try:
                found = await self.remoting.connection(address)
            except TimeoutError:
                raise BrokerError(f"the broker does not answer the heartbeat: broker={broker}") from None
        return found

    async def invoke(self, broker: str, command: RemotingCommand, timeout: float = INVOKE_TIMEOUT_S) -> RemotingCommand:
        """Send a request to a broker, and return the response, whatever its code.

        Raises:
            BrokerError: the broker cannot be reached, or does not answer.
        """
        try:
            return await (await self.connection(broker)).invoke(command, timeout)
        except TimeoutError:
            raise BrokerError(
                f"the broker does not answer in time: broker={broker} request_code={command.code} timeout_s={timeout}"
            ) from None

    async def request(
        self, broker: str, command: RemotingCommand, timeout: float = INVOKE_TIMEOUT_S
    ) -> RemotingCommand:
        """As `invoke`, but raise an error unless the response is a success.

        Raises:
            RequestRefused: the response has another code than SUCCESS.
        """
        response = await self.invoke(broker, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise refused(response)
        return response

    async def request_all(self, requests: Iterable[tuple[str, RemotingCommand]]) -> None:
        """Send requests to brokers, to all at the same time, and log which of the brokers cannot be reached.

        Raises:
            BrokerError: none of the brokers can be reached.
            RequestRefused: a broker refuses.
        """
        asked = [self.request(broker, command) for broker, command in requests]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, BrokerError):
                raise error
        if errors and len(errors) == len(answers):
            raise errors[0]
        for error in errors:
            logger.warning("a broker cannot be reached yet: client_id=%s error=%s", self.client_id, error)

    def notify(self, broker: str, command: RemotingCommand) -> None:
        """Send a request that has no answer, if the broker is connected."""
        connection = self.connected(broker)
        if connection is not None:
            connection.notify(command)

    async def invoke_address(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request to a name server."""
        return await self.remoting.invoke(address, command, INVOKE_TIMEOUT_S)

    # Requests of brokers.

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        """Handle a request of a broker."""
        handler = self.handlers.get(request.code)
        if handler is not None:
            handler(connection, request)
        else:
            unsupported(connection, request)

    # Life.

    async def greet(self, address: str, connection: Connection) -> None:
        """Tell a new peer the groups of this session, before any other request."""
        self.target.check_peer(connection)
        if self.heartbeat is not None and address in self.resolved.values():
            await connection.invoke(self.heartbeat_command(), INVOKE_TIMEOUT_S)

    def heartbeat_command(self) -> RemotingCommand:
        """Return HEART_BEAT."""
        assert self.heartbeat is not None
        return RemotingCommand(RequestCode.HEART_BEAT, body=encode_json(self.heartbeat()))

    async def send_heartbeats(self) -> None:
        """Tell all brokers the groups of this session. Brokers that cannot be reached are told when they are back."""
        if self.heartbeat is None:
            return
        for broker in self.routes.all_masters():
            with contextlib.suppress(ReputError, TimeoutError):
                await self.request(broker, self.heartbeat_command())

    async def keep(self) -> None:
        """Refresh routes and send heartbeats at intervals; end the connections when the loop ends."""
        try:
            while True:
                await asyncio.sleep(KEEP_INTERVAL_S)
                # All at once: if the name server hangs, one after the other would keep the next heartbeat too long.
                await asyncio.gather(*map(self.routes.look_up, list(self.routes.known)))
                await self.send_heartbeats()
        finally:
            self.closed = True
            self.on_end()
            await self.remoting.close()

    async def close(self) -> None:
        """End all connections."""
        self.closed = True
        self.keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.keeper
        # If the keeper task had not started, it has not closed the connections.
        await self.remoting.close()


def new_client_id() -> str:
    """Return an id that no other client has: ``address@process#number``, as RocketMQ's clients form it."""
    return f"{own_address()}@{os.getpid()}#{time.monotonic_ns()}{next(numbers):03d}"


def own_address() -> str:
    """Return an address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # This sends no packet; the system only says which of its addresses it would use.
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
