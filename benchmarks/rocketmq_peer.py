"""RocketMQ's own store, as measured by the program `peer`.

`peer SUB-COMMAND --version V --dir D --log L` prints one JSON object per line: ``measurement`` names the measurement,
the other fields its parameters and figures. The program is not part of reput; `--peer` names its folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.timed_commands import Command, TimedRun, run_command

__all__ = ["PEER_COMMANDS", "PEER_FIGURES", "VERSIONS", "Peer", "PeerFigure"]

VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
BUILD_TIMEOUT_S = 600.0


class PeerFigure(msgspec.Struct, frozen=True):
    """The location of a figure of RocketMQ: in *field* of the report whose other fields equal *only*."""

    field: str
    only: dict[str, object]

    def of(self, report: dict[str, Any]) -> float | None:
        """Return the figure, or None if *report* is about something else."""
        if any(report.get(name) != value for name, value in self.only.items()):
            return None
        found = report.get(self.field)
        return float(found) if isinstance(found, (int, float)) else None


PEER_COMMANDS = {
    "put": Command(("store-append", "--threads", "1"), (("--count", 1_000_000, 2_000), ("--seconds", 8, 1)), "--body"),
    "put to disk": Command(
        ("store-append", "--flush", "sync", "--threads", "64"),
        (("--count", 100_000, 1_000), ("--seconds", 3, 1)),
        "--body",
    ),
    "put to disk, in flight": Command(
        ("store-append", "--flush", "sync", "--mode", "async", "--inflight", "1024"),
        (("--count", 500_000, 2_000), ("--seconds", 4, 1)),
        "--body",
    ),
    "visible": Command(
        ("store-dispatch", "--mode", "latency", "--queues", "1", "--rate", "1000"),
        (("--seconds", 10, 1), ("--warmup", 3, 1)),
    ),
    "rebuild, one queue": Command(
        ("store-dispatch", "--mode", "rebuild", "--queues", "1", "--keys", "2"), (("--count", 600_000, 2_000),)
    ),
    "rebuild, 1,000 queues": Command(
        ("store-dispatch", "--mode", "rebuild", "--topics", "250", "--queues", "4", "--keys", "2"),
        (("--count", 600_000, 2_000),),
    ),
    "read": Command(("store-read", "--keys", "2"), (("--count", 600_000, 2_000),), "--body"),
    "open": Command(("open-time",), (("--segments", 4, 1), ("--segment-mib", 256, 4))),
}

SYNC = {"measurement": "store-append", "flush": "sync"}
REBUILD = {"measurement": "store-dispatch-rebuild", "complete": True}
PEER_FIGURES = {
    "put": PeerFigure("messages_per_s", {"measurement": "store-append", "flush": "async", "threads": 1}),
    "put to disk": PeerFigure("messages_per_s", SYNC | {"mode": "put", "threads": 64}),
    "put to disk, in flight": PeerFigure("messages_per_s", SYNC | {"mode": "async", "inflight": 1024}),
    "visible, p50": PeerFigure("visible_p50_us", {"measurement": "store-dispatch-latency"}),
    "visible, p99": PeerFigure("visible_p99_us", {"measurement": "store-dispatch-latency"}),
    "rebuild, one queue": PeerFigure("records_per_s", REBUILD | {"topics": 1, "queues": 1}),
    "rebuild, 1,000 queues": PeerFigure("records_per_s", REBUILD | {"topics": 250, "queues": 4}),
    "read in order": PeerFigure("messages_per_s", {"measurement": "store-read-sequential", "copy": "heap"}),
    "read at random": PeerFigure("get_p50_us", {"measurement": "store-read-random"}),
    "query by key": PeerFigure("query_p50_us", {"measurement": "store-query-key"}),
    "open after a close": PeerFigure("process_ready_ms", {"measurement": "store-open", "shutdown": "clean"}),
    "open after a kill": PeerFigure("process_ready_ms", {"measurement": "store-open", "shutdown": "killed"}),
}


class Peer:
    """The program, and the versions of RocketMQ that it was built for.

    Args:
        path: the program, or its folder.
        directory: where it creates its scratch stores.
        log: the file to which its output and RocketMQ's are appended.
    """

    def __init__(self, path: Path, versions: Sequence[str], directory: Path, log: Path) -> None:
        self.program = path / "peer" if path.is_dir() else path
        self.versions = list(versions)
        self.directory = directory
        self.log = log

    def build(self) -> Iterator[str]:
        """Build it for each version; drop a version that does not build, and yield a sentence with the reason."""
        if not os.access(self.program, os.X_OK):
            yield f"RocketMQ is not measured, the program is missing: path={self.program}"
            self.versions = []
        for version in list(self.versions):
            run = run_command([str(self.program), "build", "--version", version], BUILD_TIMEOUT_S, errors=self.log)
            if run.failed:
                yield f"RocketMQ is not measured, its program cannot be built: version={version} {run.failed}"
                self.versions.remove(version)

    def measure(self, version: str, command: Sequence[str], timeout: float) -> TimedRun:
        """Run one measurement against one version of RocketMQ."""
        whole = [str(self.program), *command, "--version", version, "--dir", str(self.directory)]
        return run_command([*whole, "--log", str(self.log)], timeout, errors=self.log)
