"""JsonChannel: a stream socket that carries JSON lines and file descriptors. One thread per end.

Neither end blocks on the other: unsent data is buffered, up to a bound, until the socket accepts it.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence

import msgspec

__all__ = ["JsonChannel"]

RECEIVE_SIZE = 1 << 16
# A peer with so much unread counts as gone.
UNSENT_SIZE_MAX = 4 << 20
LINE_SIZE_MAX = 4 << 20
# Of the kernel, for one message: SCM_MAX_FD.
DESCRIPTORS_MAX = 253


class JsonChannel:
    """One end of *connection*, which becomes non-blocking and this object's to close.

    Attributes:
        closed: the other end is gone, or does not keep to the protocol.
        descriptors: those that arrived with the lines; the receiver takes them.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.unsent = b""
        self.received = b""
        self.closed = False
        self.descriptors: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self.connection.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Send one line, now or when the socket accepts it."""
        self.unsent += msgspec.json.encode(message, enc_hook=os.fspath) + b"\n"
        self.flush()

    def send_descriptors(self, message: msgspec.Struct, descriptors: Sequence[int]) -> None:
        """Send one line together with *descriptors*; nothing else may be unsent."""
        assert not self.unsent
        line = msgspec.json.encode(message, enc_hook=os.fspath) + b"\n"
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            sent = self.connection.sendmsg([line], [rights], socket.MSG_NOSIGNAL)
        except OSError:
            # The other end is gone, or its unread data fills the socket.
            self.closed = True
            return
        self.unsent = line[sent:]

    def flush(self) -> None:
        """Send as much as the socket accepts."""
        while self.unsent and not self.closed:
            try:
                sent = self.connection.send(self.unsent, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except OSError:
                self.closed = True
                break
            self.unsent = self.unsent[sent:]
        if len(self.unsent) > UNSENT_SIZE_MAX:
            self.closed = True

    def receive(self) -> list[bytes]:
        """Return the complete lines received so far; sets `closed` at end of file."""
        try:
            data, rights, _, _ = self.connection.recvmsg(
                RECEIVE_SIZE, socket.CMSG_SPACE(DESCRIPTORS_MAX * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return []
        except OSError:
            data, rights = b"", []
        for level, kind, content in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self.descriptors += numbers
        if not data:
            self.closed = True
            return []
        *lines, self.received = (self.received + data).split(b"\n")
        if len(self.received) > LINE_SIZE_MAX:
            self.closed = True
        return lines

    def close(self) -> None:
        """Close the socket and all descriptors that were received and not taken."""
        self.closed = True
        self.connection.close()
        while self.descriptors:
            os.close(self.descriptors.pop())
