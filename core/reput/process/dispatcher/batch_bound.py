"""BatchBound: the maximum number of records, and of log bytes, in the next batch of a dispatcher.

A dispatcher that is far behind must not get a batch so large that its time limit ends it: it would get the same batch
again at its next start. So each process begins with a small batch. Batches grow while they are quick, up to the
declared maximum, and shrink when one comes near its time limit. After a kill in the middle of a batch the next process
begins with a fraction of that batch.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["BatchBound", "BatchSize", "smaller_batch"]

RECORD_COUNT_MAX = 16_384
SIZE_MAX = 16 << 20
# For a plugin that reads the log itself, one segment is better than 64 pieces.
POSITIONS_SIZE_MAX = 1 << 30
# The first batch of a process: the cost of one record is not known yet.
RECORD_COUNT_BEGIN = 256
# A slow batch below this count does not shrink further: it probably takes as long for one record as for many.
RECORD_COUNT_SHRUNK_MIN = 64
# Shares of the time limit: after quicker batches the bound may double, after slower ones it is halved. The range
# between them allows for a machine that gets busier.
QUICK_SHARE = 1 / 8
SLOW_SHARE = 1 / 2
# A killed batch used its whole time limit, and the machine may be busier than when batches grew.
KILLED_SHARE = 8


class BatchSize(msgspec.Struct, frozen=True, gc=False):
    """Records of a batch (0 if the plugin gets only positions) and log bytes that it covers."""

    record_count: int
    size: int


class Declared(Protocol):
    """The part of a `DispatcherDescription` that concerns batches."""

    @property
    def feeds(self) -> str: ...

    @property
    def batch_record_count_max(self) -> int | None: ...

    @property
    def batch_size_max(self) -> int | None: ...


class BatchBound:
    """The batch bound of one run of a dispatcher.

    Args:
        time_max_s: time limit of one batch.
        begin: bound of the first batch; None: no earlier batch was killed.

    Attributes:
        record_count: maximum records of the next batch. size: maximum log bytes, but one record is always allowed.
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
        """Adapt the bound to the time that a batch took."""
        if seconds > self.time_max_s * SLOW_SHARE:
            self.record_count = max(min(self.record_count, RECORD_COUNT_SHRUNK_MIN), self.record_count // 2)
        elif seconds < self.time_max_s * QUICK_SHARE:
            # A small batch says nothing about a large one.
            if batch.record_count * 2 > self.record_count:
                self.record_count = min(self.record_count * 2, self.record_count_max)
            if batch.size * 2 > self.size:
                self.size = min(self.size * 2, self.size_max)


def smaller_batch(killed: BatchSize) -> BatchSize:
    """Return the first bound for the next process, after one was killed in the middle of a batch."""
    return BatchSize(max(1, killed.record_count // KILLED_SHARE), max(1, killed.size // KILLED_SHARE))
