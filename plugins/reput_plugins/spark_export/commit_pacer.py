"""CommitPacer: when a lake that is kept up to date gets its next transaction, and from which range of the log.

log's durable end ──▶ enough bytes, or the interval is over ──▶ a range ──▶ transaction ──▶ what is still behind
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reput.table import LogTable
    from reput.table.log_table import LogLag
    from reput_plugins.spark_export.spark_job import Progress

__all__ = ["COMMIT_BYTES", "COMPACT_INTERVAL_MS", "CommitPacer"]

COMMIT_BYTES = 64 << 20
BATCH_BYTES_MAX = 256 << 20
LOOK_SECONDS = 0.1
COMPACT_INTERVAL_MS = 600_000


class CommitPacer:
    """Follows the durable end of one log.

    Attributes:
        done: commit-log offset up to which the lake has the log.
    """

    def __init__(self, log: LogTable, begin: int, interval_ms: int, on_progress: Progress | None) -> None:
        """*interval_ms* and *on_progress* are those of `follow`."""
        self.log = log
        self.begin = self.done = self.end = begin
        self.interval_ms = interval_ms
        self.on_progress = on_progress
        self.committed_at: float | None = None
        # Never set: files give no signal when they grow, so the loop polls.
        self.nothing = threading.Event()

    def next_range(self) -> tuple[int, int]:
        """Wait until there is something to commit, and return the range of the log."""
        while True:
            self.end = max(self.end, self.log.find_durable_end())
            waiting = self.end - self.done
            if self.on_progress is not None:
                self.on_progress(self.done - self.begin, self.end - self.begin)
            committed_at = self.committed_at
            is_time = committed_at is None or time.monotonic() - committed_at >= self.interval_ms / 1000
            if waiting >= (1 if is_time else COMMIT_BYTES):
                break
            self.nothing.wait(LOOK_SECONDS)
        until = self.end if waiting <= BATCH_BYTES_MAX else self.log.next_record(self.done + BATCH_BYTES_MAX, self.end)
        return self.done, until

    def committed(self, until: int) -> LogLag:
        """Note that the lake has the log up to *until*, and return what it still lacks."""
        self.done, self.committed_at = until, time.monotonic()
        # Records may have come while the transaction was made.
        self.end = max(self.end, self.log.find_durable_end())
        return self.log.lag(until, self.end)
