"""Bloom filter: the bits that represent a consumer group's filter in the bit map of a message.

The error rate and the expected number of filters determine k, the bits per filter, and m, the bits per map. Bit b lies
in byte b // 8 under the mask 1 << b % 8; read as a little-endian number, the map has bit b at position b.

Source: RocketMQ filter, BloomFilter, BloomFilterData and BitsArray.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reput.filter.murmur3 import murmur3_hash64

__all__ = ["BloomFilter", "BloomFilterData"]


@dataclass(frozen=True, slots=True)
class BloomFilterData:
    """The bits of one filter, as ``consumerFilter.json`` stores them.

    Attributes:
        bit_positions: its bits, in the order of their calculation; the same bit may occur twice.
        bit_count: number of bits of the map that they belong to.
    """

    bit_positions: tuple[int, ...]
    bit_count: int

    @property
    def mask(self) -> int:
        """All its bits as a number, to compare with a map read as a little-endian number."""
        mask = 0
        for position in self.bit_positions:
            mask |= 1 << position
        return mask


class BloomFilter:
    """Calculates sizes from an error rate and an expected number of filters, and the bits of each filter.

    Attributes:
        hash_count: k, bits per filter.
        bit_count: m, bits per map, a multiple of 8.
    """

    def __init__(self, error_rate_percent: int, expected_count: int) -> None:
        """Calculate the sizes.

        Args:
            error_rate_percent: RocketMQ's ``maxErrorRateOfBloomFilter``, 1 to 99.
            expected_count: filters per topic, RocketMQ's ``expectConsumerNumUseFilter``, at least 1.

        Raises:
            ValueError: one of the two is out of range.
        """
        if not 1 <= error_rate_percent < 100:
            raise ValueError(f"an error rate is from 1 to 99 percent: error_rate_percent={error_rate_percent}")
        if expected_count < 1:
            raise ValueError(f"a Bloom filter expects at least one filter: expected_count={expected_count}")
        # Quotients of natural logarithms, as in Java: math.log2 could round to the other side of a whole number.
        error_rate = error_rate_percent / 100.0
        self.hash_count = math.ceil(math.log(error_rate) / math.log(0.5))
        bits_per_filter = math.log(1 / error_rate) / math.log(2)
        bit_count = math.ceil(expected_count * bits_per_filter * (math.log(math.e) / math.log(2)))
        self.bit_count = -(-bit_count // 8) * 8

    def calculate(self, text: str) -> BloomFilterData:
        """Return the bits of *text*."""
        hash64 = murmur3_hash64(text.encode("utf-8", "replace"))
        low = _int32(hash64)
        high = _int32(hash64 >> 32)
        positions = []
        for ordinal in range(1, self.hash_count + 1):
            combined = _int32(low + ordinal * high)
            positions.append((~combined if combined < 0 else combined) % self.bit_count)
        return BloomFilterData(tuple(positions), self.bit_count)

    def calculate_for(self, group: str, topic: str) -> BloomFilterData:
        """Return the bits of the filter that consumer group *group* has on *topic*."""
        return self.calculate(f"{group}#{topic}")

    def is_valid(self, data: BloomFilterData) -> bool:
        """Return whether *data*, which may come from a file, was calculated with these sizes."""
        return (
            data.bit_count == self.bit_count
            and len(data.bit_positions) == self.hash_count
            and all(0 <= position < self.bit_count for position in data.bit_positions)
        )


def _int32(value: int) -> int:
    return (value + 0x8000_0000 & 0xFFFF_FFFF) - 0x8000_0000
