"""The `reput` command as a person at a terminal has it: a process of its own, its two streams, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["REPUT", "Ended", "run_reput"]

REPUT = Path(sys.executable).with_name("reput")
TIMEOUT = 120.0


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code and its two streams."""

    code: int
    stdout: str
    stderr: str

    def rows(self) -> list[dict[str, Any]]:
        """Return the JSON objects of stdout, one a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def report(self) -> dict[str, Any]:
        """Return the one JSON object of stdout."""
        (report,) = self.rows()
        return report


def run_reput(*arguments: object, stdin: str = "") -> Ended:
    """Run ``reput`` with *arguments* to its end."""
    command: Iterable[str] = [str(REPUT), *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT)
    assert "Traceback (most recent call last)" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)
