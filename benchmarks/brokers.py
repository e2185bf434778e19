"""reput's broker and RocketMQ's under the same official Java client, in turns, on the same machine.

    round 1   reput │ 4.9.7 │ 5.3.3 │ 5.5.0     each: started, warmed up, all measurements, memory, stopped
    round 2   5.5.0 │ reput │ 4.9.7 │ 5.3.3     the first one rotates

The client is the one of the program `peer`, always of the same version. Each measurement is one line of JSON in the
file that keeps the run.

    python -m benchmarks.brokers --peer DIR
"""

from __future__ import annotations

import argparse
import contextlib
import json
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

from benchmarks.comparison import OURSELVES, Line, Row, read_lines, row_of
from benchmarks.formats import FORMATS, print_run
from benchmarks.rocketmq_peer import VERSIONS, Peer
from benchmarks.timed_commands import TimedRun, run_command
from reput.bench.figures import at_least, at_most
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment
from reput.process.system.memory import anonymous_memory

__all__ = ["main"]

CLIENT_VERSION = "5.3.3"
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


class Contender:
    """A broker that is measured; used as a context."""

    def __init__(self, who: str, peer: Peer, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """*settings*: RocketMQ's own, by name."""
        self.who = who
        self.peer = peer
        self.settings = [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
        self.directory = directory / f"{who}-{time.monotonic_ns()}"
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_ms = 0.0

    def __enter__(self) -> Contender:
        self.directory.mkdir()
        begin = time.monotonic()
        if self.who == OURSELVES:
            self.start_reput()
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
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=user_environment(), start_new_session=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(b"ready"):
            raise RuntimeError(f"reput serve is not ready: line={line!r}")

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
        if self.process is not None:
            roots = [self.process.pid]
        else:
            roots = [json.loads((self.directory / "peer-broker.json").read_text())["broker_pid"]]
        return [*roots, *descendants(roots)]

    def anonymous_mib(self) -> float:
        """Return the anonymous memory of the group."""
        return sum(anonymous_memory(pid) or 0 for pid in self.pids()) / (1 << 20)

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            with contextlib.suppress(subprocess.SubprocessError):
                self.run_peer("broker", "down")
        else:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(READY_TIMEOUT_S)
            self.process.kill()
            self.process.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)


def descendants(pids: Sequence[int]) -> list[int]:
    """Return the processes that descend from *pids*."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process.pid for process in psutil.Process(pid).children(recursive=True)]
    return found


def measure(peer: Peer, directory: Path, rounds: int, only: Sequence[str] | None) -> Iterator[Line]:
    """Yield a line per measurement."""
    contenders = [OURSELVES, *peer.versions]
    commands = dict.fromkeys(command for command, figure in MEASUREMENTS if only is None or figure.what in only)
    for number in range(1, rounds + 1):
        first = (number - 1) % len(contenders)
        for who in [*contenders, *contenders][first : first + len(contenders)]:
            with Contender(who, peer, directory) as contender:
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
            for line in measure(peer, scratch, asked.rounds, asked.only):
                file.write(encode(line) + b"\n")
                file.flush()
                print(f"reput: round {line.round}: {line.who} {' '.join(line.command)}", file=sys.stderr)
    lines = read_lines(asked.again or asked.out)
    return print_run(lines, broker_rows(lines), asked.format, asked.page, "brokers")


if __name__ == "__main__":
    sys.exit(main())
