"""Runs of bytes, such as the properties of records, put one behind the other: thousands at a time with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["WORD_SIZE", "join_runs"]

# Bytes copied at once. Most texts take one or two such words, and a word costs about as much as a byte.
WORD_SIZE = 32

Array = np.ndarray[Any, Any]


def join_runs(buffer: Array, begin: Array, size: Array, gap: int = 0) -> tuple[Array, Array]:
    """Return an array with the runs of bytes of *buffer* in their order, and where in the array each run begins.

    *gap* undefined bytes precede each run, and `WORD_SIZE` further ones the first run.

    Args:
        begin, size: of each run; `WORD_SIZE` bytes of *buffer* must precede a run that is not empty.
    """
    word_count = (size + (WORD_SIZE - 1)) // WORD_SIZE
    words_until = np.cumsum(word_count)
    total = int(words_until[-1]) if len(size) else 0
    end = np.cumsum(size + gap) + WORD_SIZE
    joined = np.empty(int(end[-1]) if len(size) else WORD_SIZE, np.uint8)
    # Words count back from the end of their run, so the first one may begin before it. The run before is copied
    # afterwards, and restores the overwritten bytes.
    steps = WORD_SIZE * np.arange(total - 1, -1, -1)
    backwards = slice(None, None, -1)
    word_count = word_count[backwards]
    source_at = steps + np.repeat((begin + size - WORD_SIZE * words_until)[backwards], word_count)
    target_at = steps + np.repeat((end - WORD_SIZE * words_until)[backwards], word_count)
    if total:
        assert source_at.min() >= 0
        words_at(joined)[target_at] = words_at(buffer)[source_at]
    return joined, end - size


def words_at(buffer: Array) -> Array:
    """Return the word that begins at each byte, as one element."""
    return np.ndarray((len(buffer) - WORD_SIZE + 1,), f"V{WORD_SIZE}", buffer, strides=(1,))
