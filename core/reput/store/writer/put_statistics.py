"""PutStatistics: how long puts took, and how many there were a second, since the store was opened.

Almost every put takes less than a millisecond. Such a put costs two readings of the clock and one comparison: the count
of its bucket is that of all messages minus those of the other buckets.

Source of the buckets and of the periods: RocketMQ store, StoreStatsService.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable

import msgspec

__all__ = ["BUCKET_BEGINS_MS", "DISTRIBUTION", "PutStatistics", "PutTotals"]

# The first one is "less than a millisecond"; of each other one the whole milliseconds that it begins with.
BUCKET_BEGINS_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)
DISTRIBUTION = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
assert len(DISTRIBUTION) == len(BUCKET_BEGINS_MS) + 1
FAST_S = BUCKET_BEGINS_MS[0] / 1000
SAMPLE_INTERVAL_S = 1.0
PERIODS_S = (10, 60, 600)


class PutTotals(msgspec.Struct, frozen=True):
    """The puts since the store was opened.

    Attributes:
        put_nums, put_size: messages, and bytes of their records.
        put_size_average: bytes of a record; None: there was none.
        put_tps: messages a second in the last 10, 60 and 600 seconds; None: the store is not open for that long yet.
        put_entire_time_max_ms: duration of the longest put; None: there was no put. With SYNC_FLUSH it includes the
            wait for the disk, unless the caller appends first and waits later.
        put_distribute_time: messages by the duration of their put call, in RocketMQ's buckets.
    """

    put_nums: int
    put_size: int
    put_size_average: float | None
    put_tps: dict[str, float | None]
    put_entire_time_max_ms: float | None
    put_distribute_time: dict[str, int]


class PutStatistics:
    """The times of one store's puts.

    Args:
        monotonic: seconds that never go back.
        message_count: gives how many messages were ever put.
        tells_all: every call is noted, and not only those above `threshold`.

    Attributes:
        threshold: seconds. The writer notes each call that took more.
    """

    # The kernel reads the slot at each put.
    __slots__ = ("__dict__", "threshold")

    def __init__(self, monotonic: Callable[[], float], message_count: Callable[[], int], *, tells_all: bool) -> None:
        self.monotonic = monotonic
        self.message_count = message_count
        self.tells_all = tells_all
        self.count_before = message_count()
        self.lock = threading.Lock()
        self.buckets = [0] * len(DISTRIBUTION)
        self.longest = 0.0
        self.threshold = 0.0
        # (time, messages ever put) at the beginning of each second or later, as far back as the longest period.
        self.samples: deque[tuple[float, int]] = deque(maxlen=PERIODS_S[-1] + 1)
        self.sample()

    def note(self, seconds: float, count: int) -> None:
        """A call that put *count* messages took so long. Any thread."""
        with self.lock:
            if seconds > self.longest:
                self.longest = seconds
                self.threshold = min(seconds, FAST_S)
            number = bisect_right(BUCKET_BEGINS_MS, int(seconds * 1000))
            if number or self.tells_all:
                self.buckets[number] += count

    def sample(self) -> None:
        """Remember how many messages there are now, once a second at most; one thread calls, every now and then."""
        now = self.monotonic()
        if not self.samples or now - self.samples[-1][0] >= SAMPLE_INTERVAL_S:
            self.samples.append((now, self.message_count()))

    def tps(self, period: float) -> float | None:
        """Return the messages a second in the last *period* seconds; None where that is not known."""
        now = self.monotonic()
        begin = now - period
        # The latest sample from before the period; the deque is short.
        before = next(((at, count) for at, count in reversed(list(self.samples)) if at <= begin), None)
        return None if before is None else round((self.message_count() - before[1]) / (now - before[0]), 3)

    def totals(self, put_size: int) -> PutTotals:
        """Return the totals until now; *put_size*: bytes of all records put."""
        put_nums = self.message_count() - self.count_before
        with self.lock:
            buckets, longest = list(self.buckets), self.longest
        if not self.tells_all:
            buckets[0] = max(0, put_nums - sum(buckets))
        return PutTotals(
            put_nums=put_nums,
            put_size=put_size,
            put_size_average=round(put_size / put_nums, 1) if put_nums else None,
            put_tps={f"{period}s": self.tps(period) for period in PERIODS_S},
            put_entire_time_max_ms=round(longest * 1000, 3) if longest else None,
            put_distribute_time=dict(zip(DISTRIBUTION, buckets, strict=True)),
        )
