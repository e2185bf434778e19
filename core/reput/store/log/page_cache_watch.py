"""PageCacheWatch: detects that the put which holds the put lock is stuck waiting for a page of the page cache.

Every further put would only queue up behind it, so the store refuses puts until it continues. A look takes no lock and
never blocks: while the log grows, the put that holds the lock is at work, however many wait for the lock. The flusher
looks in each round; each put decides by what it finds itself whether it is refused.

Source: RocketMQ store, DefaultMessageStore.isOSPageCacheBusy.
"""

from __future__ import annotations

import threading

from reput.store.disk.files import Clock
from reput.store.log.commit_log import CommitLog

__all__ = ["PageCacheWatch"]


class PageCacheWatch:
    """Looks at the put lock in each round of the flusher, and when a put comes.

    Attributes:
        busy: the lock was held, and nothing was appended, for *timeout_ms* and longer.
    """

    def __init__(self, put_lock: threading.Lock, commit_log: CommitLog, clock: Clock, timeout_ms: int) -> None:
        self.put_lock = put_lock
        self.commit_log = commit_log
        self.clock = clock
        self.timeout = timeout_ms / 1000
        self.busy = False
        self.seen_appended = -1
        self.seen_at = 0.0
        # Where the log ended when a put found the lock held, and since when it has; -1: no put has found that.
        self.held_appended = -1
        self.held_since = 0.0

    def is_stuck(self) -> bool:
        """Tell whether a new put would queue up behind a stuck one."""
        if not self.put_lock.locked():
            return False
        appended = self.commit_log.appended
        if self.busy and appended == self.seen_appended:
            return True
        # The flusher may be stuck, too.
        now = self.clock.monotonic()
        if appended != self.held_appended:
            self.held_appended, self.held_since = appended, now
        return now - self.held_since >= self.timeout

    def look(self) -> None:
        """Look once."""
        appended = self.commit_log.appended
        now = self.clock.monotonic()
        if not self.put_lock.locked() or appended != self.seen_appended:
            self.seen_appended, self.seen_at = appended, now
            self.busy = False
            self.held_appended = -1
        elif now - self.seen_at >= self.timeout:
            self.busy = True
