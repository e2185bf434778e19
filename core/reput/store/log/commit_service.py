"""CommitService: the thread that writes the messages in the transient pool into the files of the log.

As soon as ``commit_commit_log_least_pages`` pages wait, and every ``commit_interval_commit_log`` whatever waits, if the
last time was ``commit_commit_log_thorough_interval`` ago.

Source: RocketMQ store, CommitLog.CommitRealTimeService.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.errors import StoreError
from reput.store.disk.files import Clock
from reput.store.log.commit_log import CommitLog
from reput.store.log.flush_service import PAGE_SIZE, is_able_to_flush
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads

__all__ = ["CommitService"]


class CommitService(ServiceThread):
    """One thread. *on_committed* is called after each round that wrote something, and after the last, *on_failure* when
    the disk has refused, *on_death* if an error ends the thread."""

    def __init__(
        self,
        commit_log: CommitLog,
        clock: Clock,
        *,
        interval_ms: int,
        least_pages: int,
        thorough_interval_ms: int,
        on_committed: Callable[[], None],
        on_failure: Callable[[], None],
        on_death: Callable[[str], None],
        threads: Threads | None = None,
    ) -> None:
        super().__init__("reput-commit", threads)
        self.commit_log = commit_log
        self.clock = clock
        self.interval = interval_ms / 1000
        self.least_pages = least_pages
        self.thorough_interval = thorough_interval_ms / 1000
        self.on_committed = on_committed
        self.on_failure = on_failure
        self.last_commit = clock.monotonic()
        self.on_death = on_death

    def appended(self, end: int) -> None:
        """The log goes to *end* now. Called under the put lock, and cheap: it wakes the thread once it has enough."""
        enough = end - self.commit_log.committed >= self.least_pages * PAGE_SIZE
        if enough and not self.wake.is_set():
            self.wakeup()

    def run(self) -> None:
        """Commit until stopped, then a last time."""
        super().run()
        self.commit()

    def seconds_to_next(self) -> float:
        """Return the interval."""
        return self.interval

    def end_waits(self, reason: str) -> None:
        """Tell the flusher that nothing more will be committed."""
        self.on_death(reason)

    def do_round(self) -> None:
        """Commit if enough waits, or if the last time was long ago."""
        log = self.commit_log
        appended, committed = log.appended, log.committed
        if log.failed is not None or appended == committed:
            return
        thorough = self.clock.monotonic() - self.last_commit >= self.thorough_interval
        is_full = appended // log.segment_size != committed // log.segment_size
        if thorough or is_able_to_flush(appended, committed, self.least_pages, is_full=is_full):
            self.commit()

    def commit(self) -> None:
        """Commit once, and call *on_committed*."""
        if self.try_commit():
            self.last_commit = self.clock.monotonic()
            self.on_committed()

    def try_commit(self) -> bool:
        """Commit once; False if the disk refuses. The log keeps the reason, which the flusher makes known."""
        try:
            self.commit_log.commit()
        except StoreError:
            self.on_failure()
            return False
        return True
