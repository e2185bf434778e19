"""For tests of fail-over: etcd, and nodes that it makes masters: `reput serve --lease`, each with its keeper."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
import pytest

from certificates import Certificate
from command_line import REPUT
from delivering import LIMIT_S, wait_until
from interop.clients.brokers import SETTINGS, Launched, free_port, is_free
from replication.copies import SEGMENT
from reput.errors import BrokerError
from reput.lease.agreement import Agreed
from reput.lease.etcd_agreement import open_agreement
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode
from reput.store.state.lease_mark import read_lease_mark
from serving import RawClient

__all__ = ["LEASE_MS", "Etcd", "LeaseNode", "Line", "Producer", "WallClock", "needs_etcd", "needs_faketime"]

LEASE_MS = 2000
SIZES = ("mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
needs_faketime = pytest.mark.skipif(not FAKETIME, reason="faketime is not installed: Debian's package is faketime")
needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None, reason="etcd is not installed: Debian's package is etcd-server"
)


class Etcd:
    """One etcd on free ports, with the data in *directory*. With *certificate*, it encrypts, and *asks* for one."""

    def __init__(self, directory: Path, certificate: Certificate | None = None, *, asks: bool = False) -> None:
        self.directory = directory
        self.asks = asks
        self.certificate = certificate
        self.scheme = "etcd" if certificate is None else "etcds"
        self.port, self.peer_port = free_port(), free_port()
        self.launch()

    @property
    def url(self) -> str:
        """What `--lease` takes."""
        return f"{self.scheme}://127.0.0.1:{self.port}/orders"

    def launch(self) -> None:
        """Start it, and wait until it answers."""
        client = f"http{'' if self.certificate is None else 's'}://127.0.0.1:{self.port}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        options: dict[str, object] = {
            "data-dir": self.directory,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            # A lease is at least one and a half elections long.
            "heartbeat-interval": 50,
            "election-timeout": 500,
        }
        if self.certificate is not None:
            options |= {"cert-file": self.certificate.cert, "key-file": self.certificate.key}
        if self.certificate is not None and self.asks:
            options |= {"trusted-ca-file": self.certificate.cert, "client-cert-auth": "true"}
        command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
        self.launched = Launched(command, self.directory.with_suffix(".log"))

        if self.asks:
            # Whoever has no certificate yet is answered nothing.
            self.launched.wait_for(lambda: not is_free(self.port), "etcd")
            return

        def answers() -> bool:
            try:
                self.read()
            except BrokerError:
                return False
            return True

        self.launched.wait_for(answers, "etcd")

    def read(self) -> Agreed:
        """Return what is agreed on.

        Raises:
            BrokerError: it does not answer.
        """
        return open_agreement(self.url, LEASE_MS / 1000).read()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.launched.process.send_signal(number)


class Line:
    """The way from one node to etcd, which a test cuts: connections hang, as behind a broken switch, and none fails."""

    def __init__(self, etcd: Etcd) -> None:
        self.etcd = etcd
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"etcd://127.0.0.1:{self.listener.getsockname()[1]}/orders"
        self.whole = threading.Event()
        self.whole.set()
        self.threads: list[threading.Thread] = []
        self.start(self.accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.whole.set()
        for thread in self.threads:
            thread.join(LIMIT_S)

    def start(self, target: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
        """Run *target* in a thread."""
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def accept(self) -> None:
        """Take connections until the end."""
        with self.listener, suppress(OSError):
            while True:
                self.start(self.connect, self.listener.accept()[0])

    def connect(self, ours: socket.socket) -> None:
        """Connect one connection to etcd."""
        with ours, suppress(OSError), socket.create_connection(("127.0.0.1", self.etcd.port)) as theirs:
            back = self.start(self.carry, theirs, ours)
            self.carry(ours, theirs)
            back.join()

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        """Carry bytes one way, while the line is whole."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.whole.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class WallClock:
    """The clock of some nodes that tells them the date, which a test moves. Their other clocks go on."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.move(0)
        self.environment = {
            **os.environ,
            "LD_PRELOAD": str(next(iter(FAKETIME), "")),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            # Seconds after which the file is read again.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Otherwise timed waits for a condition, also the interpreter's own, end at once.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def move(self, hours: int) -> None:
        """Let it tell a date that is so far from the true one, forwards or, below 0, backwards."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(f"{hours * 3600:+d}\n")
        draft.replace(self.file)


class LeaseNode:
    """`reput serve --lease` on a store of small segments, always at the same address."""

    def __init__(
        self,
        etcd: Etcd,
        directory: Path,
        *options: str,
        name_server: str = "none",
        line: Line | None = None,
        clock: WallClock | None = None,
        **settings: object,
    ) -> None:
        self.environment = None if clock is None else clock.environment
        self.etcd = etcd
        self.directory = directory
        self.log = directory.with_name(f"{directory.name}.log")
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        given = {
            **{name: SETTINGS[name] for name in SIZES},
            "mappedFileSizeCommitLog": SEGMENT,
            "lease_time": LEASE_MS,
            **settings,
        }
        self.command = [
            *(str(REPUT), "serve", str(directory), "--listen", self.address, "--name-server", name_server),
            *("--lease", etcd.url if line is None else line.url, *options),
            *(f"--set={name}={value}" for name, value in given.items()),
        ]
        self.launch()

    def launch(self) -> None:
        """Start it, and wait until clients can connect."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        self.launched = Launched(self.command, self.log, self.environment)
        self.launched.wait_for(lambda: "ready " in self.log.read_text()[begin:], "reput serve --lease")

    def member(self) -> str:
        """Return what the node is called in etcd."""
        mark = read_lease_mark(self.directory)
        assert mark is not None
        return mark.member

    def is_master(self) -> bool:
        """Tell whether this node holds the lease."""
        return self.etcd.read().holder == self.member()

    def is_in_sync(self) -> bool:
        """Tell whether this node may become the master."""
        state = self.etcd.read().state
        return state is not None and self.member() in state.in_sync

    def processes(self) -> list[psutil.Process]:
        """Return the keeper, and all processes below it, which have sessions of their own."""
        keeper = psutil.Process(self.launched.process.pid)
        return [keeper, *keeper.children(recursive=True)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the node: to the keeper first, so that it starts no other meanwhile."""
        self.launched.process.send_signal(number)
        for process in self.processes()[1:]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """End all with SIGKILL, the keeper last: it is stopped, as it would start the broker again."""
        self.launched.process.send_signal(signal.SIGSTOP)
        below = self.processes()[1:]
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.launched.kill()
        psutil.wait_procs(below)

    def stop(self) -> None:
        """End it as an operator does."""
        self.launched.stop()
        assert self.launched.process.returncode == 0, self.launched.tail()


class Producer:
    """Sends numbers, one after the other, to whichever of some nodes takes them, and notes what was acknowledged."""

    def __init__(self, *nodes: LeaseNode) -> None:
        self.nodes = list(nodes)
        self.number = 0
        self.acknowledged: list[int] = []
        self.client: RawClient | None = None

    def send(self) -> int | None:
        """Send the next number once, and return the answer's code; None: there is no answer, so nobody knows."""
        self.number += 1
        try:
            if self.client is None:
                self.client = RawClient(("127.0.0.1", self.nodes[0].port))
                self.client.socket.settimeout(5.0)
            answer: RemotingCommand = self.client.send_message("orders", b"%d" % self.number)
        except (OSError, EOFError):
            self.go_elsewhere()
            return None
        if answer.code == ResponseCode.SUCCESS:
            self.acknowledged.append(self.number)
        elif answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self.go_elsewhere()
        return int(answer.code)

    def send_until_acknowledged(self, count: int = 1) -> None:
        """Send until *count* more numbers are acknowledged."""
        wanted = len(self.acknowledged) + count

        def reached() -> bool:
            self.send()
            return len(self.acknowledged) >= wanted

        wait_until(reached)

    def close(self) -> None:
        """End the connection."""
        if self.client is not None:
            self.client.close()
        self.client = None

    def go_elsewhere(self) -> None:
        """Take the next node from now on."""
        self.close()
        self.nodes = [*self.nodes[1:], self.nodes[0]]
