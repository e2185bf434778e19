"""Keys of a batch: the space-separated parts of texts."""

from __future__ import annotations

import random

import numpy as np

from reput.filter.string_hash import string_hash
from reput.store.index.index_keys import KeyHashes, split_at_spaces
from reput.store.log.log_scan import ROW_DTYPE


def test_runs_fall_into_the_parts_between_their_spaces():
    """Several spaces, spaces at the ends, spaces between the runs, and runs of only spaces."""
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
    """For example of records with one key each."""
    row, begin, end = np.array([0, 3]), np.array([1, 4]), np.array([3, 6])
    assert [column.tolist() for column in split_at_spaces(b" ab cd ", row, begin, end)] == [[0, 3], [1, 4], [3, 6]]


def test_tags_come_behind_the_keys_of_their_record():
    """Under ``topic#T#tags``, even with other texts in between, and only if requested."""
    records = [("u1", "k1 k2", "", "", "paid"), ("", "k3", "a,b\x021,2", "P\x01v\x02", "ä😀"), ("u3", "", "", "", "")]
    rows = np.zeros(len(records), ROW_DTYPE)
    for row, record in zip(rows, records, strict=True):
        sizes = [len(text.encode()) for text in record]
        for name, size in zip(("uniq_key", "keys", "multi_dispatch", "properties"), sizes, strict=False):
            row[f"{name}_size"] = size or -1
        row["texts_size"] = sum(sizes)
    texts = "".join("".join(record) for record in records).encode()
    keys = [(0, "t#u1"), (0, "t#k1"), (0, "t#k2"), (1, "t#k3"), (2, "t#u3")]
    tags = [(0, "t#T#paid"), (1, "t#T#ä😀")]
    for with_tags in (False, True):
        expected = sorted([*keys, *(tags if with_tags else ())], key=lambda entry: entry[0])
        row, hashes, is_tags = KeyHashes().find(rows, [("t", 0)], texts, with_tags=with_tags)
        assert row.tolist() == [number for number, _ in expected]
        assert hashes.tolist() == [abs(string_hash(text)) for _, text in expected]
        assert is_tags.tolist() == ["#T#" in text for _, text in expected]
