"""LogClock: the clock by which a log and its transactions age. A jump of the wall clock ages nothing at once.

A wall clock may jump: a bad time server, a virtual machine that wakes up, an operator. RocketMQ trusts it, and removes
the log when a jump passes through an hour of ``deleteWhen``. LogClock starts at the log's newest store time, or at the
wall clock if the two agree at the opening, and advances by the monotonic clock. While the wall clock disagrees, the
earlier of the two holds. After ten minutes LogClock adopts the wall clock's new time.
"""

from __future__ import annotations

import logging
import threading

from reput.store.disk.files import Clock

__all__ = ["PARTED_MS", "SETTLED_MS", "LogClock"]

# Clocks that are slewed differ by less.
PARTED_MS = 60_000
SETTLED_MS = 600_000
# After a longer pause the log's newest store time says nothing about the present time; after a shorter one it does.
IDLE_MS = 3_600_000

logger = logging.getLogger("reput.store")


class LogClock:
    """Any thread may call it. It notices a jump only when it is called."""

    def __init__(self, clock: Clock, store_timestamp: int) -> None:
        """*store_timestamp*: that of the log's newest record, 0 without one."""
        self.clock = clock
        self.lock = threading.Lock()
        now, ticks = clock.now_ms(), self.ticks()
        is_far = store_timestamp > 0 and now - store_timestamp > IDLE_MS
        # How far the wall clock was ahead of the monotonic one when it was last trusted.
        self.offset = (store_timestamp if is_far else now) - ticks
        # A different offset that the wall clock shows now, and since when.
        self.other: tuple[int, int] | None = (now - ticks, ticks) if is_far else None
        # The wall clock was set since the opening.
        self.was_set = False

    def ticks(self) -> int:
        """Return the monotonic clock in ms."""
        return round(self.clock.monotonic() * 1000)

    def now_ms(self) -> int:
        """Return the time in ms since 1970 UTC, never later than the wall clock."""
        now, ahead = self.look()
        return now - max(ahead, 0)

    def look(self) -> tuple[int, int]:
        """Return the wall clock, and how far it is ahead of the trusted time; update the trusted offset."""
        with self.lock:
            now, ticks = self.clock.now_ms(), self.ticks()
            offset = now - ticks
            ahead = offset - self.offset
            if abs(ahead) <= PARTED_MS:
                self.believe(offset)
                ahead = 0
            elif self.other is None or abs(offset - self.other[0]) > PARTED_MS:
                self.other, self.was_set = (offset, ticks), True
                logger.warning(
                    "the clock was set forward, and retention does not use it yet: clock=%d ahead_ms=%d", now, ahead
                )
            elif ticks - self.other[1] >= SETTLED_MS:
                self.believe(offset)
                ahead = 0
            return now, ahead

    def believe(self, offset: int) -> None:
        """Trust *offset*, by which the wall clock is ahead of the monotonic one. Under the lock."""
        self.offset, self.other, self.was_set = offset, None, False

    def notice(self) -> str | None:
        """Return a warning for the operator if the clock was set; None otherwise."""
        now, ahead = self.look()
        if not self.was_set:
            return None
        return (
            "this machine's clock disagrees with the log's, so nothing expires by its age until it has kept time "
            f"for {SETTLED_MS // 60_000} minutes: clock={now} ahead_ms={ahead}"
        )
