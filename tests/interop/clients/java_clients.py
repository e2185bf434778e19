"""The Java clients: scenarios run by one JVM against one broker; each says lines that are the same at every broker."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from delivering import wait_until
from interop.java_program import java_command

__all__ = ["Outcome", "RunningClients", "outcomes_of", "run_java"]

RUN_SECONDS_MAX = 500
AT_A_TIME = 6
# A consumer that misses a change looks again after this time; the client's default is 20 s.
REBALANCE_MS = 4000


class Outcome(NamedTuple):
    """What the clients of a scenario said, and how it failed, if it did."""

    lines: list[str]
    error: str
    ms: int


def program(version: str, home: Path, *options: str) -> list[str]:
    """Return the command of the clients of a version."""
    home.mkdir(parents=True, exist_ok=True)
    return java_command(
        version,
        home,
        "interop.clients.Program",
        "-Xmx256m",
        f"-Drocketmq.client.rebalance.waitInterval={REBALANCE_MS}",
        f"-Drocketmq.client.localOffsetStoreDir={home / 'offsets'}",
        "-Drocketmq.client.logLevel=WARN",
        *options,
    )


def run_java(
    version: str, home: Path, name_server: str, *scenarios: str, options: tuple[str, ...] = ()
) -> dict[str, Outcome]:
    """Run scenarios with the clients of a version."""
    return outcomes_of([*program(version, home, *options), name_server, str(AT_A_TIME), *scenarios], home)


def outcomes_of(command: list[str], home: Path) -> dict[str, Outcome]:
    """Run a program of scenarios, and return what each of them said."""
    errors = home / "clients.stderr"
    with errors.open("ab") as stderr:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, timeout=RUN_SECONDS_MAX)
    if done.returncode != 0:
        pytest.fail(f"the clients ended: exit_code={done.returncode}\n{errors.read_text('utf-8', 'replace')[-4000:]}")
    return outcomes(json.loads(line) for line in done.stdout.splitlines())


def outcomes(rows: Iterable[dict[str, Any]]) -> dict[str, Outcome]:
    """Return what the scenarios said, by their names."""
    return {row["scenario"]: Outcome(row["lines"], row.get("error", ""), row["ms"]) for row in rows}


class RunningClients:
    """Clients that go on until `finish`."""

    def __init__(
        self, version: str, home: Path, name_server: str, *scenarios: str, options: tuple[str, ...] = ()
    ) -> None:
        # A group may have members in several processes.
        command = program(version, home, f"-Dinterop.process={home.name}-", *options)
        command += [name_server, str(len(scenarios)), *scenarios]
        with (home / "clients.stderr").open("ab") as stderr:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        self.counts: Counter[str] = Counter()
        self.rows: list[dict[str, Any]] = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        """Keep what they report."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            row = json.loads(line)
            if "progress" in row:
                self.counts[row["progress"]] = row["count"]
            else:
                self.rows.append(row)

    def advance(self, scenario: str, by: int = 1) -> None:
        """Wait until a scenario has so many more messages than now."""
        before = self.counts[scenario]
        wait_until(lambda: self.counts[scenario] >= before + by)

    def finish(self) -> dict[str, Outcome]:
        """End them, and return what they said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(RUN_SECONDS_MAX)
        self.reader.join(RUN_SECONDS_MAX)
        self.process.stdout.close()
        return outcomes(self.rows)
