"""The control socket of a store's process group: where it lies, who may connect, and what clients ask.

A Unix socket named by a hash of the store's real path, in the user's runtime directory (``XDG_RUNTIME_DIR`` if it is
there, else a private folder below the temporary directory), because a store's own path may be longer than a socket's
name can be. Only the owner of the group connects. What killed groups have left there goes at the next start of any.

A request is a line of JSON, `reput.process.messages.Request`, and so is each `Reply`. With the reply to "observe" come
the read-only descriptors of the ring and the cells.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reput.errors import DispatcherError
from reput.process.channel import JsonChannel
from reput.process.messages import GroupStatus, MemberInfo, Reply, Request, Verb
from reput.ring import RingMemory

__all__ = [
    "ControlSocket",
    "Observed",
    "await_reply",
    "connect_observer",
    "control_socket_path",
    "group_status",
    "owner_statistics",
    "request",
]

PEER_CREDENTIALS = struct.Struct("iII")
TIMEOUT_S = 10.0
OWNER_TIMEOUT_S = 3.0


def control_socket_path(store_directory: Path) -> Path:
    """Return where the control socket of a store lies, for this user; its folder exists.

    Raises:
        DispatcherError: the folder cannot be made, belongs to somebody else, or others may enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        folder = Path(runtime) / "reput"
    else:
        from tempfile import gettempdir

        folder = Path(gettempdir()) / f"reput-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise DispatcherError(
            f"the folder of the control socket cannot be made: folder={folder} error={error.strerror}",
            "Set XDG_RUNTIME_DIR to a folder of your own.",
        ) from None
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise DispatcherError(
            f"the folder of the control socket is not private: folder={folder} uid={status.st_uid} "
            f"mode={status.st_mode & 0o7777:o}",
            "Remove it, or set XDG_RUNTIME_DIR.",
        )
    name = hashlib.sha256(os.fsencode(os.path.realpath(store_directory))).hexdigest()[:16]
    return folder / f"{name}.sock"


class ControlSocket:
    """The listening end, in the supervisor."""

    def __init__(self, store_directory: Path) -> None:
        """Listen, in place of whatever a dead group has left; the group's lock says that it is dead."""
        self.path = control_socket_path(store_directory)
        self.socket = new_socket()
        # It has its name once it listens, so that one which refuses to be connected to is known to be stale.
        draft = self.path.with_suffix(".bind")
        draft.unlink(missing_ok=True)
        self.socket.bind(str(draft))
        self.socket.listen(16)
        self.inode = draft.stat().st_ino
        draft.rename(self.path)
        remove_stale_sockets(self.path.parent)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self.socket.fileno()

    def accept(self) -> JsonChannel | None:
        """Return a client that has come, None if it is another user's or has gone again."""
        try:
            connection, _ = self.socket.accept()
        except OSError:
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        _, uid, _ = PEER_CREDENTIALS.unpack(credentials)
        if uid not in (os.getuid(), 0):
            connection.close()
            return None
        return JsonChannel(connection)

    def close(self) -> None:
        """Stop listening, and remove the file unless a new group has replaced it."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self.inode:
                self.path.unlink()


def new_socket() -> socket.socket:
    """Return a socket that neither waits nor is inherited."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)


def refuses(path: Path) -> bool:
    """Tell whether a socket is there to which nobody listens."""
    probe = new_socket()
    try:
        probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        # It is gone, or so many wait for its owner that there is no more room.
        return False
    finally:
        probe.close()
    return False


def remove_stale_sockets(folder: Path) -> None:
    """Remove the control sockets of groups that were killed."""
    for path in folder.glob("*.sock"):
        if refuses(path):
            # A new group may take the name meanwhile, so what is removed is looked at once more, where nobody replaces
            # it: under a name of the same length, since the system takes none of more than 107 bytes.
            aside = path.with_suffix(f".{os.getpid() % 10_000:04}")
            with contextlib.suppress(FileNotFoundError):
                path.rename(aside)
                if refuses(aside):
                    aside.unlink()
                else:
                    aside.rename(path)


class Observed(msgspec.Struct):
    """What a second process sees of a live group: the ring's numbers, and who is in which slot."""

    memory: RingMemory
    members: dict[str, MemberInfo]

    def progress(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view of *name* is readable; None: not known, or not enabled."""
        member = self.members.get(name)
        return None if member is None else self.memory.view(member.slot).progress

    def generation(self, name: str) -> int:
        """Return the number of the view of *name*; 0: it is not enabled."""
        member = self.members.get(name)
        return 0 if member is None else self.memory.view(member.slot).generation


def connect(store_directory: Path) -> JsonChannel:
    """Return a connection to the group of a store.

    Raises:
        DispatcherError: no group runs.
    """
    path = control_socket_path(store_directory)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise DispatcherError(
            f"no process group runs for this store: store={store_directory} socket={path} error={error.strerror}",
            "Open the store for writing; its group starts with it.",
        ) from None
    return JsonChannel(connection)


def exchange(store_directory: Path, wish: Request, timeout: float) -> tuple[Reply, list[int]]:
    """Send *wish* to the group of a store; return the reply, and the descriptors that came with it.

    Raises:
        DispatcherError: no group runs, or it does not answer in *timeout* seconds.
    """
    channel = connect(store_directory)
    try:
        channel.send(wish)
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        deadline = time.monotonic() + timeout
        while not channel.closed:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                break
            for line in channel.receive():
                descriptors, channel.descriptors = channel.descriptors, []
                return msgspec.json.decode(line, type=Reply), descriptors
        raise DispatcherError(f"the process group does not answer: store={store_directory} timeout={timeout}")
    finally:
        channel.close()


def request(store_directory: Path, verb: Verb, name: str = "", timeout: float = TIMEOUT_S) -> msgspec.Raw:
    """Have the group of a store do something, and return its answer as JSON.

    Raises:
        ConfigError: the name or the options of a dispatcher are wrong.
        DispatcherError: no group runs, it does not answer, or cannot do that now.
    """
    reply, _ = exchange(store_directory, Request(verb, name), timeout)
    return reply.check()


def await_reply(store_directory: Path, wish: Request, on_wait: Callable[[], None], interval: float) -> msgspec.Raw:
    """Have the group of a store do something that takes its time, and return its answer as JSON.

    Whoever goes away without waiting for the answer has the group give it up.

    Args:
        on_wait: called every *interval* seconds until the answer is there.

    Raises:
        ConfigError: the name or the options of a dispatcher are wrong.
        DispatcherError: no group runs, it cannot do that, or its supervisor ended meanwhile.
    """
    channel = connect(store_directory)
    try:
        channel.send(wish)
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
        f"the supervisor ended before it was done: store={store_directory} request={wish.verb}",
        "What it had begun is cleared away, or completed, by the next one. See `reput status`.",
    )


def group_status(store_directory: Path, timeout: float = TIMEOUT_S) -> GroupStatus | None:
    """Return the status of the store's group, None if none runs."""
    try:
        answer = request(store_directory, "status", timeout=timeout)
    except DispatcherError:
        return None
    return msgspec.json.decode(answer, type=GroupStatus)


def owner_statistics(store_directory: Path, timeout: float = OWNER_TIMEOUT_S) -> msgspec.Raw | None:
    """Return what the owner of the store's group says was put and consumed, as JSON.

    None: no group runs, or its owner does not answer; it may be stopped, and the group is looked at all the same.
    """
    try:
        return request(store_directory, "statistics", timeout=timeout)
    except DispatcherError:
        return None


def connect_observer(store_directory: Path, timeout: float = TIMEOUT_S) -> Observed | None:
    """Return what a second process may look at of the store's group, None if none runs.

    Raises:
        RingError: the ring has another layout, or this processor is not covered.
    """
    try:
        reply, descriptors = exchange(store_directory, Request("observe"), timeout)
        members = msgspec.json.decode(reply.check(), type=list[MemberInfo])
    except DispatcherError:
        return None
    return Observed(RingMemory.from_descriptors(descriptors), {member.entry.name: member for member in members})
