"""FlushService: the thread that forces the log to disk, and wakes the threads waiting for it in batches.

    ASYNC_FLUSH   every ``flush_interval_commit_log`` if enough pages were written, and in any case every
                  ``flush_commit_log_thorough_interval``; at once for a caller in this process that waits for durable
                  bytes; for a waiting dispatcher at once after a pause, else some milliseconds after the last force
    SYNC_FLUSH    as soon as a put waits, one force for all that came meanwhile (group commit)

Source: RocketMQ store, CommitLog.FlushRealTimeService and GroupCommitService.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from reput.errors import StoreError
from reput.store.disk.files import Clock
from reput.store.log.commit_log import CommitLog
from reput.store.log.force_times import ForceTimes
from reput.store.log.wakeup_chain import WakeupChain
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads

__all__ = ["FlushService", "is_able_to_flush"]

PAGE_SIZE = 4096
# Between two forces for dispatchers the flusher pauses ASKED_PAUSE_SHARE times the duration of a force, within these
# bounds in seconds: a busy writer must not spend its time on them.
ASKED_PAUSE_MIN_S, ASKED_PAUSE_MAX_S = 0.01, 0.05
ASKED_PAUSE_SHARE = 4
# Threads that wake each other do so every 50 µs, unless another thread computes: it keeps the interpreter lock from
# each of them for 5 ms. If fewer than CHAIN_WOKEN_MIN woke in CHAIN_LOOK_SECONDS, all the others are woken at once, and
# so are all threads of the next forces.
CHAIN_LOOK_SECONDS = 0.004
CHAIN_WOKEN_MIN = 2
FORCES_WITHOUT_CHAIN = 20


def is_able_to_flush(appended: int, durable: int, least_pages: int, *, is_full: bool) -> bool:
    """Tell whether enough was written to be worth a force.

    Pages are counted where they begin, in the file as in the log. With 0 *least_pages* any byte is enough, and a
    segment that is full always is.

    Source: RocketMQ store, DefaultMappedFile.isAbleToFlush.
    """
    if is_full:
        return True
    if least_pages > 0:
        return appended // PAGE_SIZE - durable // PAGE_SIZE >= least_pages
    return appended > durable


def nothing() -> None:
    """Do nothing."""


class FlushService(ServiceThread):
    """One thread; another one may call `flush` as well. *on_durable* is called after each success, with the new durable
    offset and the result of *before_flush*; *on_failure* once; *on_idle*, by the thread, after each round."""

    def __init__(
        self,
        commit_log: CommitLog,
        clock: Clock,
        *,
        interval_ms: int,
        least_pages: int,
        thorough_interval_ms: int,
        before_flush: Callable[[], int],
        on_durable: Callable[[int, int], None],
        on_failure: Callable[[str], None],
        on_idle: Callable[[], None],
        threads: Threads | None = None,
    ) -> None:
        super().__init__("reput-flush", threads)
        self.commit_log = commit_log
        self.clock = clock
        self.interval = interval_ms / 1000
        self.least_pages = least_pages
        self.thorough_interval = thorough_interval_ms / 1000
        self.before_flush = before_flush
        self.on_durable = on_durable
        self.on_failure = on_failure
        self.on_idle = on_idle
        # Guards the two below, so that no caller is lost that registers while the list is read, or after the last read.
        self.waiting = threading.Lock()
        self.callers: list[tuple[int, Callable[[], None]]] = []
        self.ended = False
        # Held from before a force until what it means was told: positions are told in their order.
        self.flushing = threading.Lock()
        # The threads that wait for the next force. It covers every thread that appends and then joins the chain,
        # because the flusher replaces the chain before it reads where the log ends.
        self.group = WakeupChain(self.wakeup)
        # Forces that still wake all their threads at once.
        self.without_chain = 0
        self.told_failure = False
        # The last argument of *on_durable*: a put that finds much in memory forces the log itself.
        self.told_durable = commit_log.durable
        # Records are published only once they are forced, so the flusher does not wait for whole pages.
        self.hides_unforced = False
        # A durable reader that is behind wants each flush as soon as possible, and sets `asked` while it waits.
        self.durable_wanted = False
        self.asked = False
        # When the last force ended, and how long it took.
        self.forced_at = self.force_seconds = 0.0
        self.force_times = ForceTimes()
        self.last_thorough = clock.monotonic()

    def wait_durable(self, offset: int, timeout: float) -> bool:
        """Wait until the log is durable up to *offset*, which was appended; return False after *timeout* seconds.

        Raises:
            StoreError: the disk refused.
        """
        log = self.commit_log
        while log.durable < offset:
            group = self.group
            # The current chain is open only once there are no further forces.
            if group.is_open:
                raise StoreError(log.failed or "the store was closed before the log was forced to disk")
            if not group.wait(timeout):
                return False
        return True

    def begin(self, patience: float) -> None:
        """Ask for a force of everything appended; return once it begins, or after *patience* seconds.

        A thread that does not wait keeps the interpreter lock for another 5 ms, and so delays the flusher.
        """
        group = self.group
        group.ask()
        group.wait_begin(patience)

    def ask(self) -> None:
        """Ask for a force soon: a dispatcher has nothing to do until it is done."""
        self.asked = True
        self.wakeup()

    def call_when_durable(self, offset: int, done: Callable[[], None]) -> None:
        """Call *done* once the log is durable up to *offset* or never will be.

        The flusher's thread calls it. If the flusher has ended, the caller's thread calls it at once.
        """
        with self.waiting:
            if not self.ended:
                self.callers.append((offset, done))
                self.wakeup()
                return
        done()

    def run(self) -> None:
        """Flush until stopped, then a last time."""
        while not self.stopping:
            self.rest()
            self.wake.clear()
            self.do_round()
        if self.commit_log.failed is None and self.commit_log.appended > self.commit_log.durable:
            self.flush()
        self.complete(everyone=True)
        self.group.open()

    def rest(self) -> None:
        """Wait for the interval, or until `wakeup`."""
        opened = self.group.before
        while opened is not None and opened.waiting:
            count = len(opened.waiting)
            if self.wake.wait(CHAIN_LOOK_SECONDS):
                return
            if count - len(opened.waiting) < CHAIN_WOKEN_MIN:
                opened.wake_all()
                self.without_chain = FORCES_WITHOUT_CHAIN
        self.wake.wait(self.interval)
        if self.asked:
            self.asked = False
            pause = min(max(self.force_seconds * ASKED_PAUSE_SHARE, ASKED_PAUSE_MIN_S), ASKED_PAUSE_MAX_S)
            self.wake.clear()
            # Checked after the clear: a caller that sets the event from now on ends the wait below.
            if not (self.stopping or self.callers or self.group.is_awaited):
                self.wake.wait(max(0.0, self.forced_at + pause - self.clock.monotonic()))

    def do_round(self) -> None:
        """Force the log if a caller waits or enough was written, and call the callers whose offset is durable."""
        if self.commit_log.failed is not None:
            self.tell_failure()
            self.complete()
            return
        now = self.clock.monotonic()
        behind = self.commit_log.appended - self.commit_log.durable
        thorough = now - self.last_thorough >= self.thorough_interval
        if (
            self.group.is_awaited
            or self.commit_log.durable > self.told_durable
            or (behind and (self.callers or self.durable_wanted or self.hides_unforced or thorough))
            or (behind and self.is_worthwhile())
        ):
            self.flush()
            self.last_thorough = now
        self.complete()
        self.on_idle()

    def is_worthwhile(self) -> bool:
        """Tell whether enough was appended for a force without a request."""
        log = self.commit_log
        return is_able_to_flush(log.appended, log.durable, self.least_pages, is_full=len(log.unforced) > 1)

    def flush(self, on_forced: Callable[[], None] = nothing) -> None:
        """Force the log once, and wake the threads that wait for it. A failure is reported once; there is no retry.

        *on_forced* is called after a success, before anything else.
        """
        with self.flushing:
            group = self.group
            self.group = WakeupChain(self.wakeup, group)
            known_before = self.before_flush()
            group.begun.release()
            begun_at = self.clock.monotonic()
            try:
                durable = self.commit_log.flush()
            except StoreError:
                self.tell_failure()
            else:
                on_forced()
                self.on_durable(durable, known_before)
                self.told_durable = durable
            self.forced_at = self.clock.monotonic()
            self.force_seconds = self.forced_at - begun_at
            self.force_times.note(self.force_seconds)
            group.open()
            if self.without_chain:
                self.without_chain -= 1
                group.wake_all()
            if self.ended:
                self.group.open()

    def tell_failure(self) -> None:
        """Call *on_failure* unless it was called before. The failure may be one of a commit."""
        if self.commit_log.failed is None:
            return
        if not self.told_failure:
            self.told_failure = True
            self.on_failure(self.commit_log.failed)
        # There is no further force: later threads must not wait.
        self.group.open()

    def end_waits(self, reason: str) -> None:
        """Wake all waiting threads: this thread, or the committer, has died. The store no longer puts or forces."""
        log = self.commit_log
        try:
            # First: later puts would be lost after the last commit.
            self.on_failure(reason)
            with contextlib.suppress(StoreError):
                log.commit()
        finally:
            self.told_failure = True
            if log.failed is None:
                log.failed = reason
            self.group.open()
            self.complete(everyone=True)

    def complete(self, everyone: bool = False) -> None:
        """Call the callers whose offset is durable; with *everyone*, all of them, since there is no further force."""
        with self.waiting:
            self.ended = everyone
            # Not the log's own offset: a put may have forced it, or failed to, and *on_durable* comes first.
            everyone = everyone or self.told_failure
            durable = self.told_durable
            released = [done for offset, done in self.callers if everyone or offset <= durable]
            self.callers = [] if everyone else [caller for caller in self.callers if caller[0] > durable]
            appended = self.commit_log.appended
            if any(offset <= appended for offset, _ in self.callers):
                self.wakeup()
        for done in released:
            done()
