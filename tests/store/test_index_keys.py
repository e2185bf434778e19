"""Keys of a batch: the parts of texts that spaces separate."""

from __future__ import annotations

import random

import numpy as np

from reput.store.index_keys import split_at_spaces


def test_runs_fall_into_the_parts_between_their_spaces():
    """Several spaces, ones at the ends, ones between the runs, and runs of nothing else."""
    choose = random.Random(3)
    texts = bytes(choose.choices(b"ab ", k=4000))
    bounds = sorted(choose.sample(range(len(texts)), 600))
    begin, end = np.array(bounds[::2]), np.array(bounds[1::2])
    row = np.arange(len(begin)) * 2
    found = split_at_spaces(texts, row, begin, end)
    expected = []
    for number, first, behind in zip(row.tolist(), begin.tolist(), end.tolist(), strict=True):
        for part in texts[first:behind].split(b" "):
            if part:
                expected.append((number, first, first + len(part)))
            first += len(part) + 1
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


def test_runs_without_spaces_stay_as_they_are():
    """As of records with one key each."""
    row, begin, end = np.array([0, 3]), np.array([1, 4]), np.array([3, 6])
    assert [column.tolist() for column in split_at_spaces(b" ab cd ", row, begin, end)] == [[0, 3], [1, 4], [3, 6]]
