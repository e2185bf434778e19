"""BlockSums: for each block of the log, the number of records or rows that begin in it, and a sum of their offsets.

If a block has the same count and sum in the log and in the rows, both have the same offsets: none is missing, doubled
or superfluous. The bits of each offset are mixed before they are added, so different sets of offsets have equal sums
with a probability of only 2**-64. The sum does not depend on the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["BLOCK_SIZE", "BlockSums"]

BLOCK_SIZE = 1 << 20

Array = np.ndarray[Any, Any]


class BlockSums:
    """Counts and sums of the blocks in which a record or row begins.

    Attributes:
        blocks: their numbers, ascending.
        counts, sums: one element per block; sums wrap around.
    """

    def __init__(self) -> None:
        self.blocks: Array = np.empty(0, np.int64)
        self.counts: Array = np.empty(0, np.int64)
        self.sums: Array = np.empty(0, np.uint64)

    def add(self, commit_log_offset: Array) -> None:
        """Add offsets."""
        blocks, block_of = np.unique(commit_log_offset // BLOCK_SIZE, return_inverse=True)
        sums = np.zeros(len(blocks), np.uint64)
        np.add.at(sums, block_of, mixed(commit_log_offset))
        self.join(blocks, np.bincount(block_of, minlength=len(blocks)), sums)

    def merge(self, other: BlockSums) -> None:
        """Add the sums of *other*."""
        self.join(other.blocks, other.counts, other.sums)

    def join(self, blocks: Array, counts: Array, sums: Array) -> None:
        """Add counts and sums of distinct *blocks*."""
        joined, place = np.unique(np.concatenate((self.blocks, blocks)), return_inverse=True)
        joined_counts, joined_sums = np.zeros(len(joined), np.int64), np.zeros(len(joined), np.uint64)
        for first, more_counts, more_sums in ((0, self.counts, self.sums), (len(self.blocks), counts, sums)):
            places = place[first : first + len(more_counts)]
            joined_counts[places] += more_counts
            joined_sums[places] += more_sums
        self.blocks, self.counts, self.sums = joined, joined_counts, joined_sums

    def different(self, other: BlockSums) -> list[int]:
        """Return the numbers of the blocks in which *other* differs, ascending."""
        difference = BlockSums()
        difference.merge(self)
        difference.join(other.blocks, -other.counts, np.uint64(0) - other.sums)
        found: list[int] = difference.blocks[(difference.counts != 0) | (difference.sums != 0)].tolist()
        return found


def mixed(numbers: Array) -> Array:
    """Return *numbers* with their bits mixed, as SplitMix64 does; products wrap."""
    mixing = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixing = (mixing ^ (mixing >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixing = (mixing ^ (mixing >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixing ^ (mixing >> np.uint64(31))
