"""A seqlock is always read whole, even after its writer died."""

from __future__ import annotations

import pytest

from reput.ring.layout import seqlock_size
from reput.ring.seqlock import Seqlock


@pytest.fixture
def octets() -> memoryview:
    return memoryview(bytearray(128))


@pytest.fixture
def seqlock(octets: memoryview) -> Seqlock:
    return Seqlock(octets.cast("Q"), octets, 8, 24)


def test_a_seqlock_that_was_never_written_is_none(seqlock: Seqlock):
    """Unknown differs from empty."""
    assert seqlock.read() is None
    seqlock.write(b"")
    assert seqlock.read() == b""


def test_the_last_writing_is_read_whole(seqlock: Seqlock):
    """Whether longer or shorter than the value before, nothing of that remains."""
    for value in (b"a" * 24, b"bc", b"d" * 17):
        seqlock.write(value)
        assert seqlock.read() == value


def test_bytes_beyond_the_capacity_are_cut_off(seqlock: Seqlock, octets: memoryview):
    """They never overwrite the memory behind the seqlock."""
    seqlock.write(b"x" * 100)
    assert seqlock.read() == b"x" * 24
    assert bytes(octets[8 + seqlock_size(24) :]).strip(b"\0") == b""
    assert bytes(octets[:8]) == bytes(8)


def test_a_writer_that_died_while_writing_leaves_the_last_whole_value(seqlock: Seqlock, octets: memoryview):
    """The copy in use is never the one being written."""
    seqlock.write(b"first")
    before = bytes(octets)
    seqlock.write(b"second")
    torn = bytearray(octets)
    torn[8:16] = before[8:16]
    assert bytes(torn) != before
    octets[:] = torn
    assert seqlock.read() == b"first"
    seqlock.write(b"third")
    assert seqlock.read() == b"third"
