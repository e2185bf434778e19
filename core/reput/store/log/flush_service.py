"""FlushService: the thread that forces the log to disk, and completes those who wait for it in batches.

ASYNC_FLUSH: every ``flush_interval_commit_log`` if enough pages were written, and thoroughly every
``flush_commit_log_thorough_interval``; at once when somebody here waits for durable bytes; when a dispatcher does, at
once after a pause, else a few milliseconds after the last force. SYNC_FLUSH: whenever somebody
waits, all that came meanwhile with one force (group commit).

Source: RocketMQ store, CommitLog.FlushRealTimeService and GroupCommitService.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from reput.errors import StoreError
from reput.store.disk.files import Clock
from reput.store.log.commit_log import CommitLog
from reput.store.log.wakeup_chain import WakeupChain
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads

__all__ = ["FlushService", "is_able_to_flush"]

PAGE_SIZE = 4096
# Between two forces for dispatchers lie so many seconds, and within these bounds so many times what a force takes: a
# busy writer is not to spend its time on them.
ASKED_PAUSE_MIN_S, ASKED_PAUSE_MAX_S = 0.01, 0.05
ASKED_PAUSE_SHARE = 4
# Threads that let each other go one by one do so every 50 µs, unless somebody computes, who keeps the interpreter lock
# for 5 ms from each of them. Where fewer than so many went in this time, the others are let go at once, and so are
# those of the forces that follow.
LET_GO_LOOK_SECONDS = 0.004
LET_GO_MIN = 2
CROWDED_FORCES = 20


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


class FlushService(ServiceThread):
    """One thread. *on_durable* is called after each success with the new durable offset and what *before_flush* said;
    *on_failure* once; *on_idle* after each round."""

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
        # Guards the two below: who comes while the list is gone through, or after the last time, is not forgotten.
        self.waiting = threading.Lock()
        self.callers: list[tuple[int, Callable[[], None]]] = []
        self.ended = False
        # Whom the next force that begins lets go. Who appends and then joins it is covered by that force, because the
        # flusher puts another in its place before it asks how far the log goes.
        self.group = WakeupChain(self.wakeup)
        # Forces whose threads are not to wait for each other.
        self.crowded = 0
        self.told_failure = False
        # What *on_durable* was told last: a put that finds much in memory forces the log itself.
        self.told_durable = commit_log.durable
        # Nobody is told of what is not forced, so that whoever puts without waiting is not to wait for whole pages.
        self.hides_unforced = False
        # A durable reader that is behind wants each flush as soon as it can be had, and asks while it waits for it.
        self.durable_wanted = False
        self.asked = False
        # When the last force ended, and how long it took.
        self.forced_at = self.force_seconds = 0.0
        self.last_thorough = clock.monotonic()

    def wait_durable(self, offset: int, timeout: float) -> bool:
        """Wait until the log is durable up to *offset*, which was appended; False when *timeout* seconds went by first.

        Raises:
            StoreError: the disk refused.
        """
        log = self.commit_log
        while log.durable < offset:
            group = self.group
            # The one in place is open only once nothing will be forced any more.
            if group.is_open:
                raise StoreError(log.failed or "the store was closed before the log was forced to disk")
            if not group.wait(timeout):
                return False
        return True

    def begin(self, patience: float) -> None:
        """Have all that was appended forced, and return once the flusher is about to, or *patience* seconds went by.

        A thread that does not wait keeps the interpreter lock, and so the flusher from beginning, for another 5 ms.
        """
        group = self.group
        group.ask()
        group.wait_begin(patience)

    def ask(self) -> None:
        """Have what was appended forced soon: a dispatcher has nothing to do until it is."""
        self.asked = True
        self.wakeup()

    def call_when_durable(self, offset: int, done: Callable[[], None]) -> None:
        """Have *done* called once the log is durable up to *offset* or never will be.

        By the flusher's thread; by the caller's, at once, if the flusher has ended.
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
        """Wait until the next look is due, or somebody wakes the flusher."""
        opened = self.group.before
        while opened is not None and opened.waiting:
            count = len(opened.waiting)
            if self.wake.wait(LET_GO_LOOK_SECONDS):
                return
            if count - len(opened.waiting) < LET_GO_MIN:
                opened.let_all_go()
                self.crowded = CROWDED_FORCES
        self.wake.wait(self.interval)
        if self.asked:
            self.asked = False
            pause = min(max(self.force_seconds * ASKED_PAUSE_SHARE, ASKED_PAUSE_MIN_S), ASKED_PAUSE_MAX_S)
            self.wake.clear()
            # Looked at behind that: whoever has woken the flusher since then finds it awake.
            if not (self.stopping or self.callers or self.group.is_awaited):
                self.wake.wait(max(0.0, self.forced_at + pause - self.clock.monotonic()))

    def do_round(self) -> None:
        """Force the log if that is due, and let go of those who waited for it."""
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
        """Tell whether enough was appended for a force that nobody asked for."""
        log = self.commit_log
        return is_able_to_flush(log.appended, log.durable, self.least_pages, is_full=len(log.unforced) > 1)

    def flush(self) -> None:
        """Force the log once, and let go of the threads that waited for it. A failure is reported once and never tried
        again."""
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
            self.on_durable(durable, known_before)
            self.told_durable = durable
        self.forced_at = self.clock.monotonic()
        self.force_seconds = self.forced_at - begun_at
        group.open()
        if self.crowded:
            self.crowded -= 1
            group.let_all_go()
        if self.ended:
            self.group.open()

    def tell_failure(self) -> None:
        """Call *on_failure*, if that was not done yet: it may have been a commit that failed."""
        if self.commit_log.failed is None:
            return
        if not self.told_failure:
            self.told_failure = True
            self.on_failure(self.commit_log.failed)
        # Nobody will force anything for those who come from now on.
        self.group.open()

    def end_waits(self, reason: str) -> None:
        """Let go of all who wait: the thread, or the one that commits, has died. Nothing is put or forced any more."""
        log = self.commit_log
        try:
            # First: what is put after the last commit would be lost.
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
        """Call those who asked for what is durable now, and *everyone* once nothing will be any more."""
        with self.waiting:
            self.ended = everyone
            # Not what the log says: a put may have forced it, or have failed to, and that is still to be told.
            everyone = everyone or self.told_failure
            durable = self.told_durable
            released = [done for offset, done in self.callers if everyone or offset <= durable]
            self.callers = [] if everyone else [caller for caller in self.callers if caller[0] > durable]
            appended = self.commit_log.appended
            if any(offset <= appended for offset, _ in self.callers):
                self.wakeup()
        for done in released:
            done()
