"""A broker that is measured: `reput serve`, as a user starts it."""

from __future__ import annotations

import contextlib
import glob
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reput.bench.user_command import REPUT, user_environment

__all__ = ["MeasuredBroker", "serving"]

READY = re.compile(r"ready broker=(\S+) name_server=(\S+) pid=(\d+) ")
WAIT_S = 60.0


class MeasuredBroker:
    """A running `reput serve`.

    Attributes:
        ready_ms: from the start of the command until clients can connect.
    """

    def __init__(self, process: subprocess.Popen[str], line: str, ready_ms: float) -> None:
        found = READY.match(line)
        if found is None:
            raise RuntimeError(f"reput serve is not ready: line={line!r}")
        self.process = process
        self.broker, self.name_server = found[1], found[2]
        self.ready_ms = ready_ms

    def pids(self) -> list[int]:
        """Return the processes of the group."""
        found = [self.process.pid]
        for pid in found:
            # Processes and threads may end before they are read; the search of pathlib would raise then.
            for children in glob.glob(f"/proc/{pid}/task/*/children"):
                with contextlib.suppress(OSError):
                    found += map(int, Path(children).read_text().split())
        return found


@contextmanager
def serving(store: Path, log: Path, *options: str) -> Iterator[MeasuredBroker]:
    """Serve *store* in a ``with`` block, with further *options* of the command."""
    command = [*REPUT, "serve", str(store), "--listen", "127.0.0.1:0", "--name-server-listen", "127.0.0.1:0", *options]
    begin = time.monotonic()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=user_environment(), start_new_session=True
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield MeasuredBroker(process, line, (time.monotonic() - begin) * 1000)
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)
