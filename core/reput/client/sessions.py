"""Sessions: one per event loop that uses a client, and one in a thread for its blocking methods."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import NamedTuple

from reput.access.credentials import NO_CREDENTIALS, Credentials
from reput.client.background_loop import BackgroundLoop
from reput.client.sender import Sender
from reput.client.session import Session, new_client_id, own_address
from reput.client.target import Target, parse_target
from reput.errors import StoreClosed
from reput.store.record.record import encode_host

__all__ = ["Background", "Here", "Sessions"]


class Here(NamedTuple):
    """The connections of a client in one event loop."""

    loop: asyncio.AbstractEventLoop
    session: Session
    sender: Sender


class Background(NamedTuple):
    """The thread and the connections behind the blocking methods of a client."""

    thread: BackgroundLoop
    session: Session
    sender: Sender


class Sessions:
    """Any thread and any task may call.

    Attributes:
        born_host: the host that messages carry as their origin, in its stored form.
    """

    def __init__(
        self, target: str | os.PathLike[str], timeout: float, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        parse_target(target)
        self.target = target
        self.credentials = credentials
        self.timeout = timeout
        self.born_host = encode_host(own_address(), 0)
        self.lock = threading.Lock()
        self.by_loop: dict[asyncio.AbstractEventLoop, Here] = {}
        self.last: Here | None = None
        self.of_thread: Background | None = None
        self.closed = False
        open_sessions.add(self)

    def new_target(self) -> Target:
        """Return the target for one more session."""
        found = parse_target(self.target)
        found.tls, found.sign = self.credentials.tls, self.credentials.sign
        return found

    def here(self) -> Here:
        """Return the connections of the running loop.

        Raises:
            StoreClosed: the client was closed.
        """
        loop = asyncio.get_running_loop()
        last = self.last
        if last is not None and last.loop is loop and not last.session.closed:
            return last
        self.require_open()
        found = self.by_loop.get(loop)
        if found is None or found.session.closed:
            with self.lock:
                for ended in [ended for ended in self.by_loop if ended.is_closed()]:
                    del self.by_loop[ended]
                session = Session(self.new_target(), new_client_id())
                found = self.by_loop[loop] = Here(loop, session, Sender(session, self.timeout))
        self.last = found
        return found

    def background(self) -> Background:
        """Return the thread and the connections of blocking methods.

        Raises:
            StoreClosed: the client was closed.
        """
        found = self.of_thread
        if found is not None:
            return found
        self.require_open()
        with self.lock:
            if self.of_thread is None:
                thread = BackgroundLoop()
                session, sender = thread.run(self.new_session())
                self.of_thread = Background(thread, session, sender)
            return self.of_thread

    async def new_session(self) -> tuple[Session, Sender]:
        """Return session and sender for one loop."""
        session = Session(self.new_target(), new_client_id())
        return session, Sender(session, self.timeout)

    def require_open(self) -> None:
        """Refuse calls after closing.

        Raises:
            StoreClosed: the client was closed.
        """
        if self.closed:
            raise StoreClosed("the client is closed", "Connect again.")

    def end(self) -> tuple[list[Here], Background | None]:
        """Refuse further calls; return the connections to close."""
        with self.lock:
            self.closed = True
            ended = [here for here in self.by_loop.values() if not here.loop.is_closed()], self.of_thread
            self.by_loop, self.last, self.of_thread = {}, None, None
            return ended

    def forget(self) -> None:
        """Begin without connections in a forked child: connections and thread belong to the parent."""
        self.lock = threading.Lock()
        self.by_loop = {}
        self.last = None
        self.of_thread = None


open_sessions: weakref.WeakSet[Sessions] = weakref.WeakSet()


def forget_all() -> None:
    """Reset the sessions in a forked child."""
    for sessions in open_sessions:
        sessions.forget()


os.register_at_fork(after_in_child=forget_all)
