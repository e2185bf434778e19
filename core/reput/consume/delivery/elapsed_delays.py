"""ElapsedDelays: until when messages of one delay level wait that were put while the wall clock was behind the log.

Store times never go back. Until a clock that was set back has caught up with the log, all messages get the same store
time, so the deliver times of their units do not tell how long they have waited. The monotonic clock does.
"""

from __future__ import annotations

from collections import deque

__all__ = ["ElapsedDelays"]

# Messages that were put within this part of their delay wait as long as the last of them.
PART = 64
PART_MS_MIN = 20


class Stretch:
    """Queue offsets from *begin* to *end*, first put at *first*; they wait until *until*: ms of a monotonic clock."""

    __slots__ = ("begin", "end", "first", "until")

    def __init__(self, begin: int, end: int, first: int, until: int) -> None:
        self.begin = begin
        self.end = end
        self.first = first
        self.until = until


class ElapsedDelays:
    """The stretches of one level; some `PART` of them at a time. Guarded by its service's condition.

    Attributes:
        end: the level's queue offset after the last message that was noticed.
    """

    __slots__ = ("end", "stretches")

    def __init__(self, end: int) -> None:
        self.end = end
        self.stretches: deque[Stretch] = deque()

    def note(self, end: int, ticks: int, delay: int) -> None:
        """Take note of messages up to *end*, put at *ticks* with *delay*."""
        if end == self.end:
            return
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.end == self.end and ticks - last.first <= max(delay // PART, PART_MS_MIN):
            last.end, last.until = end, ticks + delay
        else:
            self.stretches.append(Stretch(self.end, end, ticks, ticks + delay))
        self.end = end

    def left(self, queue_offset: int, ticks: int) -> int | None:
        """Return for how many ms a message still waits; None: it was put while the clock was not behind."""
        for stretch in self.stretches:
            if stretch.begin <= queue_offset < stretch.end:
                return max(stretch.until - ticks, 0)
        return None

    def forget(self, queue_offset: int) -> None:
        """Forget what lies before *queue_offset*, because it was delivered."""
        while self.stretches and self.stretches[0].end <= queue_offset:
            self.stretches.popleft()
