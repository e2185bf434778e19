"""Meddler: a man in the middle between a master and its followers, who changes what he passes on."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

__all__ = ["FAULTS", "Meddler"]

FAULTS = ("flip", "drop", "double", "swap", "delay", "cut")
PIECE_SIZE = 1 << 15
# How long he waits for a second piece, to exchange it with the first one; and his delay.
PAUSE_S = 0.02
# Of both ways. A deluded peer must not wait for bytes that never come.
SILENCE_MAX_S = 2.0


class Meddler:
    """Listens on a port of his own, and passes connections on to *target*.

    Attributes:
        faults: those that he may commit from now on; at first he passes everything on.
        committed: how often he committed each.
    """

    def __init__(self, target: tuple[str, int], seed: int, share: float = 0.1) -> None:
        """*share*: of the pieces that he meddles with."""
        self.target = target
        self.random = random.Random(seed)
        self.share = share
        self.faults: tuple[str, ...] = ()
        self.committed = dict.fromkeys(FAULTS, 0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Where followers connect."""
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self) -> Meddler:
        return self

    def __exit__(self, *error: object) -> None:
        for opened in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def accept(self) -> None:
        """Pass each connection on, a thread each way."""
        while True:
            try:
                follower = self.listener.accept()[0]
                master = socket.create_connection(self.target)
            except OSError:
                return
            self.sockets += (follower, master)
            for source, target in ((follower, master), (master, follower)):
                threading.Thread(target=self.pass_on, args=(source, target), daemon=True).start()

    def pass_on(self, source: socket.socket, target: socket.socket) -> None:
        """Pass bytes on until one side ends."""
        with contextlib.suppress(OSError):
            source.settimeout(SILENCE_MAX_S)
            while piece := source.recv(PIECE_SIZE):
                for part in self.changed(piece, source):
                    target.sendall(part)
        for opened in (source, target):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def changed(self, piece: bytes, source: socket.socket) -> list[bytes]:
        """Return what becomes of *piece*.

        Raises:
            OSError: the connection is cut.
        """
        if not self.faults or self.random.random() > self.share:
            return [piece]
        fault = self.random.choice(self.faults)
        self.committed[fault] += 1
        at = self.random.randrange(len(piece))
        end = min(at + self.random.choice([1, 8, 12, 100, PIECE_SIZE]), len(piece))
        match fault:
            case "flip":
                return [piece[:at], bytes([piece[at] ^ 1 << self.random.randrange(8)]), piece[at + 1 :]]
            case "drop":
                return [piece[:at], piece[end:]]
            case "double":
                return [piece[:end], piece[at:]]
            case "swap":
                return [piece[at:end], piece[:at], piece[end:]]
            case "delay":
                time.sleep(PAUSE_S)
                return [piece]
        source.shutdown(socket.SHUT_RDWR)
        return [piece[:at]]
