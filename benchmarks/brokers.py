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
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.rocketmq_peer import VERSIONS, Peer
from benchmarks.timed_commands import run_command
from reput.bench.machine import machine_facts, machine_text
from reput.bench.scratch import scratch_directory
from reput.bench.user_command import REPUT, user_environment
from reput.cli.terminal.output import table_text, write_line
from reput.process.system.memory import anonymous_memory

__all__ = ["main"]

OURSELVES = "reput"
CLIENT_VERSION = "5.3.3"
BROKER_PORT, NAME_SERVER_PORT = 21911, 22011
RUN_TIMEOUT_S = 600.0
READY_TIMEOUT_S = 300.0
# Runs first, and is not counted: it warms up what compiles at run time.
WARM_UP = ("client-send", "--mode", "sync", "--threads", "8", "--seconds", "6", "--warmup", "0")


class Measurement(msgspec.Struct, frozen=True):
    """One measurement, and what is asked of it.

    Attributes:
        field: of the report.
        ratio: of our figure to the better RocketMQ's, or where *bound* is set, of theirs: at least this.
        bound: the figure in *field* is at most this instead; times in µs.
    """

    what: str
    command: tuple[str, ...]
    field: str
    ratio: float | None = None
    bound: float | None = None
    is_time: bool = False


def sends(mode: str, threads: int, *more: str) -> tuple[str, ...]:
    """Return the command of a send measurement."""
    return ("client-send", "--mode", mode, "--threads", str(threads), "--seconds", "5", "--warmup", "3", *more)


LATENCY = ("client-latency", "--rate", "1000", "--seconds", "10", "--warmup", "5")
SYNC_ONE = sends("sync", 1)
MEASUREMENTS = (
    Measurement("synchronous, 1 thread", SYNC_ONE, "messages_per_s", ratio=1.2),
    Measurement("the same, p50", SYNC_ONE, "send_p50_us", is_time=True),
    Measurement("synchronous, 16 threads", sends("sync", 16), "messages_per_s", ratio=1.2),
    Measurement("asynchronous, 256 in flight", sends("async", 2, "--inflight", "256"), "messages_per_s", ratio=1.5),
    Measurement("one-way, stored", sends("oneway", 2), "stored_per_s", ratio=1.2),
    Measurement("batches of 32", sends("batch", 2), "messages_per_s", ratio=1.0),
    Measurement("push", ("client-consume", "--mode", "push", "--count", "300000"), "messages_per_s", ratio=1.0),
    Measurement("pull", ("client-consume", "--mode", "pull", "--count", "300000"), "messages_per_s", ratio=1.0),
    Measurement("end to end at 1,000 a second, p50", LATENCY, "end_to_end_p50_us", bound=400, is_time=True),
    Measurement("end to end at 1,000 a second, p99", LATENCY, "end_to_end_p99_us", bound=3_000, is_time=True),
    Measurement("ready for clients, ms", ("ready",), "ready_ms", bound=600, is_time=True),
    Measurement("anonymous memory after the run, MiB", ("memory",), "anonymous_mib", bound=120, is_time=True),
)


class Line(msgspec.Struct):
    """One line of a run: a report of *who* in a round, with the command that made it."""

    who: str
    round: int
    command: tuple[str, ...]
    report: dict[str, Any]


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
    wanted = [one for one in MEASUREMENTS if only is None or one.what in only]
    commands = list(dict.fromkeys(one.command for one in wanted))
    for number in range(1, rounds + 1):
        first = (number - 1) % len(contenders)
        for who in [*contenders, *contenders][first : first + len(contenders)]:
            with Contender(who, peer, directory) as contender:
                yield Line(who, number, ("ready",), {"ready_ms": contender.ready_ms})
                for command in [WARM_UP, *commands]:
                    if command[0].startswith("client-"):
                        report = client_report(peer, command, directory)
                        if command is not WARM_UP:
                            yield Line(who, number, command, report)
                yield Line(who, number, ("memory",), {"anonymous_mib": contender.anonymous_mib()})


def client_report(peer: Peer, command: Sequence[str], directory: Path) -> dict[str, Any]:
    """Return what the Java client reports."""
    whole = [
        *(str(peer.program), *command, "--namesrv", f"127.0.0.1:{NAME_SERVER_PORT}"),
        *("--version", CLIENT_VERSION, "--dir", str(directory), "--log", str(peer.log)),
    ]
    run = run_command(whole, RUN_TIMEOUT_S, errors=peer.log)
    report = run.reports[-1] if run.reports else {}
    return {**report, "failed": run.failed, "other_load_cores": report.get("other_load_cores")}


def rows(lines: Sequence[Line]) -> list[dict[str, str]]:
    """Return the table: a row per measurement, with the median of each contender, the ratio and whether it is kept."""
    whos = list(dict.fromkeys(line.who for line in lines))
    table = []
    for one in MEASUREMENTS:
        medians = {}
        for who in whos:
            found = [
                float(value)
                for line in lines
                if line.who == who
                and tuple(line.command) == one.command
                and isinstance(value := line.report.get(one.field), int | float)
            ]
            if found:
                medians[who] = statistics.median(found)
        if OURSELVES not in medians:
            continue
        ours = medians[OURSELVES]
        theirs = [value for who, value in medians.items() if who != OURSELVES]
        best = (min(theirs) if one.is_time else max(theirs)) if theirs else None
        kept = None
        if one.bound is not None:
            kept = ours <= one.bound
        elif one.ratio is not None and best:
            kept = ours / best >= one.ratio
        asked = f"≤ {one.bound:,.0f}" if one.bound is not None else f"≥ {one.ratio:g} ×" if one.ratio else ""
        table.append(
            {
                "what": one.what,
                **{who: f"{medians[who]:,.0f}" if who in medians else "" for who in whos},
                "to the better": f"{ours / best:.2f}" if best else "",
                "asked": asked,
                "kept": {True: "yes", False: "NO", None: ""}[kept],
            }
        )
    return table


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
    add("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    asked = parser().parse_args(arguments)
    if asked.again is None:
        if asked.peer is None:
            parser().error("--peer names the program that has the Java client")
        versions = [] if asked.alone else asked.version or list(VERSIONS)
        with scratch_directory(asked.directory) as scratch, asked.out.open("w") as file:
            peer = Peer(asked.peer, [*versions, CLIENT_VERSION], scratch, asked.out.with_name(asked.out.name + ".log"))
            for note in peer.build():
                print(f"reput: {note}", file=sys.stderr)
            peer.versions = [version for version in versions if version in peer.versions]
            print(f"reput: {machine_text(machine_facts(scratch))}", file=sys.stderr)
            for line in measure(peer, scratch, asked.rounds, asked.only):
                file.write(msgspec.json.encode(line).decode() + os.linesep)
                file.flush()
                print(f"reput: round {line.round}: {line.who} {' '.join(line.command)}", file=sys.stderr)
    lines = [msgspec.json.decode(text, type=Line) for text in (asked.again or asked.out).read_text().splitlines()]
    table = rows(lines)
    if table:
        write_line(table_text(table, tuple(table[0])))
    return 1 if any(line.report.get("failed") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
