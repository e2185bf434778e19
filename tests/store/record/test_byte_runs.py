"""Runs of bytes, concatenated."""

from __future__ import annotations

import random

import numpy as np
import pytest

from reput.store.record.byte_runs import WORD_SIZE, join_runs

DATA = random.Random(5).randbytes(5000)


@pytest.mark.parametrize("gap", [0, 1, 3])
@pytest.mark.parametrize("size_max", [0, 1, WORD_SIZE - 1, WORD_SIZE, 5 * WORD_SIZE])
def test_runs_come_in_their_order_whatever_their_sizes(gap, size_max):
    """Empty ones, ones of a few words, and ones that end with the data."""
    choose = random.Random(size_max)
    size = [choose.randint(0, size_max) for _ in range(200)] + [0, size_max]
    begin = [choose.randint(WORD_SIZE, len(DATA) - length) for length in size]
    begin[-1] = len(DATA) - size[-1]
    joined, at = join_runs(np.frombuffer(DATA, np.uint8), np.array(begin), np.array(size), gap)
    found = [joined[start : start + length].tobytes() for start, length in zip(at.tolist(), size, strict=True)]
    assert found == [DATA[start : start + length] for start, length in zip(begin, size, strict=True)]
    assert at.tolist() == [WORD_SIZE + gap * (number + 1) + sum(size[:number]) for number in range(len(size))]
    assert len(joined) == at[-1] + size[-1]


def test_without_runs_there_is_nothing_but_the_room_before_them():
    """For example of a batch whose records have no tag."""
    nothing = np.empty(0, np.int64)
    joined, at = join_runs(np.frombuffer(DATA, np.uint8), nothing, nothing)
    assert (len(joined), len(at)) == (WORD_SIZE, 0)
