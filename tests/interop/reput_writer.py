"""ReputWriter: a separate process in which reput writes a store, and which can be killed."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from reput.store.record.message import Message, PutMessageResult

__all__ = ["ReputWriter"]

PROGRAM = Path(__file__).with_name("writer_process.py")
END_SECONDS_MAX = 60


class ReputWriter:
    """Ends by `kill`, or at the end of a ``with``, which kills it."""

    def __init__(self, directory: Path, options: dict[str, object]) -> None:
        """Start the process and wait until it has the store open."""
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(directory), msgspec.json.encode(options).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        if self.stdout.readline() != b"open\n":
            self.kill()
            raise AssertionError("reput did not open the store")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def put(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Put *messages*, each after the previous one was acknowledged."""
        results = []
        for message in messages:
            self.send([message])
            results += self.results(1)
        return results

    def send(self, messages: Iterable[Message]) -> None:
        """Send *messages* without waiting."""
        self.stdin.write(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))
        self.stdin.flush()

    def results(self, count: int) -> list[PutMessageResult]:
        """Wait for *count* acknowledgements."""
        return [msgspec.json.decode(self.stdout.readline(), type=PutMessageResult) for _ in range(count)]

    def kill(self) -> list[PutMessageResult]:
        """``kill -9`` the writer, wait until its group is gone, and return the pending acknowledgements."""
        self.process.kill()
        rest = self.stdout.read() if not self.stdout.closed else b""
        self.stdout.close()
        # There may be unread messages.
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.process.wait(END_SECONDS_MAX)
        lock = self.directory / "reput" / "group.lock"
        if lock.exists():
            # Its processes hold this lock until the last one has ended.
            with lock.open() as group:
                fcntl.flock(group, fcntl.LOCK_EX)
        whole = rest[: rest.rfind(b"\n") + 1]
        return [msgspec.json.decode(line, type=PutMessageResult) for line in whole.splitlines()]
