"""What the console shows: a store's directory, or the brokers of an address."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from reput.client.administration import ClusterAdministration, ConsumerConnection
from reput.client.client import Client, connect
from reput.consume.administration.administration import Administration
from reput.embedded.read_administration import ReadAdministration
from reput.embedded.read_only_engine import ReadOnlyEngine
from reput.embedded.read_only_store import ReadOnlyStore
from reput.errors import ReputError
from reput.settings import LoadedSettings
from reput.store.state.broker_place import read_broker_place
from reput.watched.overview import BrokersSource, Overview, StoreSource

__all__ = ["AnyAdministration", "ConsoleBrokers", "ConsoleStore", "ConsoleTarget", "Messages"]

AnyAdministration: TypeAlias = Administration | ClusterAdministration
Messages: TypeAlias = ReadOnlyStore | Client

# A person waits for the page.
BROKER_TIMEOUT_S = 3.0


class ConsoleTarget(Protocol):
    """Any thread may call; each call is one look."""

    title: str

    def read(self) -> Overview:
        """Return one reading."""

    def administration(self) -> AbstractContextManager[AnyAdministration]:
        """Yield topics and groups, for reading."""

    def messages(self) -> AbstractContextManager[Messages]:
        """Yield what messages are read from."""

    def broker(self) -> Client | None:
        """Return a client of the brokers; None: none serves this."""

    def consumers(self, group: str) -> list[ConsumerConnection] | None:
        """Return the connected consumers of *group*; None: no broker can be asked."""


class ConsoleBrokers:
    """The brokers of a name server, or the one behind a socket."""

    def __init__(self, title: str, client: Client) -> None:
        self.title = title
        self.client = client
        self.source = BrokersSource(title, client)

    def read(self) -> Overview:
        """Return one reading."""
        return self.source.read()

    @contextmanager
    def administration(self) -> Iterator[AnyAdministration]:
        """Yield topics and groups of the brokers."""
        yield self.client.administration

    @contextmanager
    def messages(self) -> Iterator[Messages]:
        """Yield the client."""
        yield self.client

    def broker(self) -> Client | None:
        """Return the client."""
        return self.client

    def consumers(self, group: str) -> list[ConsumerConnection] | None:
        """Return the connected consumers of *group*."""
        return self.client.administration.consumer_connections(group)


class ConsoleStore:
    """A store's directory. Files are read; the broker that serves the store, if one does, is asked for consumers."""

    def __init__(self, directory: Path, load: Callable[[], LoadedSettings]) -> None:
        """*load* returns the store's settings."""
        self.title = str(directory)
        self.directory = directory
        self.load = load
        self.source = StoreSource(directory, load)
        self.lock = threading.Lock()
        self.client: Client | None = None

    def read(self) -> Overview:
        """Return one reading."""
        return self.source.read()

    def open(self) -> ReadOnlyEngine:
        """Return the store, opened for reading."""
        return self.source.open()

    @contextmanager
    def administration(self) -> Iterator[AnyAdministration]:
        """Yield topics and groups of the store's files."""
        with self.open() as engine:
            yield ReadAdministration(engine).administration

    @contextmanager
    def messages(self) -> Iterator[Messages]:
        """Yield the store, opened for reading."""
        with ReadOnlyStore(self.open()) as store:
            yield store

    def broker(self) -> Client | None:
        """Return a client of the broker that serves the store; None: none does, or none has."""
        if read_broker_place(self.directory) is None:
            return None
        with self.lock:
            if self.client is None:
                with contextlib.suppress(ReputError):
                    self.client = connect(self.directory, timeout=BROKER_TIMEOUT_S)
            return self.client

    def consumers(self, group: str) -> list[ConsumerConnection] | None:
        """Return the consumers of *group* that are connected to the broker; None: no broker answers."""
        client = self.broker()
        if client is None:
            return None
        try:
            return client.administration.consumer_connections(group)
        except ReputError:
            # A broker has served the store once, and does not now.
            return None

    def close(self) -> None:
        """End the connection to the broker."""
        if self.client is not None:
            self.client.close()
