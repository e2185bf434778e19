"""Seqlock: a few bytes in shared memory that are always read whole, even if their writer died while writing.

One writer at a time, any number of readers in any process. `reput.ring.layout` draws the bytes. The value is stored
twice, and the writer replaces the older copy: with one copy, a writer killed in mid-write would block all readers.
"""

from __future__ import annotations

from reput.ring.layout import WORD_SIZE, seqlock_size
from reput.ring.word_access import Words

__all__ = ["Seqlock"]


class Seqlock:
    """The seqlock of *capacity* bytes at byte *at*; *words* and *octets* are the same memory."""

    __slots__ = ("_at", "_copy_size", "_octets", "_words", "capacity")

    def __init__(self, words: Words, octets: memoryview, at: int, capacity: int) -> None:
        assert at % WORD_SIZE == 0
        assert at + seqlock_size(capacity) <= len(octets)
        self._words = words
        self._octets = octets
        self._at = at
        self._copy_size = WORD_SIZE + capacity
        self.capacity = capacity

    def read(self) -> bytes | None:
        """Return the value of the last complete write, None before the first write."""
        words, sequence_index = self._words, self._at // WORD_SIZE
        while True:
            sequence = words[sequence_index]
            if sequence == 0:
                return None
            at = self._copy_at(sequence)
            size = words[at // WORD_SIZE]
            value = bytes(self._octets[at + WORD_SIZE : at + WORD_SIZE + min(size, self.capacity)])
            # The writer touches this copy again only after storing the next sequence.
            if words[sequence_index] == sequence:
                return value

    def write(self, value: bytes) -> None:
        """Replace the value; bytes beyond the capacity are cut off."""
        words, sequence_index = self._words, self._at // WORD_SIZE
        value = value[: self.capacity]
        sequence = words[sequence_index] + 1
        at = self._copy_at(sequence)
        words[at // WORD_SIZE] = len(value)
        self._octets[at + WORD_SIZE : at + WORD_SIZE + len(value)] = value
        words[sequence_index] = sequence

    def _copy_at(self, sequence: int) -> int:
        return self._at + WORD_SIZE + (sequence & 1) * self._copy_size
