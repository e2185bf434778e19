"""The control socket of a store's process group: access rules and client requests.

A Unix socket in the abstract namespace; the store records its name (`GroupPlace`). The kernel reports the user of each
end. The group answers its own user and root. A client trusts a group of its own user; root also trusts the user that
wrote the store's record.

Each `Request` and each `Reply` is a line of JSON (`control_messages.py`). The reply to "observe" carries the read-only
descriptors of the ring and the cells.

If a group runs but does not answer, requests raise `GroupUnreachable`; if none runs, they raise `DispatcherError`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reput.errors import DispatcherError, GroupUnreachable
from reput.process.control.channel import JsonChannel
from reput.process.control.control_messages import MemberInfo, Reply, Request, Verb
from reput.process.control.group_status import GroupStatus
from reput.process.group.group_place import (
    new_socket_name,
    place_path,
    read_place,
    remove_place,
    why_silent,
    write_place,
)
from reput.ring import RingMemory

__all__ = [
    "ControlSocket",
    "Observed",
    "await_reply",
    "connect_observer",
    "group_status",
    "owner_statistics",
    "request",
]

PEER_CREDENTIALS = struct.Struct("iII")
TIMEOUT_S = 10.0
OWNER_TIMEOUT_S = 3.0
# How long a client tries to connect if a group may be running: a dead supervisor is replaced within this time.
CONNECT_TIMEOUT_S = 1.0
CONNECT_LOOK_S = 0.01
# How long a client waits for an answer before it checks whether the supervisor is stopped.
SILENCE_LOOK_S = 0.5
BACKLOG = 64
# Process states in /proc: stopped by a signal, stopped by a debugger.
STOPPED_STATES = frozenset({"T", "t"})
STOPPED_ADVICE = "Continue it with SIGCONT, and ask again."
SILENCE_ADVICE = "Check whether its supervisor is stopped or the machine is overloaded, and ask again."


class ControlSocket:
    """The listening end, in the supervisor."""

    def __init__(self, store_directory: Path) -> None:
        """Listen, and record the socket's name in the store. The caller holds the group's lock.

        Raises:
            OSError: the socket cannot be created, or its name cannot be recorded.
        """
        self.store_directory = store_directory
        self.socket = new_socket()
        try:
            name = new_socket_name()
            self.socket.bind(abstract_address(name))
            self.socket.listen(BACKLOG)
            write_place(store_directory, name)
        except BaseException:
            self.socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self.socket.fileno()

    def accept(self) -> JsonChannel | None:
        """Return a new client, or None if it belongs to another user or has disconnected."""
        try:
            connection, _ = self.socket.accept()
        except OSError:
            return None
        _, uid = peer(connection)
        if uid not in (os.geteuid(), 0):
            connection.close()
            return None
        return JsonChannel(connection)

    def close(self) -> None:
        """Stop listening."""
        remove_place(self.store_directory)
        self.socket.close()


def new_socket() -> socket.socket:
    """Return a non-blocking socket that child processes do not inherit."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)


def abstract_address(name: str) -> bytes:
    """Return the address of a name in the abstract namespace."""
    return b"\0" + name.encode()


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other end, as the kernel recorded them."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    pid, uid, _ = PEER_CREDENTIALS.unpack(credentials)
    return pid, uid


class Observed(msgspec.Struct):
    """A second process's view of a live group: the ring's numbers, and the slot of each member."""

    memory: RingMemory
    members: dict[str, MemberInfo]

    def progress(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view of *name* is readable; None: not known, or not enabled."""
        member = self.members.get(name)
        return None if member is None else self.memory.view(member.slot).progress

    def generation(self, name: str) -> int:
        """Return the generation of the view of *name*; 0: it is not enabled."""
        member = self.members.get(name)
        return 0 if member is None else self.memory.view(member.slot).generation


def connect(store_directory: Path) -> JsonChannel:
    """Return a connection to the group of a store.

    Raises:
        GroupUnreachable: a group runs, or may run, and cannot be asked.
        DispatcherError: no group runs.
    """
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    pause = threading.Event()
    while True:
        place, reason = None, None
        try:
            place = read_place(store_directory)
        except PermissionError as error:
            reason = f"this user may not read where it listens: error={error.strerror}"
        if place is not None:
            connection = new_socket()
            try:
                connection.connect(abstract_address(place.socket))
                refuse_strangers(store_directory, connection)
                return JsonChannel(connection)
            except BlockingIOError:
                reason = f"so many wait for its answer that there is no more room: supervisor_pid={place.pid}"
            except OSError:
                pass
            connection.close()
        silence = why_silent(store_directory)
        if silence is None:
            raise DispatcherError(
                f"no process group runs for this store: store={store_directory}",
                "Open the store for writing; its group starts with it.",
            )
        if place is None or time.monotonic() > deadline:
            raise unreachable(store_directory, reason or silence)
        pause.wait(CONNECT_LOOK_S)


def refuse_strangers(store_directory: Path, connection: socket.socket) -> None:
    """Refuse a group that would not answer this user, and a listener that is not the store's.

    Raises:
        GroupUnreachable: it belongs to another user, one that this process may not ask or should not trust.
    """
    pid, uid = peer(connection)
    own = os.geteuid()
    believed = {own} if own else {0, place_path(store_directory).stat().st_uid}
    if uid not in believed:
        connection.close()
        raise unreachable(store_directory, f"it belongs to another user: supervisor_pid={pid} uid={uid} own_uid={own}")


def unreachable(store_directory: Path, reason: str, advice: str = "") -> GroupUnreachable:
    """Return the error for a group that cannot be asked, with the reason."""
    text = f"the store's process group cannot be asked: store={store_directory} reason={reason}"
    return GroupUnreachable(text, advice)


def exchange(store_directory: Path, asked: Request, timeout: float) -> tuple[Reply, list[int]]:
    """Send *asked* to the group of a store; return the reply and the descriptors sent with it.

    Raises:
        GroupUnreachable: a group runs, or may run, and does not answer within *timeout* seconds, or its supervisor is
            stopped.
        DispatcherError: no group runs.
    """
    channel = connect(store_directory)
    try:
        channel.send(asked)
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        deadline = time.monotonic() + timeout
        while not channel.closed:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise unreachable(store_directory, f"it does not answer in time: timeout={timeout:g}", SILENCE_ADVICE)
            if not poll.poll(min(remaining, SILENCE_LOOK_S) * 1000):
                refuse_stopped(store_directory, channel)
                continue
            for line in channel.receive():
                descriptors, channel.descriptors = channel.descriptors, []
                return msgspec.json.decode(line, type=Reply), descriptors
        raise unreachable(store_directory, "it ended the connection without an answer", SILENCE_ADVICE)
    finally:
        channel.close()


def refuse_stopped(store_directory: Path, channel: JsonChannel) -> None:
    """Refuse to wait for a stopped supervisor, which cannot answer until it is continued.

    Raises:
        GroupUnreachable: a signal or a debugger has stopped it.
    """
    pid, _ = peer(channel.connection)
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        # It has ended, or is not visible from this container.
        return
    if state in STOPPED_STATES:
        raise unreachable(store_directory, f"its supervisor is stopped: supervisor_pid={pid}", STOPPED_ADVICE)


def request(store_directory: Path, verb: Verb, name: str = "", timeout: float = TIMEOUT_S) -> msgspec.Raw:
    """Send a request to the group of a store, and return its answer as JSON.

    Raises:
        ConfigError: the name or the options of a dispatcher are wrong.
        GroupUnreachable: a group runs and cannot be asked.
        DispatcherError: no group runs, or it cannot do that now.
    """
    reply, _ = exchange(store_directory, Request(verb, name), timeout)
    return reply.check()


def await_reply(store_directory: Path, asked: Request, on_wait: Callable[[], None], interval: float) -> msgspec.Raw:
    """Send the group of a store a request that may take long, and return its answer as JSON.

    If the client disconnects before the answer, the group gives up a rebuild that it asked for.

    Args:
        on_wait: called every *interval* seconds until the answer arrives.

    Raises:
        ConfigError: the name or the options of a dispatcher are wrong.
        DispatcherError: no group runs, it cannot do that, or its supervisor ended meanwhile.
    """
    channel = connect(store_directory)
    try:
        channel.send(asked)
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        while not channel.closed:
            if not poll.poll(interval * 1000):
                on_wait()
                continue
            for line in channel.receive():
                return msgspec.json.decode(line, type=Reply).check()
    finally:
        channel.close()
    raise DispatcherError(
        f"the supervisor ended before it was done: store={store_directory} request={asked.verb}",
        "The next supervisor removes or completes its unfinished work. See `reput status`.",
    )


def group_status(store_directory: Path, timeout: float = TIMEOUT_S) -> GroupStatus | None:
    """Return the status of the store's group, or None if none runs.

    Raises:
        GroupUnreachable: a group runs and cannot be asked.
    """
    try:
        answer = request(store_directory, "status", timeout=timeout)
    except GroupUnreachable:
        raise
    except DispatcherError:
        return None
    return msgspec.json.decode(answer, type=GroupStatus)


def owner_statistics(store_directory: Path, timeout: float = OWNER_TIMEOUT_S) -> msgspec.Raw | None:
    """Return the owner's statistics of what was put and consumed, as JSON.

    None: no group runs, or its owner does not answer. A stopped owner must not keep the group from being shown.
    """
    try:
        return request(store_directory, "statistics", timeout=timeout)
    except DispatcherError:
        return None


def connect_observer(store_directory: Path, timeout: float = TIMEOUT_S) -> Observed | None:
    """Return a second process's view of the store's group, or None if no group runs or it cannot be asked.

    Raises:
        RingError: the ring has another layout, or this processor is not covered.
    """
    try:
        reply, descriptors = exchange(store_directory, Request("observe"), timeout)
        members = msgspec.json.decode(reply.check(), type=list[MemberInfo])
    except DispatcherError:
        return None
    return Observed(RingMemory.from_descriptors(descriptors), {member.entry.name: member for member in members})
