"""reput's broker and RocketMQ's under the same official Java client, in turns, on the same machine.

    round 1   reput │ 4.9.7 │ 5.3.3 │ 5.5.0     each: started, warmed up, all measurements, memory, stopped
    round 2   5.5.0 │ reput │ 4.9.7 │ 5.3.3     the first one rotates

The client is the one of the program `peer`, always of the same version. Each measurement is one line of JSON in the
file that keeps the run.

    python -m benchmarks.brokers --peer DIR

The broker written in Rust takes part if `--rust` names a folder with its programs. They are built from the crates
rocketmq-broker and rocketmq-namesrv 1.0, each unpacked, with `cargo build --release --locked`; that takes two hours of
processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

import reput
from benchmarks.comparison import OURSELVES, Line, Row, read_lines, row_of
from benchmarks.formats import FORMATS, print_run
from benchmarks.rocketmq_peer import VERSIONS, Peer
from benchmarks.timed_commands import TimedRun, run_command
from reput.bench.figures import at_least, at_most
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment
from reput.client.routes import DEFAULT_TOPIC
from reput.process.system.memory import anonymous_memory

__all__ = ["main"]

CLIENT_VERSION = "5.3.3"
RUST = "Rust 1.0"
RUST_PROGRAMS = ("rocketmq-namesrv-rust", "rocketmq-broker-rust")
BROKER_PORT, NAME_SERVER_PORT = 21911, 22011
RUN_TIMEOUT_S = 600.0
READY_TIMEOUT_S = 300.0
# Runs first, and is not counted: it warms up what compiles at run time.
WARM_UP = ("client-send", "--mode", "sync", "--threads", "8", "--seconds", "6", "--warmup", "0")


def sends(mode: str, threads: int, *more: str) -> tuple[str, ...]:
    """Return the command of a send measurement."""
    return ("client-send", "--mode", mode, "--threads", str(threads), "--seconds", "5", "--warmup", "3", *more)


LATENCY = ("client-latency", "--rate", "1000", "--seconds", "10", "--warmup", "5")
SYNC_ONE = sends("sync", 1)
PUSH = ("client-consume", "--mode", "push", "--count", "300000")
PULL = ("client-consume", "--mode", "pull", "--count", "300000")
# The commands, and a figure of the report of each.
MEASUREMENTS = (
    (SYNC_ONE, at_least("synchronous, 1 thread", "messages_per_s", "1/s", multiple=1.2)),
    (SYNC_ONE, at_most("the same, p50", "send_p50_us", "µs")),
    (sends("sync", 16), at_least("synchronous, 16 threads", "messages_per_s", "1/s", multiple=1.2)),
    (
        sends("async", 2, "--inflight", "256"),
        at_least("asynchronous, 256 in flight", "messages_per_s", "1/s", multiple=1.5),
    ),
    (sends("oneway", 2), at_least("one-way, stored", "stored_per_s", "1/s", multiple=1.2)),
    (sends("batch", 2), at_least("batches of 32", "messages_per_s", "1/s", multiple=1.0)),
    (PUSH, at_least("push", "messages_per_s", "1/s", multiple=1.0)),
    (PULL, at_least("pull", "messages_per_s", "1/s", multiple=1.0)),
    (LATENCY, at_most("end to end at 1,000 a second, p50", "end_to_end_p50_us", "µs", 400)),
    (LATENCY, at_most("end to end at 1,000 a second, p99", "end_to_end_p99_us", "µs", 3_000)),
    (("ready",), at_most("ready for clients", "ready_ms", "ms", 600)),
    (("memory",), at_most("anonymous memory after the run", "anonymous_mib", "MiB", 120)),
)


# Its settings do not name the folder of its index, the host that it listens on, or the name server otherwise.
RUST_SETTINGS = """\
[broker]
namesrvAddr = "127.0.0.1:{name_server_port}"
brokerIp1 = "127.0.0.1"
listenPort = {broker_port}
storePathRootDir = "{store}"

[broker.brokerServerConfig]
bindAddress = "127.0.0.1"

[broker.brokerIdentity]
brokerName = "broker-a"
brokerClusterName = "DefaultCluster"
brokerId = 0

[store]
storeType = "LocalFile"
brokerRole = "ASYNC_MASTER"
storePathRootDir = "{store}"
haListenAddress = "127.0.0.1"
haListenPort = {ha_port}
"""


class Contender:
    """A broker that is measured; used as a context."""

    def __init__(
        self,
        who: str,
        peer: Peer,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        rust: Path | None = None,
    ) -> None:
        """*settings*: RocketMQ's own, by name; *rust*: the folder with the programs of the broker in Rust."""
        self.who = who
        self.rust = rust
        self.peer = peer
        self.settings = [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
        self.directory = directory / f"{who}-{time.monotonic_ns()}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ready_ms = 0.0

    def __enter__(self) -> Contender:
        self.directory.mkdir()
        begin = time.monotonic()
        if self.who == OURSELVES:
            self.start_reput()
        elif self.who == RUST:
            self.start_rust()
        else:
            ports = ("--port", str(BROKER_PORT), "--namesrv-port", str(NAME_SERVER_PORT))
            self.run_peer("broker", "up", *ports, *self.settings)
        self.ready_ms = (time.monotonic() - begin) * 1000
        return self

    def start_reput(self) -> None:
        """Start `reput serve`, and wait until clients can connect."""
        command = [
            *(*REPUT, "serve", str(self.directory / "store"), "--listen", f"127.0.0.1:{BROKER_PORT}"),
            *("--name-server-listen", f"127.0.0.1:{NAME_SERVER_PORT}"),
        ]
        with self.peer.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=user_environment(), start_new_session=True
            )
        self.processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(b"ready"):
            raise RuntimeError(f"reput serve is not ready: line={line!r}")

    def start_rust(self) -> None:
        """Start the name server and the broker in Rust, and wait until there is a route to the broker."""
        assert self.rust is not None
        settings = self.directory / "broker.toml"
        ports = {"name_server_port": NAME_SERVER_PORT, "broker_port": BROKER_PORT, "ha_port": BROKER_PORT + 1}
        settings.write_text(RUST_SETTINGS.format(store=self.directory / "store", **ports))
        name_server, broker = (str(self.rust / program) for program in RUST_PROGRAMS)
        commands = (
            [name_server, "--listenPort", str(NAME_SERVER_PORT), "--bindAddress", "127.0.0.1"],
            [broker, "--configFile", str(settings)],
        )
        for command in commands:
            with self.peer.log.open("ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=log,
                        env=os.environ | {"ROCKETMQ_HOME": str(self.directory), "HOME": str(self.directory)},
                        start_new_session=True,
                    )
                )
        with reput.connect(f"127.0.0.1:{NAME_SERVER_PORT}") as client:
            while not has_route(client):
                if any(process.poll() is not None for process in self.processes):
                    raise RuntimeError(f"a program of the broker in Rust has ended: log={self.peer.log}")
                time.sleep(0.02)

    def run_peer(self, *words: str) -> None:
        """Run a command of `peer` about its broker."""
        command = [str(self.peer.program), *words, "--version", self.who, "--dir", str(self.directory)]
        subprocess.run(
            [*command, "--log", str(self.peer.log)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=READY_TIMEOUT_S,
        )

    def pids(self) -> list[int]:
        """Return the processes of the broker's group."""
        roots = [process.pid for process in self.processes]
        if not roots:
            roots = [json.loads((self.directory / "peer-broker.json").read_text())["broker_pid"]]
        return [*roots, *descendants(roots)]

    def anonymous_mib(self) -> float:
        """Return the anonymous memory of the group."""
        return sum(anonymous_memory(pid) or 0 for pid in self.pids()) / (1 << 20)

    def __exit__(self, *_: object) -> None:
        if not self.processes:
            with contextlib.suppress(subprocess.SubprocessError):
                self.run_peer("broker", "down")
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(READY_TIMEOUT_S)
            process.kill()
            process.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)


def has_route(client: reput.Client) -> bool:
    """Tell whether the name server knows a broker."""
    with contextlib.suppress(reput.BrokerError, reput.RequestRefused):
        return bool(client.queue_ids(DEFAULT_TOPIC))
    return False


def descendants(pids: Sequence[int]) -> list[int]:
    """Return the processes that descend from *pids*."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process.pid for process in psutil.Process(pid).children(recursive=True)]
    return found


def measure(peer: Peer, directory: Path, rounds: int, only: Sequence[str] | None, rust: Path | None) -> Iterator[Line]:
    """Yield a line per measurement."""
    contenders = [OURSELVES, *peer.versions, *([RUST] if rust is not None else [])]
    commands = dict.fromkeys(command for command, figure in MEASUREMENTS if only is None or figure.what in only)
    for number in range(1, rounds + 1):
        first = (number - 1) % len(contenders)
        for who in [*contenders, *contenders][first : first + len(contenders)]:
            with Contender(who, peer, directory, rust=rust) as contender:
                client_run(peer, WARM_UP, directory)
                for command in commands:
                    if command == ("ready",):
                        run = TimedRun([{"ready_ms": contender.ready_ms}], 0.0, 0.0)
                    elif command == ("memory",):
                        run = TimedRun([{"anonymous_mib": contender.anonymous_mib()}], 0.0, 0.0)
                    else:
                        run = client_run(peer, command, directory)
                    yield Line(who=who, part="brokers", round=number, command=list(command), run=run)


def client_run(peer: Peer, command: Sequence[str], directory: Path) -> TimedRun:
    """Return what the Java client reports."""
    whole = [
        *(str(peer.program), *command, "--namesrv", f"127.0.0.1:{NAME_SERVER_PORT}"),
        *("--version", CLIENT_VERSION, "--dir", str(directory), "--log", str(peer.log)),
    ]
    return run_command(whole, RUN_TIMEOUT_S, errors=peer.log)


def broker_rows(lines: Sequence[Line]) -> list[Row]:
    """Return a row for each figure of a run that has ours. The load of others is unknown: the broker is among them."""
    rows = []
    for command, figure in MEASUREMENTS:
        values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            for report in line.run.reports if line.run is not None and tuple(line.command) == command else ():
                if (found := figure.of(report)) is not None:
                    values[line.who][line.round].append(found)
        if OURSELVES in values:
            rows.append(row_of("brokers", figure, values))
    return rows


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers", description="Measure brokers side by side.")
    add = parser.add_argument
    add("--peer", type=Path, metavar="DIR", help="the program `peer`, or its folder")
    add("--version", action="append", metavar="V", help=f"a version of RocketMQ, repeatable; default {VERSIONS}")
    add("--rust", type=Path, metavar="DIR", help="the folder with the programs of the broker in Rust")
    add("--alone", action="store_true", help="measure reput alone")
    add("--only", action="append", metavar="WHAT", help="a row of the table, repeatable")
    add("--rounds", type=int, default=2, metavar="N", help="how often each broker is measured; default 2")
    add("--out", type=Path, default=Path("brokers.jsonl"), metavar="FILE", help="keeps the run")
    add("--from", type=Path, dest="again", metavar="FILE", help="measure nothing, print the table of a kept run")
    add("--format", choices=FORMATS, default="text", help="a table, one JSON object per figure, or a chart")
    add("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    add("--page", type=Path, metavar="FILE", help="a page whose table, between its marks, and chart are made anew")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    asked = parser().parse_args(arguments)
    if asked.again is None:
        if asked.peer is None:
            parser().error("--peer names the program that has the Java client")
        versions = [] if asked.alone else asked.version or list(VERSIONS)
        encode = msgspec.json.Encoder().encode
        with scratch_directory(asked.directory) as scratch, asked.out.open("wb") as file:
            peer = Peer(asked.peer, [*versions, CLIENT_VERSION], scratch, asked.out.with_name(asked.out.name + ".log"))
            notes = list(peer.build())
            for note in notes:
                print(f"reput: {note}", file=sys.stderr)
            peer.versions = [version for version in versions if version in peer.versions]
            file.write(encode(Line(machine=machine_facts(scratch), notes=notes)) + b"\n")
            for line in measure(peer, scratch, asked.rounds, asked.only, asked.rust):
                file.write(encode(line) + b"\n")
                file.flush()
                print(f"reput: round {line.round}: {line.who} {' '.join(line.command)}", file=sys.stderr)
    lines = read_lines(asked.again or asked.out)
    return print_run(lines, broker_rows(lines), asked.format, asked.page, "brokers")


if __name__ == "__main__":
    sys.exit(main())
