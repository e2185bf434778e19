"""FakeMaster: both ports of a master, scripted by a test.

remoting port   answers 26 and 28 from attributes, what has a body with that, and everything else with "not supported"
HA port         a thread per connection reads the first report and gives the socket to `serve`
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from reput.remoting.remoting_command import RemotingCommand, decode_frame, encode_frame

__all__ = ["FakeMaster", "frame"]


def frame(offset: int, body: bytes = b"") -> bytes:
    """Return one frame of the HA port."""
    return struct.pack(">qi", offset, len(body)) + body


class FakeMaster:
    """A master of a log that is a bytes object.

    Attributes:
        log: the log; `offset_min` is where it begins.
        serve: called with each HA connection and its first report; by default it sends the log and stays.
        codes: of all requests.
        asked: the first report of each connection.
        reports: all that came after.
    """

    def __init__(self, log: bytes = b"", segment_size: int = 4096) -> None:
        self.log = log
        self.offset_min = 0
        self.segment_size = segment_size
        self.properties: dict[str, object] = {"brokerName": "broker-a", "brokerClusterName": "C", "brokerId": 0}
        self.bodies: dict[int, bytes] = {}
        self.serve: Callable[[socket.socket, int], None] = self.send_log
        self.codes: list[int] = []
        self.asked: list[int] = []
        self.reports: list[int] = []
        self.ended = threading.Event()
        self.sockets: list[socket.socket] = []
        self.remoting, self.ha = self.listen()
        for listener, handle in ((self.remoting, self.answer), (self.ha, self.serve_ha)):
            threading.Thread(target=self.accept, args=(listener, handle), daemon=True).start()

    def listen(self) -> tuple[socket.socket, socket.socket]:
        """Return listeners on two ports that follow each other."""
        while True:
            remoting = socket.create_server(("127.0.0.1", 0))
            try:
                return remoting, socket.create_server(("127.0.0.1", remoting.getsockname()[1] + 1))
            except (OSError, OverflowError):
                remoting.close()

    @property
    def address(self) -> str:
        """The address that followers are given."""
        return f"127.0.0.1:{self.ha.getsockname()[1]}"

    def __enter__(self) -> FakeMaster:
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        for opened in (self.remoting, self.ha, *self.sockets):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def end_connections(self) -> None:
        """End all connections; others may come."""
        for opened in list(self.sockets):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def accept(self, listener: socket.socket, handle: Callable[[socket.socket], None]) -> None:
        """Handle each connection in a thread."""
        while not self.ended.is_set():
            try:
                accepted = listener.accept()[0]
            except OSError:
                return
            self.sockets.append(accepted)
            threading.Thread(target=self.guarded, args=(accepted, handle), daemon=True).start()

    def guarded(self, accepted: socket.socket, handle: Callable[[socket.socket], None]) -> None:
        """Handle one connection, and close it."""
        with contextlib.suppress(OSError, struct.error):
            handle(accepted)
        accepted.close()

    # The remoting port.

    def answer(self, accepted: socket.socket) -> None:
        """Answer the requests of one connection."""
        stream = accepted.makefile("rb")
        while len(size := stream.read(4)) == 4:
            request = decode_frame(stream.read(int.from_bytes(size, "big")))
            accepted.sendall(b"".join(encode_frame(self.answer_to(request).response_to(request))))

    def answer_to(self, request: RemotingCommand) -> RemotingCommand:
        """Return the answer to one request."""
        self.codes.append(request.code)
        if request.code in self.bodies:
            return RemotingCommand(0, body=self.bodies[request.code])
        if request.code == 26:
            properties = {"mappedFileSizeCommitLog": self.segment_size, **self.properties}
            return RemotingCommand(0, body="".join(f"{name}={value}\n" for name, value in properties.items()).encode())
        if request.code == 28:
            table = {"commitLogMinOffset": str(self.offset_min), "commitLogMaxOffset": str(self.end)}
            return RemotingCommand(0, body=msgspec.json.encode({"table": table}))
        return RemotingCommand(3, remark="not supported")

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.offset_min + len(self.log)

    # The HA port.

    def serve_ha(self, accepted: socket.socket) -> None:
        """Read the first report, and let `serve` do the rest."""
        (asked,) = struct.unpack(">q", self.read(accepted, 8))
        self.asked.append(asked)
        self.serve(accepted, asked)

    def read(self, accepted: socket.socket, size: int) -> bytes:
        """Return exactly *size* bytes.

        Raises:
            OSError: the follower has gone.
        """
        data = b""
        while len(data) < size:
            piece = accepted.recv(size - len(data))
            if not piece:
                raise OSError("the follower has gone")
            data += piece
        return data

    def send_log(self, accepted: socket.socket, asked: int) -> None:
        """Send the log from *asked* on, and take reports until the follower goes."""
        self.send_from(accepted, asked)
        self.take_reports(accepted)

    def send_from(self, accepted: socket.socket, at: int, until: int | None = None, size_max: int = 1 << 15) -> int:
        """Send the log from *at* on, in frames that segments end; return where that ended."""
        end = self.end if until is None else until
        while at < end:
            size = min(self.segment_size - at % self.segment_size, end - at, size_max)
            accepted.sendall(frame(at, self.log[at - self.offset_min : at - self.offset_min + size]))
            at += size
        return at

    def take_reports(self, accepted: socket.socket, on_report: Callable[[int], Any] | None = None) -> None:
        """Take reports until the follower goes."""
        while True:
            (report,) = struct.unpack(">q", self.read(accepted, 8))
            self.reports.append(report)
            if on_report is not None:
                on_report(report)
