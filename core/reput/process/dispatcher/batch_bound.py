"""BatchBound: how many records, and how many bytes of the log, the next batch of a dispatcher may have.

A dispatcher that is far behind must not get so much at once that its time limit ends it, since it would get the same
again at its next start. So a life begins with a small batch. Batches grow while they are quick, up to what the plugin
declares, and shrink when one comes near its time limit. After a kill in the middle of a batch the next life begins with
a fraction of that batch.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["BatchBound", "BatchSize", "smaller_batch"]

RECORD_COUNT_MAX = 16_384
SIZE_MAX = 16 << 20
# A plugin that reads the log itself would rather have one segment than 64 pieces.
POSITIONS_SIZE_MAX = 1 << 30
# The first batch of a life: what one record costs is not known yet.
RECORD_COUNT_BEGIN = 256
# Below it a batch that took long is not made smaller: its time is probably the same for one record and for many.
RECORD_COUNT_SHRUNK_MIN = 64
# Shares of the time limit: quicker batches may double, slower ones are halved. Between the two lies what a machine that
# grows busy takes away.
QUICK_SHARE = 1 / 8
SLOW_SHARE = 1 / 2
# One that was killed has had all its time, and the machine may be busier than it was when batches grew.
KILLED_SHARE = 8


class BatchSize(NamedTuple):
    """Records of a batch, 0 where a plugin gets positions alone, and bytes of the log that it covers."""

    record_count: int
    size: int


class Declared(Protocol):
    """Of a `DispatcherDescription`, what concerns batches."""

    @property
    def feeds(self) -> str: ...

    @property
    def batch_record_count_max(self) -> int | None: ...

    @property
    def batch_size_max(self) -> int | None: ...


class BatchBound:
    """The bound of one life of a dispatcher.

    Args:
        time_max_s: time limit of one batch.
        begin: bound of the first batch; None: nothing went wrong before.

    Attributes:
        record_count: of the next batch, at most. size: bytes of the log, at most, but one record always goes.
    """

    def __init__(self, declared: Declared, time_max_s: float, begin: BatchSize | None = None) -> None:
        positions = declared.feeds == "positions"
        self.time_max_s = time_max_s
        self.record_count_max = declared.batch_record_count_max or RECORD_COUNT_MAX
        self.size_max = declared.batch_size_max or (POSITIONS_SIZE_MAX if positions else SIZE_MAX)
        first = begin or BatchSize(RECORD_COUNT_BEGIN, self.size_max)
        self.record_count = max(1, min(first.record_count, self.record_count_max))
        self.size = max(1, min(first.size, self.size_max))

    def took(self, batch: BatchSize, seconds: float) -> None:
        """Take up how long a batch took."""
        if seconds > self.time_max_s * SLOW_SHARE:
            self.record_count = max(min(self.record_count, RECORD_COUNT_SHRUNK_MIN), self.record_count // 2)
        elif seconds < self.time_max_s * QUICK_SHARE:
            # A small batch says nothing about a large one.
            if batch.record_count * 2 > self.record_count:
                self.record_count = min(self.record_count * 2, self.record_count_max)
            if batch.size * 2 > self.size:
                self.size = min(self.size * 2, self.size_max)


def smaller_batch(killed: BatchSize) -> BatchSize:
    """Return with what to begin after a process was killed in the middle of a batch."""
    return BatchSize(max(1, killed.record_count // KILLED_SHARE), max(1, killed.size // KILLED_SHARE))
