"""ForceTimes: how long the forces of a log took, in buckets, since the store was opened.

The flusher alone counts: one search among a dozen bounds for each force, and nothing for a put.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

__all__ = ["FORCE_BOUNDS_MS", "ForceTimes", "ForceTotals"]

# From a disk with a battery-backed cache up to one that hangs; a longer force falls into the bucket behind the last.
FORCE_BOUNDS_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0, 5000.0)


class ForceTotals(msgspec.Struct, frozen=True):
    """The forces since the store was opened.

    Attributes:
        force_nums: how many there were.
        force_time_total_ms: the sum of their durations.
        force_distribute: how many forces took how long: one number for each bound of `FORCE_BOUNDS_MS`, and a last one
            for longer forces.
    """

    force_nums: int
    force_time_total_ms: float
    force_distribute: list[int]


class ForceTimes:
    """One thread counts; any thread may ask for the totals."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(FORCE_BOUNDS_MS) + 1)
        self.total_ms = 0.0

    def note(self, seconds: float) -> None:
        """Count a force that took so long."""
        milliseconds = seconds * 1000
        self.buckets[bisect_left(FORCE_BOUNDS_MS, milliseconds)] += 1
        self.total_ms += milliseconds

    def totals(self) -> ForceTotals:
        """Return the totals until now."""
        buckets = list(self.buckets)
        return ForceTotals(sum(buckets), round(self.total_ms, 3), buckets)
