"""A lake that is kept live by a process, and a retention that deletes what the test calls old."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

from command_line import REPUT
from delivering import wait_until
from interop.clients.brokers import Launched
from process_tree import descendants

__all__ = ["RETENTION", "SEGMENT_SIZE", "FollowingExport", "age_segments"]

SEGMENT_SIZE = 1 << 20
# All hours are right for retention, and files are kept for one.
RETENTION = {
    "mappedFileSizeCommitLog": SEGMENT_SIZE,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "fileReservedTime": 1,
    "cleanResourceInterval": 1000,
    "flushDiskType": "ASYNC_FLUSH",
}


class FollowingExport:
    """`reput export STORE LAKE --follow`, started again whenever it has ended."""

    def __init__(self, store: Path, lake: Path, log: Path, *options: str) -> None:
        self.command = [str(REPUT), "export", str(store), str(lake), "--follow", "--format", "json", *options]
        self.lake, self.log = lake, log
        self.launch()

    def launch(self) -> None:
        """Start it."""
        self.launched = Launched(self.command, self.log)

    def go_on(self) -> None:
        """Start it again if it has ended."""
        if self.launched.process.poll() is not None:
            self.launch()

    def kill(self, victim: str) -> None:
        """Kill one of its processes, and start it again once it has ended.

        Spark starts a killed worker again, so then it goes on by itself.
        """
        pid = self.launched.process.pid
        victims = [one for one, command in descendants(pid).items() if victim in command] or [pid]
        os.kill(random.choice(victims), signal.SIGKILL)

    def committed(self) -> int:
        """Return the offset up to which the lake has the log, as the last printed row says."""
        said = self.log.read_text("utf-8").splitlines()
        return max((json.loads(line)["until"] for line in said if line.startswith("{")), default=0)

    def wait_for(self, offset: int) -> None:
        """Wait until the lake has the log up to *offset*."""

        def reached() -> bool:
            self.go_on()
            return self.committed() >= offset

        wait_until(reached)

    def stop(self) -> None:
        """End it as an operator does."""
        self.launched.stop()
        assert self.launched.process.returncode == 0, self.launched.tail()


def age_segments(store: Path, until: int) -> None:
    """Make the segments below *until* older than the broker keeps them."""
    for path in (store / "commitlog").glob("[0-9]*"):
        if int(path.name) + SEGMENT_SIZE <= until:
            os.utime(path, (time.time() - 7200,) * 2)
