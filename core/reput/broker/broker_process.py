"""Starts the broker's process, which loads its modules before it learns which store to serve.

    command line ── begins ──▶ the process loads modules ── ServeOptions, sockets ──▶ it serves
                 └─ parses its arguments meanwhile ─────────────┘        ◀── Ready or Failed ──┘

Both directions use one socket. If it closes before the options arrive, the process ends: it has nothing to serve.
This module loads nothing heavy, because the command line begins with it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from reput.process.system.command import role_command

__all__ = ["MAIN", "begin_early", "give", "receive", "start_process"]

MAIN = Path(__file__).with_name("__main__.py")
RECEIVE_SIZE = 1 << 16
LISTENERS_MAX = 16
STANDARD_STREAMS = 3

# A process that was started early, before the options were known.
early: list[tuple[int, socket.socket]] = []


def begin_early() -> None:
    """Start a broker's process for a later `start_process`, unless a standard stream is closed."""
    if all(is_open(descriptor) for descriptor in range(STANDARD_STREAMS)):
        early.append(spawn())


def start_process() -> tuple[int, socket.socket]:
    """Return the id of a broker's process that waits for its options, and the socket to it."""
    return early.pop() if early else spawn()


def spawn() -> tuple[int, socket.socket]:
    """Start the process, in a session of its own: Ctrl-C reaches the keeper, which lets the broker drain.

    SIGHUP is blocked in the process until it can reload its configuration: earlier, the signal would end the process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        theirs.set_inheritable(True)
        command = role_command("broker", str(theirs.fileno()), path=sys.path, main=MAIN)
        return os.posix_spawn(command[0], command, os.environ, setsid=True, setsigmask={signal.SIGHUP}), ours


def is_open(descriptor: int) -> bool:
    """Return whether a descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def give(channel: socket.socket, options: bytes, listeners: Sequence[int]) -> None:
    """Send a process its options, in one line, and its sockets."""
    data = options + b"\n"
    sent = socket.send_fds(channel, [data], list(listeners))
    channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return what `give` has sent; None: the other side has ended without sending anything."""
    data, listeners, _, _ = socket.recv_fds(channel, RECEIVE_SIZE, LISTENERS_MAX, socket.MSG_CMSG_CLOEXEC)
    while not data.endswith(b"\n"):
        more = channel.recv(RECEIVE_SIZE)
        if not more:
            return None
        data += more
    return data, listeners
