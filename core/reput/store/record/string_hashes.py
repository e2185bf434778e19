"""Java's ``String.hashCode`` of many texts at once, with numpy.

It is a polynomial in 31, so the hash of a run of bytes is a difference of two running sums over all of them:

    sum[k]    = Σ text[i] / 31^i   over i < k             1/31 exists modulo 2^32, because 31 is odd
    hash[a:b] = (sum[b] - sum[a]) * 31^(b-1)

Source: java.lang.String.hashCode, as `reput.filter.string_hash`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from reput.filter.string_hash import string_hash

__all__ = ["StringHashes"]

INVERSE_OF_31 = pow(31, -1, 1 << 32)
PIECE_SIZE = 1 << 16

Array = np.ndarray[Any, Any]


class StringHashes:
    """Hashes runs of bytes, UTF-8; keeps the powers of 31.

    Attributes:
        powers: of 31 modulo 2**32, as many as were needed so far.
    """

    def __init__(self) -> None:
        self.powers = np.ones(1, np.uint32)
        self.inverse_powers = np.ones(1, np.uint32)

    def find(self, texts: bytes, begin: Array, size: Array) -> tuple[Array, Array]:
        """Return for each run of *size* bytes from *begin* on its hash, as unsigned 32 bits, and its UTF-16 units.

        The runs ascend. They are taken a piece of *texts* at a time, which bounds the sums and powers.
        """
        hashes = np.empty(len(begin), np.uint32)
        units = size.copy()
        bounds = [0, len(begin)]
        if len(texts) > PIECE_SIZE:
            bounds[1:1] = np.searchsorted(begin, np.arange(PIECE_SIZE, len(texts), PIECE_SIZE)).tolist()
        for first, behind in pairwise(bounds):
            if first < behind:
                runs = slice(first, behind)
                base, end = int(begin[first]), int(begin[behind - 1] + size[behind - 1])
                self.find_in_piece(texts[base:end], begin[runs] - base, units[runs], hashes[runs])
        return hashes, units

    def find_in_piece(self, texts: bytes, begin: Array, units: Array, hashes: Array) -> None:
        """Set the hash of each run of *texts*, and its units, which are its bytes yet."""
        hashes[:] = self.hash_ascii(texts, begin, units)
        if not texts.isascii():
            self.hash_others(texts, begin, units, hashes)

    def hash_ascii(self, texts: bytes, begin: Array, size: Array) -> Array:
        """Return the hash of each run of *texts*, as if every byte were a character."""
        self.extend_powers(len(texts) + 1)
        sums = np.zeros(len(texts) + 1, np.uint32)
        np.cumsum(np.frombuffer(texts, np.uint8) * self.inverse_powers[: len(texts)], dtype=np.uint32, out=sums[1:])
        end = begin + size
        # An empty text has the hash 0, whatever its place is multiplied with.
        hashes: Array = (sums[end] - sums[begin]) * self.powers[np.maximum(end - 1, 0)]
        return hashes

    def hash_others(self, texts: bytes, begin: Array, units: Array, hashes: Array) -> None:
        """Put right the hashes and the numbers of UTF-16 units of texts that are not ASCII."""
        others = np.concatenate(([0], np.cumsum(np.frombuffer(texts, np.uint8) > 127)))
        for number in np.flatnonzero(others[begin + units] > others[begin]).tolist():
            at = int(begin[number])
            text = texts[at : at + int(units[number])].decode("utf-8", "replace")
            hashes[number] = string_hash(text) & 0xFFFFFFFF
            units[number] = len(text.encode("utf-16-le", "surrogatepass")) // 2

    def extend_powers(self, count: int) -> None:
        """Compute the first *count* powers of 31 and of its inverse."""
        if count > len(self.powers):
            count = max(count, 2 * len(self.powers))
            self.powers = powers_of(31, count)
            self.inverse_powers = powers_of(INVERSE_OF_31, count)


def powers_of(number: int, count: int) -> Array:
    """Return the first *count* powers of *number* modulo 2**32."""
    factors = np.full(count, number, np.uint32)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint32)
