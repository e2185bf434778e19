"""MurmurHash3, the 128-bit variant for 64-bit machines, with seed 0.

The module computes only the first 64 of its 128 bits, as a signed number, like Guava's
``murmur3_128().hashBytes(b).asLong()``, on which RocketMQ's Bloom filter is built.

Source: MurmurHash3_x64_128 of Austin Appleby's public-domain MurmurHash3.
"""

from __future__ import annotations

__all__ = ["murmur3_hash64"]

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_C1 = 0x87C3_7B91_1142_53D5
_C2 = 0x4CF5_AD43_2745_937F
_BLOCK_SIZE = 16


def murmur3_hash64(data: bytes) -> int:
    """Return the first 64 bits of the hash of *data*, from -2**63 to 2**63 - 1."""
    h1 = h2 = 0
    tail_at = len(data) - len(data) % _BLOCK_SIZE
    for at in range(0, tail_at, _BLOCK_SIZE):
        k1 = int.from_bytes(data[at : at + 8], "little")
        k2 = int.from_bytes(data[at + 8 : at + 16], "little")
        h1 = _rotate_left(h1 ^ _mix_k1(k1), 27) + h2 & _MASK
        h1 = h1 * 5 + 0x52DC_E729 & _MASK
        h2 = _rotate_left(h2 ^ _mix_k2(k2), 31) + h1 & _MASK
        h2 = h2 * 5 + 0x3849_5AB5 & _MASK
    # The tail is padded with zeros; a mixed zero is zero.
    h1 ^= _mix_k1(int.from_bytes(data[tail_at : tail_at + 8], "little"))
    h2 ^= _mix_k2(int.from_bytes(data[tail_at + 8 :], "little"))

    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1 = _final_mix(h1) + _final_mix(h2) & _MASK
    return h1 - ((h1 >> 63) << 64)


def _mix_k1(k1: int) -> int:
    return _rotate_left(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_k2(k2: int) -> int:
    return _rotate_left(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate_left(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _MASK


def _final_mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return value ^ value >> 33
