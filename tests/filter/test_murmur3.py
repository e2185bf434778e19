"""MurmurHash3; its place in RocketMQ's Bloom filter is tested with that filter's vectors."""

from __future__ import annotations

import pytest

from reput.filter.murmur3 import murmur3_hash64

SENTENCE = b"The quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize(
    ("data", "hash64"),
    [
        # The first eight bytes of the published 128-bit results.
        (b"", 0),
        (SENTENCE, 0xE34BBC7BBC071B6C - 2**64),
        (SENTENCE + b".", 0xCD99481F9EE902C9 - 2**64),
    ],
)
def test_known_answers(data, hash64):
    """The reference implementation gives the same."""
    assert murmur3_hash64(data) == hash64


def test_each_length_of_a_tail_is_read_to_its_end():
    """Blocks have 16 bytes; the remaining bytes count, too."""
    assert len({murmur3_hash64(SENTENCE[:size]) for size in range(len(SENTENCE))}) == len(SENTENCE)
    assert all(murmur3_hash64(bytes(size)) != murmur3_hash64(bytes(size - 1) + b"\x01") for size in range(1, 40))
