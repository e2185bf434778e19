"""The Java clients: scenarios run by one JVM against one broker; each says lines that are the same at every broker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from interop.java_program import java_command

__all__ = ["Outcome", "outcomes_of", "run_java"]

RUN_SECONDS_MAX = 500
AT_A_TIME = 6
# A consumer that misses a change looks again after this time; the client's default is 20 s.
REBALANCE_MS = 4000


class Outcome(NamedTuple):
    """What the clients of a scenario said, and how it failed, if it did."""

    lines: list[str]
    error: str
    ms: int


def run_java(
    version: str, home: Path, name_server: str, *scenarios: str, options: tuple[str, ...] = ()
) -> dict[str, Outcome]:
    """Run scenarios with the clients of a version."""
    home.mkdir(parents=True, exist_ok=True)
    command = java_command(
        version,
        home,
        "interop.clients.Program",
        "-Xmx256m",
        f"-Drocketmq.client.rebalance.waitInterval={REBALANCE_MS}",
        f"-Drocketmq.client.localOffsetStoreDir={home / 'offsets'}",
        "-Drocketmq.client.logLevel=WARN",
        *options,
    )
    return outcomes_of([*command, name_server, str(AT_A_TIME), *scenarios], home)


def outcomes_of(command: list[str], home: Path) -> dict[str, Outcome]:
    """Run a program of scenarios, and return what each of them said."""
    errors = home / "clients.stderr"
    with errors.open("ab") as stderr:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, timeout=RUN_SECONDS_MAX)
    if done.returncode != 0:
        pytest.fail(f"the clients ended: exit_code={done.returncode}\n{errors.read_text('utf-8', 'replace')[-4000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["scenario"]: Outcome(row["lines"], row.get("error", ""), row["ms"]) for row in rows}
