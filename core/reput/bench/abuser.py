"""A client that breaks the protocol, in a process of its own: ``python -m reput.bench.abuser HOST:PORT``.

The program that measures writes a byte to its stdin for each state, and closes it at the end.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys

from reput.remoting.remoting_command import RemotingCommand, encode_frame
from reput.remoting.request_code import RequestCode

__all__ = ["ACTIVE", "PAUSED", "connected"]

ACTIVE, PAUSED = b"+", b"-"
CONNECT_TIMEOUT_S = 60.0
# How long the broker may take nothing of what is sent.
SEND_TIMEOUT_S = 1.0
# Between two connections.
PAUSE_S = 0.01
OPEN_MAX = 64
UNREAD_REQUESTS = 64
GARBAGE = bytes(range(256))
# Announces a mebibyte, and brings a part of it.
HALF_FRAME = struct.pack(">i", 1 << 20) + bytes(64 << 10)
IMPOSSIBLE_FRAME = struct.pack(">i", 2**31 - 1)


def connected(broker: str) -> socket.socket:
    """Return a connection to *broker*, ``host:port``."""
    host, _, port = broker.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S)


def abuse(broker: str) -> None:
    """Open a hundred connections a second while active, each with another offence; leave the last ones open."""
    unknown = b"".join(encode_frame(RemotingCommand(-1)))
    unread = b"".join(encode_frame(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))) * UNREAD_REQUESTS
    kinds = (GARBAGE, IMPOSSIBLE_FRAME, HALF_FRAME, unknown, unread)
    left_open: list[socket.socket] = []
    is_active = False
    number = 0
    while True:
        if select.select([0], [], [], PAUSE_S if is_active else None)[0]:
            state = os.read(0, 1)
            if not state:
                return
            is_active = state == ACTIVE
            continue
        # The broker may end such a connection while it still sends.
        with contextlib.suppress(OSError):
            connection = connected(broker)
            connection.settimeout(SEND_TIMEOUT_S)
            left_open.append(connection)
            connection.sendall(kinds[number % len(kinds)])
        number += 1
        if len(left_open) > OPEN_MAX:
            left_open.pop(0).close()


if __name__ == "__main__":
    abuse(sys.argv[1])
