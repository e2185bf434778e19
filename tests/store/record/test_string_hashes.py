"""Java's hashes of many texts at once."""

from __future__ import annotations

import numpy as np

from reput.filter.string_hash import string_hash
from reput.store.record.string_hashes import PIECE_SIZE, StringHashes

TEXTS = ["", "a", "TagA", "标签", "", "键 😀", "x" * 300, "\ud800", "key-1"]


def test_each_text_has_the_hash_that_it_has_alone():
    """For characters of all planes, whatever text lies before and after."""
    encoded = [text.encode("utf-8", "replace") for text in TEXTS] + [b"\xff\xfe not UTF-8"]
    size = np.array([len(text) for text in encoded])
    begin = np.cumsum(size + 1) - size - 1
    hashes = StringHashes()
    # Powers computed for smaller batches are reused for larger ones.
    for count in (1, 3, len(encoded)):
        found, units = hashes.find(b"|".join(encoded[:count]), begin[:count], size[:count])
        texts = [text.decode("utf-8", "replace") for text in encoded[:count]]
        assert found.view(np.int32).tolist() == [string_hash(text) for text in texts]
        assert units.tolist() == [len(text.encode("utf-16-le")) // 2 for text in texts]


def test_many_texts_are_hashed_in_pieces():
    """Including texts that cross the boundary of a piece."""
    encoded = [b"x" * (number % 50) for number in range(6000)] + [b"y" * (PIECE_SIZE + 5), b"", "标签".encode()]
    size = np.array([len(text) for text in encoded])
    begin = np.cumsum(size) - size
    found, units = StringHashes().find(b"".join(encoded), begin, size)
    assert found.view(np.int32).tolist() == [string_hash(text.decode()) for text in encoded]
    assert units.tolist() == [len(text.decode()) for text in encoded]


def test_no_text_needs_more_powers_than_there_are():
    """Continuing from a hash uses the power for the number of units."""
    hashes = StringHashes()
    _, units = hashes.find(b"abc", np.array([0]), np.array([3]))
    assert len(hashes.powers) > units[0]
