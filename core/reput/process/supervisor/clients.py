"""Clients: the owner's channel and the connections to the control socket, whose requests go to the desk."""

from __future__ import annotations

from reput.process.control.channel import JsonChannel
from reput.process.control.control_messages import Notice
from reput.process.control.control_socket import ControlSocket
from reput.process.supervisor.requests import RequestDesk
from reput.process.system.reactor import Reactor

__all__ = ["Clients"]


class Clients:
    """The connections to the control socket, and the owner's channel."""

    def __init__(self, reactor: Reactor, channel: JsonChannel, desk: RequestDesk) -> None:
        self.reactor = reactor
        self.channel = channel
        self.desk = desk
        self.control: ControlSocket | None = None
        self.connected: dict[int, JsonChannel] = {}

    def listen(self, control: ControlSocket) -> None:
        """Accept clients on *control*."""
        self.control = control
        self.reactor.watch(control.fileno(), self.accept)

    def owner_says(self) -> None:
        """Handle the owner's requests."""
        for line in self.channel.receive():
            self.desk.handle(line, lambda reply: self.channel.send(Notice("reply", reply=reply)), None)

    def accept(self) -> None:
        """Accept a new client."""
        assert self.control is not None
        client = self.control.accept()
        if client is not None:
            descriptor = client.fileno()
            self.connected[descriptor] = client
            self.reactor.watch(descriptor, lambda: self.client_says(descriptor, client))

    def client_says(self, descriptor: int, client: JsonChannel) -> None:
        """Handle a client's requests."""
        for line in client.receive():
            self.desk.handle(line, client.send, client)
        if client.closed:
            self.drop(descriptor, client)

    def drop(self, descriptor: int, client: JsonChannel) -> None:
        """Drop a client that is gone, and give up the rebuild that it was waiting for."""
        self.desk.on_gone(client)
        self.reactor.unwatch(descriptor)
        del self.connected[descriptor]
        client.close()

    def flush(self) -> None:
        """Send data that a receiver did not accept at once."""
        self.channel.flush()
        self.reactor.want_room(self.channel.fileno(), bool(self.channel.unsent))
        for descriptor, client in list(self.connected.items()):
            client.flush()
            if client.closed:
                self.drop(descriptor, client)
            else:
                self.reactor.want_room(descriptor, bool(client.unsent))

    def close(self) -> None:
        """Send what can be sent, and stop listening."""
        self.flush()
        for client in self.connected.values():
            client.close()
        if self.control is not None:
            self.control.close()
