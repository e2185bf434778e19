"""The process at the other end of a Unix socket, as the kernel reports it.

Names in Linux's abstract namespace have no permissions: any user can connect to a name, and can take a free one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct

__all__ = ["ROOT", "is_trusted", "peer_uid"]

# pid, uid, gid
CREDENTIALS = struct.Struct("iII")
ROOT = 0


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """Return the user of the process at the other end of a Unix socket; None: it is another kind of socket."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family != socket.AF_UNIX:
        return None
    # A copy of the socket, because the socket objects of other event loops than asyncio's do not report credentials.
    with socket.socket(fileno=os.dup(connected.fileno())) as copy:
        data = copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    uid: int = CREDENTIALS.unpack(data)[1]
    return uid


def is_trusted(uid: int) -> bool:
    """Return whether a user has the rights of this process: the same user, or root."""
    return uid in (ROOT, os.geteuid())
