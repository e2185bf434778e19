"""The `reput` command as seen at a terminal: its two output streams and its exit code.

Most tests check what a verb prints and how it ends. They run it in their own process: starting another interpreter
takes longer than most verbs. Tests about the process itself - signals, closed streams, loaded modules - start one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from reput.cli import main

__all__ = ["REPUT", "Ended", "run_reput", "run_reput_process"]

REPUT = Path(sys.executable).with_name("reput")
TIMEOUT = 120.0


@dataclass(frozen=True)
class Ended:
    """The result of a command: its exit code and its two streams."""

    code: int
    stdout: str
    stderr: str

    def rows(self) -> list[dict[str, Any]]:
        """Return the JSON objects of stdout, one per line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def report(self) -> dict[str, Any]:
        """Return the one JSON object of stdout."""
        (report,) = self.rows()
        return report


def run_reput_process(*arguments: object, stdin: str = "") -> Ended:
    """Run ``reput`` with *arguments* in its own process until it ends."""
    command = [str(REPUT), *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT)
    assert "Traceback (most recent call last)" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def run_reput(*arguments: object, stdin: str = "") -> Ended:
    """Run ``reput`` with *arguments* in this process; it must leave the process unchanged."""
    before = ProcessState.now()
    with StandardStreams(stdin) as streams:
        code = main([*map(str, arguments)])
    changed = ProcessState.now().changed_since(before)
    assert not changed, f"the verb changed the process: {changed}"
    assert "Traceback (most recent call last)" not in streams.stderr, streams.stderr
    return Ended(code, streams.stdout, streams.stderr)


class ProcessState(NamedTuple):
    """Process-wide state that a verb might change."""

    directory: str
    environment: dict[str, str]
    import_path: list[str]
    signal_handlers: dict[signal.Signals, Any]
    log_handlers: list[logging.Handler]
    log_levels: dict[str, int]

    @classmethod
    def now(cls) -> ProcessState:
        """Return the current state."""
        loggers = {"": logging.root, "reput": logging.getLogger("reput")}
        return cls(
            directory=os.getcwd(),
            environment=dict(os.environ),
            import_path=list(sys.path),
            signal_handlers={number: signal.getsignal(number) for number in signal.valid_signals()},
            log_handlers=[handler for logger in loggers.values() for handler in logger.handlers],
            log_levels={name: logger.level for name, logger in loggers.items()},
        )

    def changed_since(self, before: ProcessState) -> list[str]:
        """Return the names of changed parts."""
        return [name for name, now, then in zip(self._fields, self, before, strict=True) if now != then]


class StandardStreams:
    """A context in which stdin has the given text, and the output to the other two streams is captured.

    The descriptors themselves are replaced, because processes started by a verb inherit them.

    Attributes:
        stdout, stderr: the captured output, available after the context.
    """

    def __init__(self, stdin: str) -> None:
        self.stdout = self.stderr = ""
        self.stdin = stdin

    def __enter__(self) -> StandardStreams:
        sys.stdout.flush()
        sys.stderr.flush()
        self.objects = sys.stdin, sys.stdout, sys.stderr
        self.copies = [os.dup(descriptor) for descriptor in range(3)]
        for descriptor in range(3):
            file = os.memfd_create(f"descriptor {descriptor}")
            os.dup2(file, descriptor)
            os.close(file)
        os.write(0, self.stdin.encode())
        os.lseek(0, 0, os.SEEK_SET)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()
        self.stdout, self.stderr = (
            os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode() for descriptor in (1, 2)
        )
        for descriptor, copy in enumerate(self.copies):
            os.dup2(copy, descriptor)
            os.close(copy)
        sys.stdin, sys.stdout, sys.stderr = self.objects
