"""Brokers on free ports: RocketMQ's own with its name server, and `reput serve`, with the same settings.

settings ──┬─▶ java NamesrvStartup, BrokerStartup ──▶ NAME_SERVER ◀── the same clients
           └─▶ reput serve ─────────────────────────▶ NAME_SERVER ◀──┘
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

from command_line import REPUT
from delivering import wait_until
from interop.java_program import java_command

__all__ = [
    "GET_BROKER_CLUSTER_INFO",
    "SETTINGS",
    "Launched",
    "NameServer",
    "RealBroker",
    "ReputBroker",
    "ask",
    "free_port",
    "is_free",
]

STOP_SECONDS_MAX = 60.0
BROKER_HEAP = "-Xmx256m"
LOGGING = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/server.log</file><encoder><pattern>%d %-5level %logger{20} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""
GET_BROKER_CLUSTER_INFO = 106
# The names and sizes that both brokers have, and the short times.
SETTINGS: dict[str, object] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20000,
    # A first retry has level 3.
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
    # On a machine that is busy, a producer may take longer than a second to settle what it has just sent.
    "transactionTimeOut": 3000,
    "transactionCheckInterval": 2000,
    "traceTopicEnable": "true",
}
QUEUES = ("Send", "Pull", "LitePull", "Reply", "Heartbeat", "Transaction", "Ack", "AdminBroker")
# What only RocketMQ has.
REAL_SETTINGS: dict[str, object] = {
    "timerWheelEnable": "false",
    # On a busy machine requests wait longer than it likes, and are refused.
    **dict.fromkeys((f"waitTimeMillsIn{name}Queue" for name in QUEUES), 60_000),
    # Version 5 settles transactions in batches.
    "transactionOpBatchInterval": 200,
    "enableScheduleAsyncDeliver": "false",
    "diskMaxUsedSpaceRatio": 95,
    # The remote parts of a broker that nothing uses here.
    "haListenPort": 0,
}


def free_port() -> int:
    """Return a port that is free, and so are the next one and the second one before it, which RocketMQ listens on.

    It lies below those that the system gives to connections, which come and go before a broker gets to listen.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, low) if low > 20_000 else range(20_000, 65_000)
    while True:
        port = random.choice(ports)
        if all(is_free(other) for other in (port - 2, port, port + 1)):
            return port


def is_free(port: int) -> bool:
    """Tell whether a port can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def ask(address: str, code: int) -> bytes:
    """Send one request without fields, and return the body of its answer; b"": there is none."""
    header = json.dumps({"code": code, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0, "extFields": {}})
    data = header.encode()
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(struct.pack(">II", 4 + len(data), len(data)) + data)
            stream = connection.makefile("rb")
            (size,) = struct.unpack(">I", stream.read(4))
            frame = stream.read(size)
    except (OSError, struct.error):
        return b""
    return frame[4 + (struct.unpack(">I", frame[:4])[0] & 0xFFFFFF) :]


class Launched:
    """A process of a test, with its output in a file; it ends with `stop` or `kill`, or with the test."""

    running: ClassVar[list[Launched]] = []

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self.running.append(self)

    def wait_for(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until *ready*; the process must not end meanwhile."""

        def is_ready() -> bool:
            assert self.process.poll() is None, f"{what} ended: {self.tail()}"
            return ready()

        wait_until(is_ready)

    @classmethod
    def kill_all(cls) -> None:
        """End what a test has left running."""
        while cls.running:
            cls.running.pop().kill()

    def tail(self) -> str:
        """Return the end of its output."""
        return self.log.read_text("utf-8", "replace")[-6000:]

    def stop(self) -> None:
        """End it as an operator does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)


def write_logging(home: Path) -> None:
    """Write what version 4 reads at its start; version 5 brings it along."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker"):
        (home / "conf" / f"logback_{name}.xml").write_text(LOGGING)


def write_properties(path: Path, settings: dict[str, object]) -> Path:
    """Write settings as RocketMQ reads them."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
    return path


class NameServer:
    """RocketMQ's name server."""

    def __init__(self, version: str, home: Path) -> None:
        write_logging(home)
        self.address = f"127.0.0.1:{free_port()}"
        settings = write_properties(home / "namesrv.properties", {"listenPort": self.address.rpartition(":")[2]})
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        command = java_command(version, home, main, f"-Drocketmq.home.dir={home}")
        self.launched = Launched([*command, "-c", str(settings)], home / "namesrv.log")

    def wait(self) -> Self:
        """Wait until it answers."""
        self.launched.wait_for(lambda: ask(self.address, GET_BROKER_CLUSTER_INFO) != b"", "the name server")
        return self

    def brokers(self) -> bytes:
        """Return the names and addresses of the brokers that it knows."""
        return ask(self.address, GET_BROKER_CLUSTER_INFO)

    def stop(self) -> None:
        """End it."""
        self.launched.stop()


class RealBroker:
    """RocketMQ's broker on the store in *home*, with a name server of its own or another."""

    def __init__(
        self,
        version: str,
        home: Path,
        settings: dict[str, object] | None = None,
        name_server: NameServer | None = None,
        port: int | None = None,
    ) -> None:
        self.version = version
        self.home = home
        self.own = None if name_server else NameServer(version, home)
        self.names = name_server or self.own
        assert self.names is not None
        self.name_server = self.names.address
        self.port = port or free_port()
        self.directory = home / "store"
        self.settings = {
            **SETTINGS,
            **REAL_SETTINGS,
            "storePathRootDir": self.directory,
            "storePathCommitLog": self.directory / "commitlog",
            "namesrvAddr": self.name_server,
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            **(settings or {}),
        }
        self.names.wait()
        self.launch()

    def launch(self) -> None:
        """Start the broker, and wait until it is registered."""
        write_logging(self.home)
        settings = write_properties(self.home / "broker.properties", self.settings)
        main = "org.apache.rocketmq.broker.BrokerStartup"
        command = java_command(self.version, self.home, main, BROKER_HEAP, f"-Drocketmq.home.dir={self.home}")
        self.launched = Launched([*command, "-c", str(settings)], self.home / "broker.log")
        address = f"127.0.0.1:{self.port}".encode()
        assert self.names is not None
        self.launched.wait_for(lambda: address in self.names.brokers(), "the broker")

    def kill(self) -> None:
        """End the broker with SIGKILL; its name server goes on."""
        self.launched.kill()

    def stop(self) -> None:
        """End broker and name server."""
        self.launched.stop()
        if self.own is not None:
            self.own.stop()


class ReputBroker:
    """`reput serve` on a store."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object] | None = None,
        *,
        name_server: str | None = None,
        port: int = 0,
        config: Path | None = None,
    ) -> None:
        self.directory = directory
        self.arguments = ["--name-server", name_server] if name_server else ["--name-server-listen", "127.0.0.1:0"]
        given = (settings or {}) if config else {**SETTINGS, **(settings or {})}
        given = {name: value for name, value in given.items() if name not in ("brokerIP1", "traceTopicEnable")}
        for name, value in given.items():
            self.arguments += ["--set", f"{name}={value}"]
        if config:
            self.arguments += ["--config", str(config)]
        self.port = port
        self.launch()

    def launch(self) -> None:
        """Start the broker, and wait until clients can connect."""
        log = self.directory.with_name(f"{self.directory.name}.log")
        begin = log.stat().st_size if log.exists() else 0
        command = [str(REPUT), "serve", str(self.directory), "--listen", f"127.0.0.1:{self.port}", *self.arguments]
        self.launched = Launched(command, log, {**os.environ, "PYTHONUNBUFFERED": "1"})
        fields: dict[str, str] = {}

        def is_ready() -> bool:
            for line in log.read_text("utf-8", "replace")[begin:].splitlines():
                if line.startswith("ready "):
                    fields.update(field.split("=", 1) for field in line.split()[1:])
            return bool(fields)

        self.launched.wait_for(is_ready, "reput serve")
        self.address = fields["broker"]
        self.port = int(self.address.rpartition(":")[2])
        self.name_server = fields["name_server"]

    def place(self) -> dict[str, Any]:
        """Return what the store says of the broker that serves it: its process and addresses."""
        place: dict[str, Any] = json.loads((self.directory / "reput" / "broker.json").read_text())
        return place

    def kill_broker(self) -> float:
        """End the broker's process with SIGKILL, and return when; its keeper starts it again."""
        os.kill(self.place()["pid"], signal.SIGKILL)
        return time.monotonic()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop all its processes inside a ``with`` block, as a machine that hangs does. Its sockets stay open."""
        keeper = psutil.Process(self.launched.process.pid)
        processes = [keeper, *keeper.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def stop(self) -> None:
        """End it as an operator does."""
        self.launched.stop()
        assert self.launched.process.returncode == 0, self.launched.tail()
